"""Load and lock what decisions need, before the first of them; locked rows validate the cached ones."""

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from sqlalchemy import Connection, Row

from app.accounting.events import DpEvent, RepeatAndSelect
from app.ledger.accounts.account import Account
from app.ledger.admission.admission import LimitChange
from app.ledger.admission.counted_accounts import CountedAccount
from app.ledger.governance.steps_lost import priced_groups
from app.persistence.repositories import accounts as account_rows
from app.persistence.repositories import (
    decisions,
    experiments,
    idempotent_responses,
    locks,
    registered_runs,
    reservations,
    runs,
)
from app.persistence.repositories.dp_events import CostCache, CostTable, find_events
from app.persistence.repositories.limit_changes import list_limit_changes
from app.service.auth.request_context import RequestContext
from app.service.charging.ledger_state import CachedRun, CostRule, CurrentRows, Key, LedgerState
from app.service.charging.requests import Mode, NotLoadedError, StepRequest
from app.service.charging.unit_of_work import UnitOfWork


@dataclass(frozen=True, slots=True)
class LoadRequest:
    """The rows that a command or a use case needs.

    Args:
        steps: the request whose earlier decision and costs are needed as well.
        events: further events whose costs are needed.
    """

    run_id: str
    steps: StepRequest | None = None
    events: tuple[DpEvent, ...] = ()


def refresh(
    tx: Connection, state: LedgerState, rows: CurrentRows, run_keys: Collection[Key], *, trusting: bool = False
) -> None:
    """Add the current rows of existing runs and of the accounts of their paths; lock the accounts in a write.

    Accounts are locked by depth and id; a caller with several organisations takes them by id (ADR 0003). If `trusting`,
    no other transaction has written since the current ones of the cached rows were read or written.
    """
    for owner in sorted({owner for owner, _ in run_keys}):
        _Refresh(tx, state, owner, rows, trusting).read({key for key in run_keys if key[0] == owner})


def load(
    tx: Connection,
    state: LedgerState,
    organisation_id: str,
    wanted: Sequence[LoadRequest],
    rows: CurrentRows | None = None,
    *,
    trusting: bool = False,
) -> UnitOfWork:
    """Copy current rows of existing runs, by default of a `refresh`, and read what else decisions on them need."""
    sent = {each.steps.idempotency_key for each in wanted if each.steps is not None}
    keys = sorted(key for key in sent if key is not None)
    run_keys = {(organisation_id, each.run_id) for each in wanted}
    if rows is None:
        idempotent_responses.lock_keys(tx, organisation_id, keys)
        refresh(tx, state, rows := CurrentRows(), run_keys)
    work = UnitOfWork(organisation_id, stored_costs=state.stored_costs if trusting else set())
    for run_key in run_keys & rows.runs.keys():
        cached = rows.runs[run_key]
        work.add_run(cached.path, cached.run, cached.reservation)
        for at in cached.path:
            if at not in work.accounts:
                work.accounts[at] = rows.accounts[organisation_id, at].copy()
    loader = _Loader(tx, state, work)
    loader.load_parts()
    loader.load_sweeps()
    if keys:
        loader.load_answers(keys)
    existing = [each for each in wanted if each.run_id in work.runs]
    loader.load_earlier_steps(existing)
    loader.load_costs(existing)
    return work


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
    work = load(tx, LedgerState(), context.organisation_id, [LoadRequest(run_id, steps, tuple(events))])
    if run_id in work.paths:
        context.require_scope(work.paths[run_id])
    return work


def load_missing(tx: Connection, state: LedgerState, work: UnitOfWork, missing: NotLoadedError) -> None:
    """Load rows that few decisions need: kinds, registered runs, a reservation's costs, or a limit's last change."""
    if missing.kinds:
        load_kinds(tx, state.costs, work, missing.account, missing.kinds)
        return
    if missing.untuned:
        _load_registered(tx, state.costs, work, missing.account, missing.untuned)
        return
    if missing.reservation is None:
        work.limit_changes[missing.account.id] = find_limit_change(tx, work.organisation_id, missing.account)
        return
    table = CostTable.of(work.organisation_id, missing.account)
    events = {item.event for item in missing.reservation.items if item.unused}
    work.costs_of(missing.account).update(state.costs.find_events(tx, table, events))
    work.costed_reservations.add(missing.reservation.run_id)


def load_kinds(tx: Connection, costs: CostCache, work: UnitOfWork, account: Account, kinds: Collection[str]) -> None:
    """Load events that were charged to an account, with their curves; None for those that a restore has lost."""
    events = find_events(tx, work.organisation_id, kinds)
    curves = costs.find(tx, CostTable.of(work.organisation_id, account), kinds)
    work.kinds |= {each: (events[each], curves[each]) if each in events and each in curves else None for each in kinds}


def _load_registered(
    tx: Connection, costs: CostCache, work: UnitOfWork, run: Account, account_ids: Sequence[str]
) -> None:
    """Load what the other runs under accounts declared, with the curves of their events."""
    found = list(registered_runs.list_groups(tx, work.organisation_id, list(account_ids), without=run.id))
    table = CostTable.of(work.organisation_id, run)
    events = {step.event for group in found for step in group.steps}
    work.registered[run.id] = priced_groups(found, costs.find_events(tx, table, events))


def find_limit_change(tx: Connection, organisation_id: str, account: Account) -> LimitChange | None:
    """Find the last change of an account's limit; None if the log has none."""
    return next(list_limit_changes(tx, organisation_id, account), None)


