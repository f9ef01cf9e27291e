"""What a waiting reservation lacks, and when that is known to change."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from enum import StrEnum
from functools import partial
from math import inf

from app.accounting.curves import RdpCurve
from app.ledger.accounts.account import MOST_USED, Account
from app.ledger.admission.admission import prepared_path
from app.ledger.scheduling.queue import Ledgers, WaitingReservation, schedule, unreserved
from app.ledger.scheduling.scheduling_rules import Line
from app.ledger.scheduling.withholding import Withholding
from app.ledger.settings.allocation import UnlockOverTime

MAX_TIMES = 100
"""Maximum number of future times at which a line is tried."""

MAX_TRIES = 1000
"""Maximum number of reservations that are tried at all those times together; each takes up to some milliseconds."""


class WaitingReason(StrEnum):
    """Why an account does not hold a reservation now."""

    CLOSED = "closed"
    LIMIT = "limit"
    RESERVED = "reserved"
    LOCKED = "locked"
    PROMISED = "promised"


@dataclass(frozen=True, slots=True)
class Shortage:
    """An account that does not hold a reservation, in shares of its capacity (`Account.used`).

    Args:
        reason: a closed account opens later or never; a limit must be raised; what is reserved, locked or promised to
            other budgets may become free.
        requested: by the reservation, beyond what is used and reserved; infinite if the limit bounds no such loss.
        available: what can be taken now, in [0, 1].
        opens_at: of a closed account that opens later.
    """

    account_id: str
    account_path: str
    reason: WaitingReason
    requested: float
    available: float
    opens_at: datetime | None = None


def shortages(reservation: WaitingReservation, ledgers: Ledgers, now: datetime) -> list[Shortage]:
    """List what a reservation lacks, by account from the root; none: it fits, and waits for its turn."""
    path, cost = prepared_path(ledgers.path(reservation), reservation.steps)
    bare, _ = prepared_path(ledgers.path(reservation, unreserved), reservation.steps)
    found = []
    for account, view, free in zip(path, ledgers.views(path), bare, strict=True):
        closed = not ledgers.is_open(account)
        if not closed and view.fits(cost):
            continue
        if closed:
            reason = WaitingReason.CLOSED
        elif not free.fits(cost):
            reason = WaitingReason.LIMIT
        elif not account.fits(cost):
            reason = WaitingReason.RESERVED
        elif not ledgers.withholdings[account.id].unlocked_view(account).fits(cost):
            reason = WaitingReason.LOCKED
        else:
            reason = WaitingReason.PROMISED
        opens_at = account.window.opens_at if closed else None
        later = opens_at if opens_at is not None and opens_at > now else None
        found.append(Shortage(view.id, view.path, reason, *_shares(view, cost), later))
    return found


def _shares(view: Account, cost: RdpCurve) -> tuple[float, float]:
    """Compute the shares of an account's capacity that a reservation takes, and that it can take."""
    taken = view.spent + view.held
    used, after = view.used(taken), view.used(taken + view.grown_by(cost))
    return inf if after >= MOST_USED else max(0.0, after - used), min(1.0, max(0.0, 1 - used))


def estimates(
    reservations: Iterable[WaitingReservation], line: Line, ledgers: Ledgers, now: datetime, until: datetime
) -> dict[str, datetime]:
    """Estimate when reservations of a line will be granted: if nothing changes but what time unlocks and opens.

    `ledgers` have the runs of all reservations of the line. The result has times by reservation; those without one are
    unknown.
    """
    wanted = {reservation.id: reservation for reservation in reservations}
    found: dict[str, datetime] = {}
    if not wanted:
        return found
    waiting = Line(line.rule, line.aging)
    for each in line.reservations.values():
        waiting.add(each)
    ledgers = Ledgers(_tuned(waiting, ledgers, now), ledgers.withholdings)
    tries = 0
    for at in _times(wanted.values(), ledgers, now, until):
        ledgers = Ledgers(ledgers.accounts, _withholdings(ledgers, at), partial(_is_open_at, at))
        candidates = waiting.candidates(ledgers, list(ledgers.accounts))
        tries += len(candidates)
        if tries > MAX_TRIES:
            break
        for granted in list(schedule(waiting.order(candidates, ledgers, at), waiting.aged(at), ledgers)):
            waiting.remove(granted.standing.reservation.id)
            if granted.standing.reservation.id in wanted:
                found[granted.standing.reservation.id] = at
        if len(found) == len(wanted):
            break
    return found


def _tuned(line: Line, ledgers: Ledgers, now: datetime) -> dict[str, Account]:
    """Get the accounts, whose filters are chosen for the first reservation of a line where nothing was charged yet.

    So they are chosen once, and not again each time that a reservation is tried.
    """
    accounts = dict(ledgers.accounts)
    first = line.order(list(line.reservations.values()), ledgers, now)[0].reservation
    for account_id in first.path[:-1]:
        accounts[account_id] = accounts[account_id].prepared_for(first.steps, held=True)
    return accounts


def _is_open_at(at: datetime, account: Account) -> bool:
    return account.window.holds(at)


def _times(
    reservations: Iterable[WaitingReservation], ledgers: Ledgers, now: datetime, until: datetime
) -> Sequence[datetime]:
    """List the times at which more of the accounts of reservations becomes usable."""
    found: set[datetime] = set()
    for account_id in {each for reservation in reservations for each in reservation.path}:
        account = ledgers.accounts[account_id]
        if account.window.opens_at is not None:
            found.add(account.window.opens_at)
        if account.allocation is not None and isinstance(account.allocation.unlock, UnlockOverTime):
            found.update(_begins(account.allocation.unlock, now))
    return sorted(at for at in found if now < at <= until)[:MAX_TIMES]


def _begins(unlock: UnlockOverTime, now: datetime) -> Iterator[datetime]:
    first = unlock.window(now) + 1
    for window in range(first, min(first + MAX_TIMES, unlock.parts + 1)):  # nothing is kept after the last one
        yield unlock.begin(window)


def _withholdings(ledgers: Ledgers, at: datetime) -> dict[str, Withholding]:
    """Compute what accounts withhold at a later time; a new window has given nothing yet."""
    found = {}
    for account_id, withholding in ledgers.withholdings.items():
        unlock = withholding.allocation.unlock
        part = (unlock.fraction(at), unlock.window_part(at)) if isinstance(unlock, UnlockOverTime) else None
        if part is not None and part != (withholding.unlocked, withholding.window):
            found[account_id] = replace(withholding, unlocked=part[0], window=part[1], taken={})
        else:
            found[account_id] = withholding
    return found
