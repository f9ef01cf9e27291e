"""What a process knows of an organisation's waiting reservations, brought up to date from the database.

The audit chain records every change of a waiting reservation and of its run. So only the subjects of the events since
the last snapshot are read again. An account changes with its version.
"""

from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any, Final

from sqlalchemy import Connection, Row

from app.ledger.accounts.account_records import AccountRecord
from app.ledger.runs.reservations import Reservation
from app.ledger.scheduling.queue import WaitingReservation
from app.ledger.scheduling.scheduling_rules import Line
from app.ledger.settings.allocation import Allocation, SchedulingRule
from app.ledger.step_events import StepEvent
from app.persistence.repositories import accounts as account_rows
from app.persistence.repositories import audit, locks, reservations, waiting
from app.persistence.repositories.dp_events import CostCache, CostTable
from app.persistence.repositories.waiting import WaitingRow
from app.service.costing import PrecomputedCosts, price_steps

DEFAULT: Final = Allocation(rule=SchedulingRule.FIRST_COME)
"""Of a population without an allocation."""

MAX_EVENTS: Final = 500
"""If there are more events since the last snapshot, all waiting reservations are read."""


@dataclass
class KnownReservations:
    """The waiting reservations of an organisation, their accounts and their order.

    Args:
        seen: position and hash of the last event of the audit chain that was seen; None: read all.
        unsure: reservations that may be seen in a transaction that is rolled back, and are read again.
        rows: by reservation.
        reservations: by reservation.
        queue_of: the population in whose line a reservation waits, and the population's child on its path.
        records: accounts above the runs, and all parts of parallel ones.
        lines: by population.
        rules: the allocation of each line's population.
        above: numbers of reservations that would charge each account above their runs.
        left: accounts of reservations that wait no longer, have changed, or are left out no longer. Others may be next.
        changed: reservations that are new or have changed since no reservation fitted.
        skipped: until when reservations are left out that fitted and might not be granted.
        settled: states of accounts with which no reservation that waits fits.
    """

    seen: tuple[int, bytes] | None = None
    unsure: set[str] = field(default_factory=set)
    rows: dict[str, WaitingRow] = field(default_factory=dict)
    reservations: dict[str, WaitingReservation] = field(default_factory=dict)
    queue_of: dict[str, tuple[str, str | None]] = field(default_factory=dict)
    records: dict[str, AccountRecord] = field(default_factory=dict)
    lines: dict[str, Line] = field(default_factory=dict)
    rules: dict[str, Allocation] = field(default_factory=dict)
    above: Counter[str] = field(default_factory=Counter)
    left: set[str] = field(default_factory=set)
    changed: set[str] = field(default_factory=set)
    skipped: dict[str, datetime] = field(default_factory=dict)
    settled: dict[str, object] = field(default_factory=dict)


def refresh(tx: Connection, organisation_id: str, known: KnownReservations, asked: Collection[str] = ()) -> None:
    """Read what has changed.

    Reservations that are `asked` for may have been written in this transaction, before they are recorded.
    """
    rows, touched, seen = _read_rows(tx, organisation_id, known, asked)
    changed = {each for each in touched if known.rows.get(each) != rows.get(each)}
    for gone in changed - rows.keys():
        _remove(known, gone)
    changed &= rows.keys()
    for each in changed & known.rows.keys():  # with another place, or paused, it may delay others no longer
        known.left.update(known.reservations[each].path[:-1])
    new = reservations.get_many(tx, organisation_id, sorted(changed - known.reservations.keys()))
    paths = locks.paths(tx, organisation_id, [each.run_id for each in new]) if new else {}
    for path in paths.values():
        known.above.update(path[:-1])
    _refresh_accounts(tx, organisation_id, known)
    if new:
        _add(tx, organisation_id, known, new, paths)
    _refresh_lines(known, rows, changed)
    known.rows = rows
    known.changed = (known.changed & rows.keys()) | changed
    if asked:
        known.unsure = touched
    else:
        known.seen, known.unsure = seen, set()


def _read_rows(
    tx: Connection, organisation_id: str, known: KnownReservations, asked: Collection[str]
) -> tuple[dict[str, WaitingRow], set[str], tuple[int, bytes] | None]:
    """Read the rows of waiting reservations.

    Returns:
        The rows, the reservations whose rows may have changed, and position and hash of the last event.
    """
    events = None if known.seen is None else audit.events_since(tx, organisation_id, *known.seen, MAX_EVENTS)
    if events is None:
        length, last = audit.head(tx, organisation_id)
        rows = {row.id: row for row in waiting.list_waiting(tx, organisation_id)}
        return rows, rows.keys() | known.rows.keys(), (length - 1, last) if length else None
    subjects = {subject for _, _, subject in events}
    runs = {each for each in subjects if each.startswith("run_")}
    touched = {each for each in subjects if each.startswith("res_")} | known.unsure | set(asked)
    if runs:
        touched |= {row.id for row in known.rows.values() if row.run_id in runs}
    seen = events[-1][:2] if events else known.seen
    if not touched and not runs:
        return known.rows, set(), seen
    found = {row.id: row for row in waiting.list_among(tx, organisation_id, touched, runs)}
    kept = {each: row for each, row in known.rows.items() if each not in touched}
    return kept | found, touched | found.keys(), seen


