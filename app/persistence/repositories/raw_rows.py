"""Read the ledger's rows as stored, for verification and export."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from itertools import groupby
from operator import attrgetter
from typing import Any

from sqlalchemy import Connection, Row, Table, bindparam, select, union, update

from app.ledger.runs.decisions import DecisionEntry
from app.persistence import tolerant_rows as tolerant
from app.persistence.repositories.decision_items import COLUMNS, IndexedItem, read_items
from app.persistence.repositories.expressions import RecordTable, join_on, owned_by
from app.persistence.repositories.locks import lock
from app.persistence.repositories.runs import read_deviations
from app.persistence.tables import (
    account_ancestors,
    accounts,
    attempts,
    decision_events,
    decision_ranges,
    decisions,
    reservation_items,
    reservations,
    run_budgets,
    run_origins,
    runs,
)
from app.persistence.tolerant_rows import DamagedCell, Report, TolerantQuery, refuse

PAGE = 2000
"""Rows fetched at once; a run may have millions."""

Key = tuple[str, str]
"""Ids of an organisation and of an object in it."""

Ancestor = tuple[str, int]
"""An account's id and depth."""


@dataclass(frozen=True, slots=True)
class StoredEntry:
    """A decision with its items, and its hash."""

    entry: DecisionEntry
    entry_hash: bytes


@dataclass(frozen=True, slots=True)
class StoredReservation:
    """A reservation's row and items, without the curve of 11 KB.

    Args:
        items: (reserved, used) of each event, by fingerprint, in their order.
        revoked: repetitions revoked by a lowered limit, by fingerprint, if any.
    """

    organisation_id: str
    id: str
    run_id: str
    attempt: int
    status: str
    steps_executed: int | None
    created_at: datetime
    wait_until: datetime | None
    granted_at: datetime | None
    priority: int
    items: dict[str, tuple[int, int]] = field(default_factory=dict)
    revoked: dict[str, int] = field(default_factory=dict)


_PLAIN = [name for name in DecisionEntry._fields if name != "items"]
_ENTRIES = TolerantQuery(
    select(
        *(decisions.c[name] for name in _PLAIN),
        decisions.c.entry_hash,
        decisions.c.event_fingerprint,
        decisions.c.event_count,
        *COLUMNS,
    )
    .outerjoin(decision_events, join_on(decision_events, decisions, run_id="run_id", position="position"))
    .where(decisions.c.run_id == bindparam("of_run"))
    .order_by(decisions.c.position, decision_events.c.item)
    .execution_options(yield_per=PAGE),
    optional=[decision_events],
)


_STORED_RESERVATIONS = RecordTable(reservations, StoredReservation)

# All cells are validated except the curve, which is read with its items.
_RESERVATIONS = TolerantQuery(
    select(*(column for column in reservations.c if column.name not in {"reserved_curve", "reserved_delta"})).order_by(
        *reservations.primary_key
    )
)
_RESERVED = TolerantQuery(
    select(reservations.c.id, reservations.c.run_id, reservations.c.reserved_curve, reservations.c.reserved_delta)
    .where(reservations.c.id == bindparam("of_reservation"))
    .execution_options(yield_per=None)  # a server-side cursor is not worth it for one row
)
_STORED_RUNS = tolerant.by_key(runs, {runs.c.deviations: read_deviations})
_ATTEMPTS = tolerant.by_key(attempts)
_DECISION_RANGES = tolerant.by_key(decision_ranges)
_RESERVATION_ITEMS = tolerant.by_key(reservation_items)
_RUN_BUDGETS = tolerant.by_key(run_budgets)
_RUN_ORIGINS = tolerant.by_key(run_origins)
_ANCESTORS = TolerantQuery(
    select(account_ancestors).order_by(
        account_ancestors.c.organisation_id,
        account_ancestors.c.account_id,
        account_ancestors.c.depth,
        account_ancestors.c.ancestor_id,
    )
)
_QUARANTINED = TolerantQuery(
    select(accounts.c.organisation_id, accounts.c.id, accounts.c.quarantine_reason).where(
        accounts.c.quarantine_reason.is_not(None)
    )
)


def entries(tx: Connection, organisation_id: str, run_id: str, report: Report = refuse) -> Iterator[StoredEntry]:
    """Yield a run's decisions in chain order, in constant memory."""
    found = _ENTRIES.rows(tx, organisation_id, report, of_run=run_id)
    for _, rows in groupby(found, attrgetter("position")):
        further: list[IndexedItem] = []
        for row in rows:
            if row.further_event is not None:
                further += read_items(row, report=report)
        further.sort()
        if [index for index, _, _ in further] != list(range(1, len(further) + 1)):
            key = {name: getattr(row, name) for name in ("organisation_id", "run_id", "position")}
            report(DamagedCell(decision_events.name, "item", key, f"its items are not 1 to {len(further)}"))
        items = ((row.event_fingerprint, row.event_count), *[(event, count) for _, event, count in further])
        entry = DecisionEntry(**{name: getattr(row, name) for name in _PLAIN}, items=items)
        yield StoredEntry(entry, row.entry_hash)


def mentioned_events(tx: Connection, organisation_id: str, run_id: str) -> set[str]:
    """List the fingerprints of all events in a run's decisions."""
    found = [
        select(table.c.event_fingerprint).where(owned_by(table, organisation_id, run_id=run_id))
        for table in (decisions, decision_events)
    ]
    return set(tx.execute(union(*found)).scalars())


