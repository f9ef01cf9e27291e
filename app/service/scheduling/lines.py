"""The plans that wait in an organisation, their accounts and their order, kept between looks.

A waiting plan never changes but for its priority, and an account only with its version. So a look reads which plans
wait and which versions accounts have, and further rows only of what is new.
"""

from collections import Counter
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from threading import RLock
from weakref import WeakKeyDictionary

from sqlalchemy import Connection

from app.ledger.account_records import AccountRecord, AccountVersion
from app.ledger.allocation import Allocation, SchedulingRule
from app.ledger.reservations import Reservation
from app.ledger.runs import RunStatus
from app.ledger.scheduling import Books, Grant, Standing, WaitingPlan, schedule
from app.ledger.scheduling_rules import Line
from app.ledger.step_events import StepEvent
from app.persistence.database import Database
from app.persistence.repositories import accounts as account_rows
from app.persistence.repositories import locks, reservations, waiting
from app.persistence.repositories.dp_events import CostCache, CostTable
from app.persistence.repositories.waiting import WaitingRow
from app.service.costing import PrecomputedCosts, price_steps
from app.service.scheduling.withholdings import read_withholdings

BEGINS: frozenset[str] = frozenset(map(str, (RunStatus.ACTIVE, RunStatus.WAITING)))
"""Statuses of runs whose plans may be granted."""

DEFAULT: Allocation = Allocation(rule=SchedulingRule.FIRST_COME)
"""Of a population without an allocation."""


@dataclass
class _Known:
    """What is known of an organisation's waiting plans.

    Args:
        rows: of the last look, by reservation.
        plans: by reservation.
        homes: the population in whose line a reservation waits, and the population's child on its path.
        records: accounts above the runs, and all parts of parallel ones.
        lines: by population.
        rules: the allocation of each line's population.
        above: numbers of plans that would charge each account above their runs.
        left: accounts of plans that wait no longer and may have reserved their turn, or are left out no longer.
        barred: until when plans are left out that fitted and might not be granted.
        settled: states of accounts with which no plan that waits fits.
    """

    rows: dict[str, WaitingRow] = field(default_factory=dict)
    plans: dict[str, WaitingPlan] = field(default_factory=dict)
    homes: dict[str, tuple[str, str | None]] = field(default_factory=dict)
    records: dict[str, AccountRecord] = field(default_factory=dict)
    lines: dict[str, Line] = field(default_factory=dict)
    rules: dict[str, Allocation] = field(default_factory=dict)
    above: Counter[str] = field(default_factory=Counter)
    left: set[str] = field(default_factory=set)
    barred: dict[str, datetime] = field(default_factory=dict)
    settled: dict[str, object] = field(default_factory=dict)
    settled_rows: dict[str, WaitingRow] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Look:
    """The waiting plans of an organisation, and the books at one time.

    Args:
        now: the time.
        rows: by reservation.
        lines: by population.
        homes: as in `_Known`.
        books: accounts above the runs; `with_runs` adds runs.
        states: what an account's plans depend on, by account.
        barred: plans that are left out for a while.
    """

    now: datetime
    rows: dict[str, WaitingRow]
    lines: dict[str, Line]
    homes: dict[str, tuple[str, str | None]]
    books: Books
    states: dict[str, object]
    barred: Collection[str] = ()

    def line_of(self, reservation_id: str) -> Line:
        """Get the line in which a plan waits."""
        return self.lines[self.homes[reservation_id][0]]


class WaitingPlans:
    """The waiting plans of an organisation in one database; no other organisation waits for them.

    A caller holds `lock` while it uses them and a look at them. A transaction that has locked the organisation may wait
    for it: who holds the lock waits for no row.
    """

    def __init__(self, organisation_id: str) -> None:
        self.organisation_id = organisation_id
        self.lock = RLock()
        self._known = _Known()

    def look(self, tx: Connection, now: datetime, earliest: datetime) -> Look:
        """Read the waiting plans and their accounts.

        `now` is for windows, `earliest` for what is unlocked.
        """
        known = self._known
        _refresh(tx, self.organisation_id, known)
        for each in [each for each, until in known.barred.items() if now >= until or each not in known.plans]:
            del known.barred[each]
            if each in known.plans:  # it is tried again
                known.left.update(known.plans[each].path[:-1])
        found = {each: record.account for each, record in known.records.items()}
        withholdings = read_withholdings(tx, self.organisation_id, found.values(), earliest)
        closed = {each for each, record in known.records.items() if record.quarantine is not None}
        closed |= {each.id for each in found.values() if not each.window.holds(now)}
        states: dict[str, object] = {}
        for each, record in known.records.items():
            withholding = withholdings.get(each)
            part = None if withholding is None else (withholding.unlocked, withholding.window)
            states[each] = (record.account.version, record.updated_at, part, each in closed)
        books = Books(found, withholdings, lambda account: account.id not in closed)
        return Look(now, known.rows, known.lines, known.homes, books, states, set(known.barred))

    def changed(self, look: Look) -> tuple[set[str], set[str]]:
        """Find the accounts and plans that have changed since no plan fitted.

        A plan with another place, or of a run that was paused, may have delayed others: its accounts count as changed.
        """
        known = self._known
        accounts = {each for each, state in look.states.items() if known.settled.get(each) != state}
        accounts |= known.left & look.states.keys()
        plans = {each for each, row in look.rows.items() if known.settled_rows.get(each) != row}
        accounts.update(*(known.plans[each].path[:-1] for each in plans & known.settled_rows.keys()))
        return accounts, plans

    def settle(self, look: Look) -> None:
        """Note that no plan fits in what a look has seen."""
        known = self._known
        known.settled, known.settled_rows = look.states, look.rows
        known.left.clear()

    def bar(self, reservation_id: str, until: datetime) -> None:
        """Leave a plan out for a while, so that it keeps no other waiting."""
        self._known.barred[reservation_id] = until