def current_accounts(
    tx: Connection, state: LedgerState, organisation_id: str, seen: Sequence[Row[Any]]
) -> tuple[dict[Key, CountedAccount], set[Key]]:
    """Get accounts from the cache if they have the versions that were read, else from the database.

    Returns:
        The accounts by key, and the keys of those that were read; they are not cached yet.
    """
    cached = state.accounts.get_many([(organisation_id, each.id) for each in seen])
    found, stale = {}, []
    for each in seen:
        key = organisation_id, each.id
        counted = cached.get(key)
        if counted is not None and counted.matches(each.version, each.updated_at, each.quarantine):
            found[key] = counted
        else:
            stale.append(each.id)
    for record in account_rows.find_many(tx, state.costs, organisation_id, stale) if stale else ():
        earlier = cached.get((organisation_id, record.account.id))
        current = record if earlier is None else record.after(earlier.record)
        found[organisation_id, record.account.id] = CountedAccount(current)
    return found, {(organisation_id, each) for each in stale}


@dataclass(frozen=True, slots=True)
class _Refresh:
    """The statements that make cached rows of one organisation current."""

    tx: Connection
    state: LedgerState
    organisation_id: str
    rows: CurrentRows
    trusting: bool

    def read(self, run_keys: set[Key]) -> None:
        """Read what has changed of runs and their accounts, or was not cached."""
        cached = self.state.runs.get_many(run_keys)
        paths = {key: known.path for key, known in cached.items()}
        if unknown := [run_id for _, run_id in run_keys - paths.keys()]:
            found = locks.paths(self.tx, self.organisation_id, unknown)
            paths |= {(self.organisation_id, run_id): path for run_id, path in found.items()}
        read = self._read_accounts({(self.organisation_id, at) for path in paths.values() for at in path})
        changed = [key for key in paths if key in read or key not in cached]
        self.rows.runs |= {key: known for key, known in cached.items() if key not in read}
        if changed:
            self._read_runs({run_id: paths[owner, run_id] for owner, run_id in changed})

    def _read_accounts(self, keys: set[Key]) -> set[Key]:
        """Lock accounts, and get the keys of those that had to be read."""
        kept = self.state.accounts.get_many(keys & self.state.current) if self.trusting else {}
        self.rows.accounts |= kept
        others = [account_id for _, account_id in keys - kept.keys()]
        if not others:
            return set()
        seen = locks.lock(self.tx, self.organisation_id, others)
        found, read = current_accounts(self.tx, self.state, self.organisation_id, seen)
        self.rows.accounts |= found
        self.state.accounts.put_many(found.items())
        self.state.current.update(found)
        return read

    def _read_runs(self, paths: dict[str, tuple[str, ...]]) -> None:
        """Read runs with their active reservations."""
        found = runs.get_many(self.tx, self.organisation_id, sorted(paths))
        held = [run.reservation_id for run in found if run.reservation_id is not None]
        by_id = {each.id: each for each in reservations.get_many(self.tx, self.organisation_id, held)} if held else {}
        read = {}
        for run in found:
            reservation = None if run.reservation_id is None else by_id[run.reservation_id]
            read[self.organisation_id, run.account_id] = CachedRun(paths[run.account_id], run, reservation)
        self.rows.runs |= read
        self.state.runs.put_many(read.items())


@dataclass(frozen=True, slots=True)
class _Loader:
    """The statements that read what only the rule needs, in their order."""

    tx: Connection
    state: LedgerState
    work: UnitOfWork

    def load_parts(self) -> None:
        """Load the children of parallel accounts; the lock on the parent protects them."""
        owner = self.work.organisation_id
        loaded = [counted.record.account for counted in self.work.accounts.values()]
        parallel = [account.id for account in loaded if account.partitions_per_unit is not None]
        found = locks.read_children(self.tx, owner, parallel) if parallel else []
        beside, _ = current_accounts(
            self.tx, self.state, owner, [part for part in found if part.id not in self.work.accounts]
        )
        for counted in beside.values():
            record = counted.copy().settled()
            self.work.unlocked[record.account.id] = record
        for part in found:
            parent = self.work.record(part.id).account.parent_id
            assert parent is not None, "a partition has a parent"
            self.work.parts.setdefault(parent, []).append(part.id)

    def load_sweeps(self) -> None:
        """Load which runs are whole sweeps."""
        sweeps = [run.account_id for run in self.work.runs.values() if isinstance(run.event, RepeatAndSelect)]
        if sweeps:
            self.work.sweeps = experiments.charged_at_once(self.tx, self.work.organisation_id, sweeps)

    def load_answers(self, keys: Sequence[str]) -> None:
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
        """Load the costs of requested events, and of the last one of a reservation: it mostly shows its hold exact."""
        rules: dict[CostRule, set[DpEvent]] = {}
        for each in wanted:
            own, reservation = self.work.accounts[each.run_id].record.account, self.work.reservations.get(each.run_id)
            events = rules.setdefault((own.relation, own.grid_version), set())
            events.update(each.events)
            if each.steps is None:
                continue
            default = self.work.runs[each.run_id].event
            events.update(event for sent, _ in each.steps.items if (event := sent or default) is not None)
            if reservation is not None and each.steps.mode is Mode.AUTHORIZE:
                events.update([item.event for item in reservation.items if item.unused][-1:])
        for rule, events in rules.items():
            if events:
                table = CostTable(self.work.organisation_id, *rule)
                self.work.costs[rule] = self.state.costs.find_events(self.tx, table, events)
