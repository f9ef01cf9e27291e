"""What accounts with an allocation withhold now, read from the ledger."""

from collections.abc import Iterable
from datetime import datetime

from sqlalchemy import Connection

from app.accounting.curves import RdpCurve
from app.ledger.accounts.account import Account, usage_of, zero_curve
from app.ledger.errors import LedgerUnavailableError
from app.ledger.scheduling.withholding import Withholding
from app.ledger.settings.allocation import Allocation
from app.persistence.repositories import waiting
from app.persistence.repositories.dp_events import CostCache, CostTable
from app.service.accounts.locked_limits import read_unlocked


def read_withholdings(
    tx: Connection, organisation_id: str, accounts: Iterable[Account], now: datetime, asking: str | None = None
) -> dict[str, Withholding]:
    """Read what accounts withhold, by id; those without an allocation are left out.

    Args:
        tx: the transaction.
        organisation_id: of the accounts.
        accounts: by any order.
        now: the earliest time that it may be, so that nothing is unlocked too early.
        asking: a run that asks for a reservation just now, and counts as an arrival.
    """
    found = {}
    for account in accounts:
        allocation = account.allocation
        if allocation is not None:
            unlocked = read_unlocked(tx, organisation_id, account.id, allocation, now, asking)
            taken = _taken(tx, organisation_id, account, allocation, unlocked.since)
            found[account.id] = Withholding(allocation, unlocked.part, unlocked.window, taken)
    return found


def _taken(
    tx: Connection, organisation_id: str, account: Account, allocation: Allocation, since: datetime | None
) -> dict[str, RdpCurve]:
    """Sum the loss of the reservations that budgets with a minimum have got in the current window."""
    taken = {}
    for account_id, share in allocation.shares.items():
        if not share.minimum:
            continue
        events = dict(waiting.held_since(tx, organisation_id, account_id, since))
        curves = CostCache().find_events(tx, CostTable.of(organisation_id, account), events)
        total = zero_curve(account.grid_version)
        for event, count in events.items():
            if event not in curves:
                raise LedgerUnavailableError(
                    "The ledger's price of an event of a reservation is missing, so shares cannot be computed. "
                    "Run `epsilon-ledger verify`."
                )
            total = total + curves[event].using(usage_of([account], event)).times(count)
        taken[account_id] = total
    return taken
