"""Get and list runs."""

from collections.abc import Sequence
from dataclasses import dataclass

from sqlalchemy import Connection

from app.accounting.events import DpEvent, NeighboringRelation
from app.ledger.account_records import AccountRecord
from app.ledger.accounts import Account, AccountKind, PricedStep, StepEvent
from app.ledger.admission import Reading, reading_of, repetitions_left
from app.ledger.composition import budgets_of, exposed
from app.ledger.errors import NotFoundError
from app.ledger.permissions import Permission
from app.ledger.runs import Run, RunStatus
from app.persistence.repositories import accounts, locks, runs
from app.service.accounts.lookup import find_parent
from app.service.auth.request_context import RequestContext
from app.service.costing import PrecomputedCosts, cost_steps, run_with_costs


@dataclass(frozen=True, slots=True)
class RunRecord:
    """A run with its accounts by depth and id, and its remaining steps.

    Args:
        steps_remaining: how many more of its default event fit; None: it has no default event.
        binding: the account that leaves the fewest; None: it has no default event.
    """

    run: Run
    path: tuple[AccountRecord, ...]
    reading: Reading
    steps_remaining: int | None
    binding: Account | None

    @property
    def own(self) -> AccountRecord:
        """The run's own account."""
        return self.path[-1]

    @property
    def budgets(self) -> tuple[Account, ...]:
        """The budgets that it charges, the first budget first."""
        return budgets_of([record.account for record in self.path])


def get_run(call: RequestContext, run_id: str) -> RunRecord:
    """Get a run."""
    call.require_permission(Permission.LEDGER_READ)
    with call.db.read(call.organisation_id) as tx:
        return run_with_costs(call.organisation_id, lambda ready: read_run(tx, call, run_id, ready))


def list_runs(
    call: RequestContext,
    *,
    budget: str | None,
    status: RunStatus | None,
    after: str | None,
    limit: int,
) -> list[RunRecord]:
    """List runs in order of registration; `budget` selects those that charge it directly."""
    call.require_permission(Permission.LEDGER_READ)
    with call.db.read(call.organisation_id) as tx:
        budget_id = None if budget is None else find_parent(tx, call, budget).account.id
        found = runs.page(
            tx,
            call.organisation_id,
            beneath=call.principal.scope,
            budget_id=budget_id,
            status=status,
            after=after,
            limit=limit,
        )
        paths = find_paths(tx, call, [run.account_id for run in found])
        return run_with_costs(
            call.organisation_id, lambda ready: _records(tx, call, list(zip(found, paths, strict=True)), ready)
        )


def find_path(tx: Connection, call: RequestContext, run_id: str) -> tuple[AccountRecord, ...]:
    """Get a run's account and its ancestors by depth and id, locked if the transaction writes.

    Raises:
        NotFoundError: no such run.
        InsufficientScopeError: outside the caller's scope.
    """
    path = accounts.path_of(tx, call.organisation_id, run_id)
    if not path or path[-1].account.kind is not AccountKind.RUN:
        raise NotFoundError(f"There is no run {run_id!r} in your organisation.")
    call.require_scope([record.account.id for record in path])
    return tuple(path)


def find_paths(tx: Connection, call: RequestContext, run_ids: Sequence[str]) -> list[tuple[AccountRecord, ...]]:
    """Get the paths of readable runs, in a constant number of statements."""
    ids = locks.paths(tx, call.organisation_id, run_ids)
    wanted = sorted({account_id for path in ids.values() for account_id in path})
    records = {record.account.id: record for record in accounts.read_many(tx, call.organisation_id, wanted)}
    return [tuple(records[account_id] for account_id in ids[run_id]) for run_id in run_ids]


def read_run(tx: Connection, call: RequestContext, run_id: str, ready: PrecomputedCosts) -> RunRecord:
    """Read a run within a transaction.

    Raises:
        UnpreparedError: `ready` lacks the cost of its default event.
    """
    path = find_path(tx, call, run_id)
    [record] = _records(tx, call, [(runs.get(tx, call.organisation_id, run_id), path)], ready)
    return record


Path = tuple[AccountRecord, ...]


def _records(
    tx: Connection, call: RequestContext, found: Sequence[tuple[Run, Path]], ready: PrecomputedCosts
) -> list[RunRecord]:
    """Build the records of runs, in a constant number of statements."""
    whole = {record.account.id: record.account for _, path in found for record in path}
    composed = [account.id for account in whole.values() if account.partitions_per_unit is not None]
    beside = [part.account for part in accounts.children(tx, call.organisation_id, composed)] if composed else []
    prices = _prices(tx, call, found, ready)
    read = []
    for run, path in found:
        touched = exposed([record.account for record in path], beside)
        if run.event is None:
            read.append(RunRecord(run, path, reading_of(touched), None, None))
        else:
            remaining, binding = repetitions_left(touched, prices[_rule(path[0].account), run.event])
            read.append(RunRecord(run, path, reading_of(touched), remaining, binding))
    return read


Rule = tuple[NeighboringRelation, int]
"""The population's neighboring relation and the grid version, which determine an event's cost."""


def _rule(account: Account) -> Rule:
    return account.relation, account.grid_version


def _prices(
    tx: Connection, call: RequestContext, found: Sequence[tuple[Run, Path]], ready: PrecomputedCosts
) -> dict[tuple[Rule, DpEvent], PricedStep]:
    """Get the cost of each run's default event."""
    roots: dict[Rule, Account] = {}
    wanted: dict[Rule, set[DpEvent]] = {}
    for run, path in found:
        if run.event is not None:
            rule = _rule(path[0].account)
            roots[rule] = path[0].account
            wanted.setdefault(rule, set()).add(run.event)
    priced = {}
    for rule, events in wanted.items():
        steps = [StepEvent(event, 1) for event in events]
        for step in cost_steps(tx, call.organisation_id, roots[rule], steps, ready):
            priced[rule, step.step.event] = step
    return priced