def _refresh_accounts(tx: Connection, organisation_id: str, known: KnownReservations) -> None:
    """Read the accounts above waiting reservations that have changed, and the parts of parallel ones."""
    wanted = known.above.keys()
    seen = {each.id: each for each in locks.read_versions(tx, organisation_id, wanted)} if wanted else {}
    _read_stale(tx, organisation_id, known, seen)
    parallel = [each for each in wanted if known.records[each].account.partitions_per_unit is not None]
    if parallel:
        parts = {each.id: each for each in locks.read_children(tx, organisation_id, parallel)}
        _read_stale(tx, organisation_id, known, parts)
        seen |= parts
    for gone in known.records.keys() - seen.keys():
        del known.records[gone]


def _read_stale(tx: Connection, organisation_id: str, known: KnownReservations, seen: Mapping[str, Row[Any]]) -> None:
    stale = []
    for each in seen.values():
        record = known.records.get(each.id)
        current = record is not None and (record.account.version, record.updated_at, record.quarantine) == (
            each.version,
            each.updated_at,
            each.quarantine,
        )
        if not current:
            stale.append(each.id)
    if stale:
        found = account_rows.read_many(tx, organisation_id, sorted(stale))
        known.records |= {record.account.id: record for record in found}


def _add(
    tx: Connection,
    organisation_id: str,
    known: KnownReservations,
    new: Sequence[Reservation],
    paths: dict[str, tuple[str, ...]],
) -> None:
    """Add reservations that have begun to wait."""
    runs = waiting.parents(tx, organisation_id, [each.run_id for each in new])
    prices = CostCache()
    for each in new:
        path = paths[each.run_id]
        root = known.records[path[0]].account
        steps = [StepEvent(item.event, item.count) for item in each.items]
        stored = prices.find_events(tx, CostTable.of(organisation_id, root), [step.event for step in steps])
        priced = tuple(price_steps(root, steps, stored, PrecomputedCosts()))
        population = runs[each.run_id][1]
        team = next((above for above in path[:-1] if known.records[above].account.parent_id == population), None)
        known.queue_of[each.id] = (population, team)
        assert each.created_at is not None, "it was read"
        known.reservations[each.id] = WaitingReservation(each.id, path, priced, each.created_at, each.priority)


def _refresh_lines(known: KnownReservations, rows: Mapping[str, WaitingRow], changed: set[str]) -> None:
    renewed = set()
    for population in {home for home, _ in known.queue_of.values()}:
        rule = known.records[population].account.allocation or DEFAULT
        if known.rules.get(population) != rule:
            known.rules[population] = rule
            known.lines[population] = new_line(rule)
            renewed.add(population)
    if renewed:
        changed = changed | {each for each, (home, _) in known.queue_of.items() if home in renewed}
    for each in changed:
        population, team = known.queue_of[each]
        line, reservation = known.lines[population], known.reservations[each]
        weight = weight_of(known.rules[population], team)
        if (reservation.priority, reservation.weight) != (rows[each].priority, weight):
            reservation = WaitingReservation(
                reservation.id, reservation.path, reservation.steps, reservation.arrived_at, rows[each].priority, weight
            )
            known.reservations[each] = reservation
        if line.reservations.get(each) is not reservation:
            if each in line.reservations:
                line.remove(each)
            line.add(reservation)


def weight_of(rule: Allocation, team: str | None) -> float:
    """Get the weight of a reservation by the budget under its population; None: its run is directly under that."""
    return 1.0 if team is None else rule.share_of(team).weight


def new_line(rule: Allocation) -> Line:
    """Create the line of a population with an allocation."""
    aging = None if rule.aging_seconds is None else timedelta(seconds=rule.aging_seconds)
    return Line(rule.rule or SchedulingRule.FIRST_COME, aging)


def _remove(known: KnownReservations, reservation_id: str) -> None:
    above = known.reservations.pop(reservation_id).path[:-1]
    known.left.update(above)
    known.above -= Counter(above)
    population, _ = known.queue_of.pop(reservation_id)
    line = known.lines.get(population)
    if line is not None and reservation_id in line.reservations:
        line.remove(reservation_id)