def list_runs(tx: Connection, organisation_id: str | None = None, report: Report = refuse) -> dict[Key, Row[Any]]:
    """Get the rows of all runs of one or every organisation by key, reporting damage."""
    return {(row.organisation_id, row.account_id): row for row in _STORED_RUNS.rows(tx, organisation_id, report)}


def list_attempts(
    tx: Connection, organisation_id: str | None = None, report: Report = refuse
) -> dict[Key, dict[int, int]]:
    """Read the first step of each attempt of runs by number, reporting damage."""
    found: dict[Key, dict[int, int]] = {}
    for row in _ATTEMPTS.rows(tx, organisation_id, report):
        found.setdefault((row.organisation_id, row.run_id), {})[row.attempt] = row.first_step
    return found


def list_ranges(
    tx: Connection, organisation_id: str | None = None, report: Report = refuse
) -> dict[Key, dict[int, str]]:
    """Read the actor of each range of decisions of runs by its first position, reporting damage."""
    found: dict[Key, dict[int, str]] = {}
    for row in _DECISION_RANGES.rows(tx, organisation_id, report):
        found.setdefault((row.organisation_id, row.run_id), {})[row.first_position] = row.actor
    return found


def list_reservations(
    tx: Connection, organisation_id: str | None = None, report: Report = refuse
) -> dict[Key, StoredReservation]:
    """List all reservations of one or every organisation by key, reporting damage."""
    found = {
        (row.organisation_id, row.id): _STORED_RESERVATIONS.read(row)
        for row in _RESERVATIONS.rows(tx, organisation_id, report)
    }
    for row in _RESERVATION_ITEMS.rows(tx, organisation_id, report):
        reservation = found.get((row.organisation_id, row.reservation_id))
        if reservation is not None:
            *_, count, revoked, used = tuple(row)
            _count_on(report, reservation_items, "item", row, len(reservation.items))
            reservation.items[row.event_fingerprint] = (count, used)
            if revoked:
                reservation.revoked[row.event_fingerprint] = revoked
    return found


def reserved(
    tx: Connection, organisation_id: str, reservation_id: str, report: Report = refuse
) -> tuple[bytes, int] | None:
    """Read the bytes and delta of a reservation's curve; None if it is damaged."""
    rows = _RESERVED.rows(tx, organisation_id, report, of_reservation=reservation_id)
    found = [(row.reserved_curve, row.reserved_delta) for row in rows]  # read to its end
    return found[0] if found else None


def ancestors(tx: Connection, organisation_id: str | None = None, report: Report = refuse) -> dict[Key, list[Ancestor]]:
    """Read each account's ancestors from the paths' table, by depth and id, itself last."""
    found: dict[Key, list[Ancestor]] = {}
    for row in _ANCESTORS.rows(tx, organisation_id, report):
        found.setdefault((row.organisation_id, row.account_id), []).append((row.ancestor_id, row.depth))
    return found


def charged_budgets(
    tx: Connection, organisation_id: str | None = None, report: Report = refuse
) -> dict[Key, list[str]]:
    """Read the budgets that each run charges, in order, reporting damage."""
    found: dict[Key, list[str]] = {}
    for row in _RUN_BUDGETS.rows(tx, organisation_id, report):
        budgets = found.setdefault((row.organisation_id, row.run_id), [])
        _count_on(report, run_budgets, "position", row, len(budgets))
        budgets.append(row.budget_id)
    return found


def list_origins(tx: Connection, organisation_id: str | None = None, report: Report = refuse) -> dict[Key, set[str]]:
    """Read the runs that each run starts from, reporting damage."""
    found: dict[Key, set[str]] = {}
    for row in _RUN_ORIGINS.rows(tx, organisation_id, report):
        found.setdefault((row.organisation_id, row.run_id), set()).add(row.origin_id)
    return found


def quarantined(tx: Connection, organisation_id: str | None = None, report: Report = refuse) -> dict[Key, str]:
    """Read the quarantine reason of each quarantined account, reporting damage."""
    rows = _QUARANTINED.rows(tx, organisation_id, report)
    return {(row.organisation_id, row.id): row.quarantine_reason for row in rows}


def set_quarantine(
    tx: Connection, organisation_id: str, reasons: Mapping[str, str | None], now: datetime
) -> dict[str, str | None]:
    """Quarantine accounts, or lift it where the reason is None, and return the previous reasons.

    The version and time of change increase; a missing row has no previous reason.
    """
    locked = lock(tx, organisation_id, reasons)  # in the global order: an update takes its locks row by row
    here = (accounts.c.organisation_id == organisation_id) & (accounts.c.id == bindparam("of_account"))
    if locked:
        tx.execute(
            update(accounts)
            .where(here)
            .values(quarantine_reason=bindparam("reason"), version=accounts.c.version + 1, updated_at=now),
            [{"of_account": each.id, "reason": reasons[each.id]} for each in locked],
        )
    return {each.id: each.quarantine for each in locked}


def _count_on(report: Report, table: Table, column: str, row: Row[Any], due: int) -> None:
    """Report a row whose index is not the next one of its key."""
    cells = row._mapping  # noqa: SLF001 - public, despite its name
    if cells[column] != due:
        key = {each.name: cells[each.name] for each in table.primary_key.columns if each.name in cells}
        report(DamagedCell(table.name, column, key, f"it is not {due}, which comes next"))