_PLANS: "WeakKeyDictionary[Database, dict[str, WaitingPlans]]" = WeakKeyDictionary()


def waiting_plans(db: Database, organisation_id: str) -> WaitingPlans:
    """Get what this process knows of an organisation's waiting plans in a database."""
    return _PLANS.setdefault(db, {}).setdefault(organisation_id, WaitingPlans(organisation_id))


def grants_in(
    tx: Connection, organisation_id: str, look: Look, accounts: set[str], plans: set[str], newcomer: str | None = None
) -> list[Grant]:
    """Compute the grants that changed accounts and plans lead to, in order; the books are changed.

    `newcomer` is the reservation of a plan of a run that the books have already.
    """
    tried: list[tuple[Line, list[WaitingPlan], list[Standing]]] = []
    for population in sorted(look.lines):
        line = look.lines[population]
        named = plans & line.plans.keys()
        if not named and line.accounts.isdisjoint(accounts):
            continue
        aged = [each for each in line.aged(look.now) if each.plan.id == newcomer or _may_begin(look, each.plan)]
        wanted = {plan.id: plan for plan in line.candidates(look.books, accounts, aged)}
        wanted |= {each: line.plans[each] for each in named}
        ready = [plan for plan in wanted.values() if plan.id == newcomer or _may_begin(look, plan)]
        if ready:
            tried.append((line, ready, aged))
    needed = [plan for _, ready, aged in tried for plan in (*ready, *(each.plan for each in aged))]
    with_runs(tx, organisation_id, look.books, needed)
    granted: list[Grant] = []
    for line, ready, aged in tried:
        granted += schedule(line.order(ready, look.books, look.now), aged, look.books)
    return granted


def _may_begin(look: Look, plan: WaitingPlan) -> bool:
    """Check whether a run's plan may be granted; one that is barred or of a paused run waits, and delays nobody."""
    return look.rows[plan.id].run_status in BEGINS and plan.id not in look.barred


def with_runs(tx: Connection, organisation_id: str, books: Books, plans: Iterable[WaitingPlan]) -> None:
    """Add the accounts of plans' runs to the books."""
    unknown = sorted({plan.path[-1] for plan in plans} - books.accounts.keys())
    if unknown:
        for record in account_rows.read_many(tx, organisation_id, unknown):
            books.accounts[record.account.id] = record.account


def _refresh(tx: Connection, organisation_id: str, known: _Known) -> None:
    rows = {row.id: row for row in waiting.list_waiting(tx, organisation_id)}
    for gone in known.plans.keys() - rows.keys():
        _remove(known, gone)
    new = reservations.get_many(tx, organisation_id, dict.fromkeys(rows.keys() - known.plans.keys()))
    paths = locks.paths(tx, organisation_id, [each.run_id for each in new]) if new else {}
    for path in paths.values():
        known.above.update(path[:-1])
    _refresh_accounts(tx, organisation_id, known)
    if new:
        _add(tx, organisation_id, known, new, paths)
    _refresh_lines(known, rows)
    known.rows = rows


def _refresh_accounts(tx: Connection, organisation_id: str, known: _Known) -> None:
    """Read the accounts above waiting plans that have changed, and the parts of parallel ones."""
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


def _read_stale(tx: Connection, organisation_id: str, known: _Known, seen: dict[str, AccountVersion]) -> None:
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
    known: _Known,
    new: Sequence[Reservation],
    paths: dict[str, tuple[str, ...]],
) -> None:
    """Add plans that have begun to wait."""
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
        known.homes[each.id] = (population, team)
        assert each.created_at is not None, "it was read"
        known.plans[each.id] = WaitingPlan(each.id, path, priced, each.created_at, each.priority)


def _refresh_lines(known: _Known, rows: dict[str, WaitingRow]) -> None:
    """Put each plan into the line of its population, with its priority and weight."""
    changed = {each for each, row in rows.items() if known.rows.get(each) != row}
    renewed = set()
    for population in {home for home, _ in known.homes.values()}:
        rule = known.records[population].account.allocation or DEFAULT
        if known.rules.get(population) != rule:
            known.rules[population] = rule
            known.lines[population] = new_line(rule)
            renewed.add(population)
    if renewed:
        changed |= {each for each, (home, _) in known.homes.items() if home in renewed}
    for each in changed:
        population, team = known.homes[each]
        line, plan = known.lines[population], known.plans[each]
        weight = weight_of(known.rules[population], team)
        if (plan.priority, plan.weight) != (rows[each].priority, weight):
            plan = WaitingPlan(plan.id, plan.path, plan.steps, plan.arrived_at, rows[each].priority, weight)
            known.plans[each] = plan
        if line.plans.get(each) is not plan:
            if each in line.plans:
                line.remove(each)
            line.add(plan)


def weight_of(rule: Allocation, team: str | None) -> float:
    """Get the weight of a plan by the budget under its population; None: its run is directly under that."""
    return 1.0 if team is None else rule.share_of(team).weight


def new_line(rule: Allocation) -> Line:
    """Create the line of a population with an allocation."""
    aging = None if rule.aging_seconds is None else timedelta(seconds=rule.aging_seconds)
    return Line(rule.rule or SchedulingRule.FIRST_COME, aging)


def _remove(known: _Known, reservation_id: str) -> None:
    above = known.plans.pop(reservation_id).path[:-1]
    known.left.update(above)
    known.above -= Counter(above)
    population, _ = known.homes.pop(reservation_id)
    line = known.lines.get(population)
    if line is not None and reservation_id in line.plans:
        line.remove(reservation_id)
