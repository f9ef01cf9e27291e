"""Load what repeated steps need from the cache alone."""

from collections.abc import Sequence

from app.accounting.events import DpEvent, RepeatAndSelect
from app.ledger.batches import distinct
from app.ledger.runs import Run
from app.persistence.repositories.dp_events import CostTable
from app.service.charging.loading import LoadRequest
from app.service.charging.requests import Mode
from app.service.charging.saving import LedgerCache
from app.service.charging.unit_of_work import CostRule, UnitOfWork


def recall(
    memory: LedgerCache, organisation_id: str, wanted: Sequence[LoadRequest], *, keyed: bool = False
) -> UnitOfWork | None:
    """Load cached rows of runs, as they were last read or written; None if that is not all that is needed.

    If `keyed`, requests may have idempotency keys, and the caller must require that these are new.

    On SQLite no other transaction has written since. On PostgreSQL one may have, which gave the account a new version:
    the caller must require the known ones.
    """
    work = UnitOfWork(organisation_id, stored_costs=memory.stored_costs)
    for (_, run_id), known in memory.runs.get_many({(organisation_id, each.run_id) for each in wanted}).items():
        if known.run is None or not _is_plain(known.run):
            return None
        work.paths[run_id] = known.path
        work.runs[run_id] = work.stored_runs[run_id] = known.run
    keys = {(organisation_id, at) for path in work.paths.values() for at in path}
    counted = memory.accounts.get_many(keys & memory.current)
    if len(counted) < len(keys) or not all(_is_new(work, each, keyed=keyed) for each in wanted):
        return None
    for (_, account_id), account in counted.items():
        if account.record.account.partitions_per_unit is not None or account.record.quarantine is not None:
            return None
        work.accounts[account_id] = account.copy()
    return work if _recall_costs(memory, work, wanted) else None


def _is_plain(run: Run) -> bool:
    """Check that a run's steps are charged to its accounts, each by itself."""
    return run.reservation_id is None and not isinstance(run.event, RepeatAndSelect)


def _is_new(work: UnitOfWork, wanted: LoadRequest, *, keyed: bool) -> bool:
    """Check that no earlier decision may answer a request, unless by its key."""
    run, steps = work.runs.get(wanted.run_id), wanted.steps
    if run is None or steps is None or steps.mode is not Mode.AUTHORIZE:
        return False
    if steps.idempotency_key is not None and not keyed:
        return False
    return steps.first_step is None or (steps.attempt == run.attempt and steps.first_step >= run.next_step)


def _recall_costs(memory: LedgerCache, work: UnitOfWork, wanted: Sequence[LoadRequest]) -> bool:
    """Load the costs of all requested events; false if one of them may not be stored."""
    rules: dict[CostRule, set[DpEvent]] = {}
    for each in wanted:
        assert each.steps is not None, "it is new"
        account = work.accounts[each.run_id].record.account
        rule = (account.relation, account.grid_version)
        for event in distinct([event for event, _ in each.steps.items]).values():
            charged = event or work.runs[each.run_id].event
            if charged is None or (work.organisation_id, rule, charged) not in memory.stored_costs:
                return False
            rules.setdefault(rule, set()).add(charged)
    for rule, events in rules.items():
        work.costs[rule] = memory.costs.cached(CostTable(work.organisation_id, *rule), events)
        if len(work.costs[rule]) < len(events):
            return False
    return True
