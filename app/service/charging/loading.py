"""Load and lock what decisions need, before the first of them; locked rows validate the cache."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from sqlalchemy import Connection

from app.accounting.events import DpEvent, RepeatAndSelect
from app.ledger.account_records import AccountVersion
from app.ledger.accounts import Account
from app.ledger.admission import LimitChange
from app.ledger.counting import CountedAccount
from app.ledger.reservations import PlannedItem
from app.ledger.runs import Run
from app.persistence.repositories import accounts as account_rows
from app.persistence.repositories import (
    decisions,
    experiments,
    idempotent_responses,
    locks,
    reservations,
    runs,
)
from app.persistence.repositories.dp_events import CostTable
from app.persistence.repositories.limit_changes import list_limit_changes
from app.persistence.repositories.locks import AccountState
from app.service.auth.request_context import RequestContext
from app.service.charging.ledger_state import CachedRun, CostRule, Key, LedgerState
from app.service.charging.requests import Mode, NotLoadedError, StepRequest
from app.service.charging.unit_of_work import UnitOfWork


@dataclass(frozen=True, slots=True)
class LoadRequest:
    """The rows that a command or a use case needs.

    Args:
        steps: the request whose earlier decision and costs are needed as well.
        path: whether to lock the run's ancestors even if a reservation may cover the steps.
        events: further events whose costs are needed.
    """

    run_id: str
    steps: StepRequest | None = None
    path: bool = True
    events: tuple[DpEvent, ...] = ()


def load(
    tx: Connection,
    state: LedgerState,
    organisation_id: str,
    wanted: Sequence[LoadRequest],
    *,
    trusting: bool = False,
) -> UnitOfWork:
    """Load rows of existing runs, locked if the transaction writes.

    Accounts are locked by depth and id; a caller with several organisations loads them by id (ADR 0003). If `trusting`,
    no other transaction has written since the current ones of the cached rows were read or written.
    """
    work = UnitOfWork(organisation_id, stored_costs=state.stored_costs if trusting else set())
    loader = _Loader(tx, state, work, state.current if trusting else set())
    keys = {each.steps.idempotency_key for each in wanted if each.steps is not None} - {None}
    if keys:
        idempotent_responses.lock_keys(tx, organisation_id, [str(key) for key in keys])
    loader.load_paths({each.run_id for each in wanted})
    loader.lock_accounts(wanted)
    loader.load_runs()
    if keys:
        loader.load_answers([str(key) for key in keys])
    existing = [each for each in wanted if each.run_id in loader.work.runs]
    loader.load_earlier_steps(existing)
    loader.load_costs(existing)
    return loader.work


def load_run(tx: Connection, organisation_id: str, run_id: str) -> UnitOfWork:
    """Load one run with its path as `load`, without the cache."""
    return load(tx, LedgerState(), organisation_id, [LoadRequest(run_id)])


def load_for(
    tx: Connection,
    context: RequestContext,
    run_id: str,
    steps: StepRequest | None = None,
    events: Iterable[DpEvent] = (),
) -> UnitOfWork:
    """Load one run as `load_run`, within the caller's scope, with the costs of steps or events."""
    work = load(tx, LedgerState(), context.organisation_id, [LoadRequest(run_id, steps, events=tuple(events))])
    if run_id in work.paths:
        context.require_scope(work.paths[run_id])
    return work


def load_missing(tx: Connection, state: LedgerState, work: UnitOfWork, missing: NotLoadedError) -> None:
    """Load the rows that a decision lacks: all costs of a plan, or the last change of a limit."""
    if missing.plan is None:
        work.limit_changes[missing.account.id] = find_limit_change(tx, work.organisation_id, missing.account)
        return
    table = CostTable.of(work.organisation_id, missing.account)
    events = {item.event for item in missing.plan.items if item.unused}
    work.costs_of(missing.account).update(state.costs.find_events(tx, table, events))
    work.costed_plans.add(missing.plan.run_id)


def find_limit_change(tx: Connection, organisation_id: str, account: Account) -> LimitChange | None:
    """Find the last change of an account's limit; None if the log has none."""
    return next(list_limit_changes(tx, organisation_id, account), None)


