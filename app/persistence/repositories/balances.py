"""Balances: curves that are written now and then, and the events charged since.

A curve has 11 KB, and every charge changes it. So a charge is stored as an event and a count; after some different
events the curve is written and the counts start again. Curves are saturating integers, so their sum is independent of
order and grouping (ADR 0004, ADR 0013).
"""

import json
from collections.abc import Sequence
from typing import Any, Final

from sqlalchemy import Connection, Row, insert

from app.accounting.curves import RdpCurve, Usage
from app.accounting.events import NeighboringRelation
from app.ledger.accounts.account import Account, zero_curve
from app.ledger.accounts.account_records import MOST_EVENTS, Counts, UncompactedCharges
from app.ledger.admission.counted_accounts import CountedAccount
from app.ledger.errors import LedgerUnavailableError
from app.ledger.filter.parallel_exposure import without
from app.persistence.bulk import BulkStatement
from app.persistence.repositories.account_values import weights_text
from app.persistence.repositories.dp_events import CostCache, CostTable
from app.persistence.tables import accounts, balances
from app.persistence.tolerant_rows import json_object

COLUMNS = (
    balances.c.spent_curve,
    balances.c.spent_delta,
    balances.c.held_curve,
    balances.c.held_delta,
    balances.c.charges,
)

_ACCOUNT: Final = ("organisation_id", "id")
_CHARGED = BulkStatement(accounts, ["uncompacted_charges", "plan_usage", "version", "updated_at"], _ACCOUNT)
_FROZEN = BulkStatement(accounts, ["filter_weights"], _ACCOUNT)
_WRITTEN = BulkStatement(balances, [column.name for column in COLUMNS], ["organisation_id", "account_id"])


def read(tx: Connection, book: CostCache, row: Row[Any]) -> tuple[RdpCurve, RdpCurve, UncompactedCharges]:
    """Read an account's spent and held curves, and the charges since they were written.

    `row` has the account with its population's relation and COLUMNS. Raise LedgerUnavailableError if its balance, or
    the price of a charged event, is missing, and ValueError if the row is invalid.
    """
    if row.spent_curve is None:
        raise LedgerUnavailableError(f"The balance of {row.path} is missing; nothing is charged without. Restore it.")
    spent = _curve(row.spent_curve, row.spent_delta, row.grid_version)
    held = _curve(row.held_curve, row.held_delta, row.grid_version)
    uncompacted = read_uncompacted(row.uncompacted_charges)
    used_by_spent, used_by_held = read_usage(row.plan_usage)
    if not uncompacted:
        return spent.using(used_by_spent), held.using(used_by_held), uncompacted
    curves = book.find(tx, _prices_of(row), uncompacted)
    for key, (times, taken) in uncompacted.items():
        if key not in curves:
            raise LedgerUnavailableError(
                f"The ledger's price of event {key[:12]} is missing, though {row.path} was charged with it. Nothing "
                "is charged to it; run `epsilon-ledger verify`."
            )
        spent = spent + curves[key].times(times)
        if taken:
            held = without(held, curves[key].times(taken))
    return spent.using(used_by_spent), held.using(used_by_held), uncompacted


def book_for(tx: Connection, rows: Sequence[Row[Any]]) -> CostCache:
    """Read the prices of all recent charges to some accounts at once, for `read`."""
    book = CostCache(size=MOST_EVENTS * len(rows) + 1)
    wanted: dict[CostTable, set[str]] = {}
    for row in rows:
        wanted.setdefault(_prices_of(row), set()).update(read_uncompacted(row.uncompacted_charges))
    for prices, fingerprints in wanted.items():
        book.find(tx, prices, fingerprints)
    return book


def _prices_of(row: Row[Any]) -> CostTable:
    return CostTable(row.organisation_id, NeighboringRelation(row.neighboring_relation), row.grid_version)


def add(tx: Connection, organisation_id: str, account: Account) -> None:
    """Add the balance of a new account."""
    tx.execute(insert(balances).values(organisation_id=organisation_id, account_id=account.id, **_values(account, {})))


def save(tx: Connection, changed: Sequence[tuple[str, CountedAccount]]) -> None:
    """Write balances and versions after charges, with the owners of the accounts."""
    _CHARGED.execute(
        tx,
        [
            (
                owner,
                counted.record.account.id,
                "{}" if counted.record.must_compact else _charges_text(counted.uncompacted),
                usage_text(*counted.usage),
                counted.version,
                counted.updated_at,
            )
            for owner, counted in changed
        ],
    )
    written = [
        (owner, counted.record.account.id, *_values(counted.record.account, counted.record.counts).values())
        for owner, counted in changed
        if counted.record.must_compact
    ]
    if written:
        _WRITTEN.execute(tx, written)


def freeze(tx: Connection, frozen: Sequence[tuple[str, Account]]) -> None:
    """Write the filter weights that the first charges of accounts have frozen."""
    _FROZEN.execute(tx, [(owner, account.id, weights_text(account.weights)) for owner, account in frozen])


def _charges_text(charges: UncompactedCharges) -> str:
    # Hot path: the json encoder takes five times as long.
    return "{" + ",".join([f'"{event}":[{times},{taken}]' for event, (times, taken) in charges.items()]) + "}"


def usage_text(spent: Usage, held: Usage) -> str:
    """Serialize usage of plans, which is always up to date."""
    if not spent:
        return "{}"
    rows = [(owner, counts, held.get(owner, (0,) * len(counts))) for owner, counts in spent.items()]
    return "{" + ",".join([f'"{owner}":[{_list(counts)},{_list(reserved)}]' for owner, counts, reserved in rows]) + "}"


def _list(counts: tuple[int, ...]) -> str:
    return "[" + ",".join(map(str, counts)) + "]"


def read_usage(text: str) -> tuple[Usage, Usage]:
    """Parse usage of plans by spent and by held loss."""
    if text == "{}":
        return {}, {}
    stored = json_object(text)
    spent = {owner: _counts(both[0]) for owner, both in stored.items()}
    return spent, {owner: _counts(both[1]) for owner, both in stored.items()}


def _counts(stored: list[Any]) -> tuple[int, ...]:
    if any(type(count) is not int or count < 0 for count in stored):  # JSON allows other types
        raise ValueError("A plan's usage is a list of whole numbers, none of them negative.")
    return tuple(stored)


def read_uncompacted(text: str) -> UncompactedCharges:
    """Parse recent charges."""
    return {key: (times, taken) for key, (times, taken) in json_object(text).items()}


def read_counts(text: str | None) -> Counts | None:
    """Parse the counts of the charges that the curves have."""
    if text is None:
        return None
    found = json_object(text)
    if any(type(count) is not int or count < 1 for count in found.values()):  # JSON allows other types
        raise ValueError("A count of charges is a positive whole number.")
    return found


def _values(account: Account, counts: Counts | None) -> dict[str, bytes | int | str | None]:
    return {
        "spent_curve": _bytes(account.spent),
        "spent_delta": account.spent.delta,
        "held_curve": _bytes(account.held),
        "held_delta": account.held.delta,
        "charges": None if counts is None else json.dumps(counts, separators=(",", ":")),
    }


def _bytes(curve: RdpCurve) -> bytes:
    """Serialize a curve, a zero one as no bytes: most accounts hold nothing."""
    return b"" if curve.is_zero else curve.to_bytes()


def _curve(data: bytes, delta: int, grid_version: int) -> RdpCurve:
    return RdpCurve.from_bytes(data, delta) if data or delta else zero_curve(grid_version)
