"""Locking and loading of a unit of work; locked rows validate the cache."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from sqlalchemy import Connection

from app.ledger.account_records import AccountRecord, AccountVersion
from app.ledger.plans import PlannedItem
from app.persistence.repositories import accounts, decisions, idempotent_responses, locks, reservations, runs
from app.service.auth.request_context import RequestContext
from app.service.charging.cache import Key, LedgerCache
from app.service.charging.unit_of_work import UnitOfWork


@dataclass(frozen=True, slots=True)
class LoadRequest:
    """The rows that a command or a use case needs.

    Args:
        idempotency_key: of an earlier decision to load as well.
        path: whether to lock the run's ancestors even if a reservation may cover the steps.
    """

    organisation_id: str
    run_id: str
    idempotency_key: str | None = None
    path: bool = True


def load(tx: Connection, memory: LedgerCache, wanted: Sequence[LoadRequest]) -> UnitOfWork:
    """Load rows of existing runs, locked if the transaction writes.

    Locks are taken in the global order: organisation, depth, id (ADR 0003).
    """
    work = UnitOfWork(tx, memory)
    for organisation_id in sorted({each.organisation_id for each in wanted}):
        theirs = [each for each in wanted if each.organisation_id == organisation_id]
        keys = {each.idempotency_key for each in theirs if each.idempotency_key is not None}
        if keys:
            idempotent_responses.lock_keys(tx, organisation_id, keys)
        _load_paths(work, organisation_id, {each.run_id for each in theirs})
        _load_accounts(work, organisation_id, theirs)
        _load_parts(work, organisation_id)
        _load_runs(work, organisation_id)
        _load_pinned(work, organisation_id, list(keys))
    return work


def load_run(tx: Connection, organisation_id: str, run_id: str) -> UnitOfWork:
    """Load one run with its path as `load`, without the cache."""
    return load(tx, LedgerCache(), [LoadRequest(organisation_id, run_id)])


def load_for(tx: Connection, call: RequestContext, run_id: str) -> UnitOfWork:
    """Load one run as `load_run`, within the caller's scope."""
    work = load_run(tx, call.organisation_id, run_id)
    path = work.paths.get((call.organisation_id, run_id))
    if path is not None:
        call.require_scope(path)
    return work


def _load_paths(work: UnitOfWork, organisation_id: str, run_ids: set[str]) -> None:
    unknown = []
    for run_id in run_ids:
        path = work.memory.paths.get((organisation_id, run_id))
        if path is None:
            unknown.append(run_id)
        else:
            work.paths[organisation_id, run_id] = path
    if unknown:
        for run_id, path in locks.paths(work.tx, organisation_id, unknown).items():
            work.memory.paths.put((organisation_id, run_id), path)
            work.paths[organisation_id, run_id] = path


def _load_accounts(work: UnitOfWork, organisation_id: str, wanted: Iterable[LoadRequest]) -> None:
    ids: set[str] = set()
    above: set[str] = set()
    for each in wanted:
        key = (organisation_id, each.run_id)
        path = work.paths.get(key, ())
        own_only = work.memory.reserved.get(key) and not each.path
        ids.update(path[-1:] if own_only else path)
        above.update(path[:-1] if own_only else ())
    if above - ids:
        for seen_above in locks.read_states(work.tx, organisation_id, above - ids):
            key = (organisation_id, seen_above.id)
            if seen_above.quarantined:
                work.quarantined_paths[key] = seen_above.path
            remembered = work.memory.accounts.get(key)
            if remembered is not None and remembered.account.limit_revision != seen_above.limit_revision:
                work.memory.accounts.forget(key)
    for record in _as_seen(work, organisation_id, locks.lock(work.tx, organisation_id, ids)):
        work.accounts[organisation_id, record.account.id] = record


def _load_parts(work: UnitOfWork, organisation_id: str) -> None:
    """Load the children of parallel accounts; the lock on the parent protects them."""
    composed = [
        account_id
        for (owner, account_id), record in work.accounts.items()
        if owner == organisation_id and record.account.partitions_per_unit is not None
    ]
    if not composed:
        return
    seen = locks.read_children(work.tx, organisation_id, composed)
    beside = [part for part in seen if (organisation_id, part.id) not in work.accounts]
    for record in _as_seen(work, organisation_id, beside):
        work.unlocked_partitions[organisation_id, record.account.id] = record
    for part in seen:
        parent = work.record(organisation_id, part.id).account.parent_id
        assert parent is not None, "a partition has a parent"
        work.parts.setdefault((organisation_id, parent), []).append(part.id)


def _as_seen(work: UnitOfWork, organisation_id: str, found: Iterable[AccountVersion]) -> Iterator[AccountRecord]:
    """Yield accounts from the cache if it is current, else from the database."""
    stale = []
    for seen in found:
        record = work.memory.accounts.get((organisation_id, seen.id))
        if record is None or not record.is_what(seen):
            stale.append(seen.id)
        else:
            yield record
    if stale:
        for record in accounts.find_many(work.tx, work.memory.prices, organisation_id, stale):
            yield record.after(work.memory.accounts.get((organisation_id, record.account.id)))


def _load_runs(work: UnitOfWork, organisation_id: str) -> None:
    run_ids = [run_id for owner, run_id in work.paths if owner == organisation_id]
    held: dict[str, tuple[PlannedItem, ...] | None] = {}
    for run in runs.get_many(work.tx, organisation_id, run_ids):
        key = (organisation_id, run.account_id)
        work.runs[key] = run
        if run.reservation_id is None:
            work.memory.reserved.forget(key)
        else:
            work.memory.reserved.put(key, True)  # noqa: FBT003 - a hint is no flag
            held[run.reservation_id] = _remembered_plan(work, key, run.reservation_id)
    if held:
        for reservation in reservations.get_many(work.tx, organisation_id, held):
            work.reservations[organisation_id, reservation.run_id] = reservation


def _remembered_plan(work: UnitOfWork, run: Key, reservation_id: str) -> tuple[PlannedItem, ...] | None:
    """Get the cached rest of a plan if its run's account is unchanged."""
    plan, own = work.memory.plans.get((run[0], reservation_id)), work.accounts.get(run)
    if plan is None or own is None or (plan.version, plan.updated_at) != (own.account.version, own.updated_at):
        return None
    return plan.items


def _load_pinned(work: UnitOfWork, organisation_id: str, keys: Sequence[str]) -> None:
    if keys:
        for decision in decisions.find_by_keys(work.tx, organisation_id, keys):
            assert decision.idempotency_key is not None, "it was found by its key"
            work.pinned[organisation_id, decision.idempotency_key] = decision
        work.reused.update((organisation_id, key) for key in idempotent_responses.known(work.tx, organisation_id, keys))