@dataclass(frozen=True, slots=True)
class _Loader:
    """The statements of one load, in their order.

    Args:
        current: accounts whose cached rows, and those of their runs, need no validation.
        hinted: runs that had a reservation when they were last seen.
    """

    tx: Connection
    state: LedgerState
    work: UnitOfWork
    current: set[Key]
    hinted: set[str] = field(default_factory=set)

    def load_paths(self, run_ids: set[str]) -> None:
        """Load the account ids of each run's path."""
        owner = self.work.organisation_id
        for (_, run_id), known in self.state.runs.get_many([(owner, run_id) for run_id in run_ids]).items():
            self.work.paths[run_id] = known.path
            if known.run is not None and known.run.reservation_id is not None:
                self.hinted.add(run_id)
        unknown = run_ids - self.work.paths.keys()
        if unknown:
            for run_id, path in locks.paths(self.tx, owner, list(unknown)).items():
                self.state.runs.put((owner, run_id), CachedRun(path))
                self.work.paths[run_id] = path

    def lock_accounts(self, wanted: Sequence[LoadRequest]) -> None:
        """Lock the accounts of all paths; of a run with a plan, only its own if that is enough."""
        owner = self.work.organisation_id
        locked: set[str] = set()
        above: set[str] = set()
        for each in wanted:
            path = self.work.paths.get(each.run_id, ())
            own_only = each.run_id in self.hinted and not each.path
            locked.update(path[-1:] if own_only else path)
            above.update(path[:-1] if own_only else ())
        states = locks.read_states(self.tx, owner, above - locked) if above - locked else []
        for (_, account_id), counted in self.state.accounts.get_many(self._current_of(locked)).items():
            self.work.accounts[account_id] = counted.copy()
        others = locked - self.work.accounts.keys()
        found = locks.lock(self.tx, owner, others) if others else []
        for counted in self._current(found):
            self.work.accounts[counted.record.account.id] = counted
        if states:
            self._load_ancestors(states)
        loaded = [counted.record.account for counted in self.work.accounts.values()]
        parallel = [account.id for account in loaded if account.partitions_per_unit is not None]
        if parallel:
            self._load_parts(parallel)

    def _current(self, seen: Sequence[AccountVersion]) -> list[CountedAccount]:
        """Get accounts from the cache if it is current, else from the database."""
        owner = self.work.organisation_id
        cached = self.state.accounts.get_many([(owner, each.id) for each in seen])
        current, stale = [], []
        for each in seen:
            counted = cached.get((owner, each.id))
            if counted is None or not counted.matches(each):
                stale.append(each.id)
            else:
                current.append(counted.copy())
        if stale:
            for record in account_rows.find_many(self.tx, self.state.costs, owner, stale):
                earlier = cached.get((owner, record.account.id))
                current.append(CountedAccount(record if earlier is None else record.after(earlier.record)))
        return current

    def _load_ancestors(self, states: Sequence[AccountState]) -> None:
        """Load the ancestors of runs whose plans cover their steps: they are neither charged nor locked."""
        owner = self.work.organisation_id
        cached = self.state.accounts.get_many([(owner, each.id) for each in states])
        unknown = []
        for each in states:
            counted = cached.get((owner, each.id))
            record = None if counted is None else counted.copy().settled()
            if each.quarantined:
                self.work.quarantined_paths[each.id] = each.path
            # A filter that was not frozen when it was cached may be by now.
            if (
                record is None
                or not record.account.weights_frozen
                or record.account.limit_revision != each.limit_revision
            ):
                unknown.append(each.id)
            else:
                self.work.unlocked[each.id] = record
        if unknown:
            for record in account_rows.find_many(self.tx, self.state.costs, owner, unknown):
                self.work.unlocked[record.account.id] = record

    def _load_parts(self, parallel: Sequence[str]) -> None:
        """Load the children of parallel accounts; the lock on the parent protects them."""
        found = locks.read_children(self.tx, self.work.organisation_id, parallel)
        for counted in self._current([part for part in found if part.id not in self.work.accounts]):
            self.work.unlocked[counted.record.account.id] = counted.settled()
        for part in found:
            parent = self.work.record(part.id).account.parent_id
            assert parent is not None, "a partition has a parent"
            self.work.parts.setdefault(parent, []).append(part.id)

    def load_runs(self) -> None:
        """Load the runs with their active reservations, and which of them are whole sweeps."""
        owner = self.work.organisation_id
        plans: dict[str, tuple[PlannedItem, ...] | None] = {}
        for run in self._runs(list(self.work.paths)):
            self.work.runs[run.account_id] = self.work.stored_runs[run.account_id] = run
            if run.reservation_id is not None:
                plans[run.reservation_id] = self._cached_plan(run.account_id, run.reservation_id)
        if plans:
            for reservation in reservations.get_many(self.tx, owner, plans):
                self.work.reservations[reservation.run_id] = reservation
        sweeps = [run.account_id for run in self.work.runs.values() if isinstance(run.event, RepeatAndSelect)]
        if sweeps:
            self.work.sweeps = experiments.charged_at_once(self.tx, owner, sweeps)

    def _current_of(self, account_ids: Iterable[str]) -> list[Key]:
        """List the keys of cached rows that need no validation."""
        owner = self.work.organisation_id
        return [(owner, each) for each in account_ids if (owner, each) in self.current]

    def _runs(self, run_ids: Sequence[str]) -> list[Run]:
        """Get runs from the cache if they are current, else from the database."""
        owner = self.work.organisation_id
        cached = self.state.runs.get_many(self._current_of(run_ids)).values()
        known = [each.run for each in cached if each.run is not None]
        others = set(run_ids).difference(run.account_id for run in known)
        return [*known, *runs.get_many(self.tx, owner, sorted(others))] if others else known

    def _cached_plan(self, run_id: str, reservation_id: str) -> tuple[PlannedItem, ...] | None:
        """Get the cached rest of a plan if its run's account is unchanged."""
        plan = self.state.plans.get((self.work.organisation_id, reservation_id))
        if plan is None or run_id not in self.work.accounts:
            return None
        own = self.work.record(run_id)
        if (plan.version, plan.updated_at) != (own.account.version, own.updated_at):
            return None
        return plan.items

    def load_answers(self, keys: list[str]) -> None:
        """Load the decisions on idempotency keys, and which other requests have used them."""
        for decision in decisions.find_by_keys(self.tx, self.work.organisation_id, keys):
            assert decision.idempotency_key is not None, "it was found by its key"
            self.work.by_key[decision.idempotency_key] = decision
        self.work.reused_keys.update(idempotent_responses.known(self.tx, self.work.organisation_id, keys))

    def load_earlier_steps(self, wanted: Iterable[LoadRequest]) -> None:
        """Load the decisions on steps that were taken before; later ones are taken in this transaction."""
        answered = self.work.by_key.keys() | self.work.reused_keys
        for each in wanted:
            run, steps = self.work.runs[each.run_id], each.steps
            if steps is None or steps.first_step is None or steps.idempotency_key in answered:
                continue
            place = run.account_id, steps.attempt, steps.first_step
            if (
                steps.attempt != run.attempt or steps.first_step < run.next_step
            ) and place not in self.work.by_first_step:
                decision = decisions.find_admitted(self.tx, self.work.organisation_id, *place)
                if decision is not None:
                    self.work.by_first_step[place] = decision

    def load_costs(self, wanted: Iterable[LoadRequest]) -> None:
        """Load the costs of requested events, and of a plan's last event, which mostly shows that its hold is exact."""
        rules: dict[CostRule, set[DpEvent]] = {}
        for each in wanted:
            own, plan = self.work.accounts[each.run_id].record.account, self.work.reservations.get(each.run_id)
            events = rules.setdefault((own.relation, own.grid_version), set())
            events.update(each.events)
            if each.steps is None:
                continue
            default = self.work.runs[each.run_id].event
            events.update(event for sent, _ in each.steps.items if (event := sent or default) is not None)
            if plan is not None and each.steps.mode is Mode.AUTHORIZE:
                events.update([item.event for item in plan.items if item.unused][-1:])
        for rule, events in rules.items():
            if events:
                table = CostTable(self.work.organisation_id, *rule)
                self.work.costs[rule] = self.state.costs.find_events(self.tx, table, events)
