"""Get and list runs and their decisions, and read the page of a run."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Final

from sqlalchemy import Connection

from app.accounting.conversion import spread
from app.accounting.events import DpEvent, NeighboringRelation
from app.ledger.accounts.account import Account, AccountKind
from app.ledger.accounts.account_records import AccountRecord
from app.ledger.accounts.metadata import AccountMetadata, title_of
from app.ledger.admission.admission import repetitions_left
from app.ledger.admission.composition import budgets_of, exposed
from app.ledger.pages import Page, PageRequest
from app.ledger.runs.decisions import Decision, DecisionWithPath
from app.ledger.runs.list_filters import RunFilter
from app.ledger.runs.run import TAKES_NO_STEPS, Run
from app.ledger.step_events import PricedStep, StepEvent
from app.persistence.repositories import (
    account_metadata,
    accounts,
    decisions,
    locks,
    runs,
    waiting,
)
from app.service.accounts.epsilons import delta_of_run, read_epsilons
from app.service.accounts.lookup import find_parent, missing_account_error
from app.service.auth.request_context import RequestContext
from app.service.costing import cost_steps

HISTORY_ROWS: Final = 200
"""Number of decisions of a whole history that are read at once."""

Path = tuple[AccountRecord, ...]
"""A run's account and its ancestors by depth and id."""

Rule = tuple[NeighboringRelation, int]
"""The population's neighboring relation and the grid version, which determine an event's cost."""


@dataclass(frozen=True, slots=True)
class RunRecord:
    """A run with its accounts by depth and id, its metadata, and its remaining steps.

    Args:
        epsilon: of all that it was charged, at `delta`.
        delta: of the limit that governs it: its own, or that of the nearest account above.
        used: share of the capacity of the account that leaves the fewest steps; without one, of the fullest above.
        steps_remaining: how many more of its default event fit, 0 in quarantine; None: it has no default event, has
            ended, waits for an approval or for its reservation, or is a row of a table.
        binding: the account that leaves the fewest; None likewise.
        waiting: the reservation for which it waits.
    """

    run: Run
    path: Path
    about: AccountMetadata
    epsilon: float
    delta: float
    used: float
    steps_remaining: int | None = None
    binding: Account | None = None
    waiting: str | None = None

    @property
    def own(self) -> AccountRecord:
        """The run's own account."""
        return self.path[-1]

    @property
    def title(self) -> str:
        """What people see: the display name or the name, with the number of a run that is not the first."""
        return title_of(self.own.account.name, self.about.number, self.about.metadata.display_name)

    @property
    def deciding(self) -> Account:
        """The account whose share is `used`: the one that leaves the fewest steps, or the fullest."""
        return self.binding or max((record.account for record in self.path), key=lambda each: each.used())

    @property
    def quarantined(self) -> bool:
        """Whether it or an account above is quarantined, so that it takes no steps."""
        return any(record.quarantine is not None for record in self.path)

    @property
    def path_title(self) -> str:
        """The path, with the number of a run that is not the first."""
        return title_of(self.own.account.path, self.about.number)

    @property
    def budgets(self) -> tuple[Account, ...]:
        """The budgets that it charges, the first budget first."""
        return budgets_of([record.account for record in self.path])


@dataclass(frozen=True, slots=True)
class History:
    """A run's decisions, evenly thinned out, and the accounts that it charges, root first.

    Args:
        points: always with the first and the last of the range; their steps are truncated to an amount of memory, and
            complete if they add up to `step_count`.
        decisions: number of all the run's decisions.
    """

    run_id: str
    accounts: tuple[str, ...]
    points: tuple[Decision, ...]
    decisions: int


def get_run(context: RequestContext, run_id: str) -> RunRecord:
    """Get a run."""
    with context.read() as tx:
        return context.run_with_costs(lambda: read_run(tx, context, run_id))


def list_runs(context: RequestContext, wanted: RunFilter, page: PageRequest) -> Page[RunRecord]:
    """List runs in the caller's scope; accounts of `wanted` are ids or paths."""
    with context.read() as tx:
        found = _page_of(tx, context, wanted, page)
        paths = find_paths(tx, context, [run.account_id for run in found.items])
        listed = list(zip(found.items, paths, strict=True))
        return context.run_with_costs(lambda: Page(_records(tx, context, listed), found.next))


def list_run_rows(context: RequestContext, wanted: RunFilter, page: PageRequest) -> Page[RunRecord]:
    """List runs as `list_runs`, for tables: in a constant number of statements, without computing steps left."""
    with context.read() as tx:
        found = _page_of(tx, context, wanted, page)
        ids = [run.account_id for run in found.items]
        about = account_metadata.find_many(tx, context.organisation_id, ids)
        rows = []
        paths = find_paths(tx, context, ids)
        readings = _read_all(tx, context, paths)
        for run, path, (epsilon, delta) in zip(found.items, paths, readings, strict=True):
            used = max(record.account.used() for record in path)
            rows.append(RunRecord(run, path, about[run.account_id], epsilon, delta, used))
    return Page(rows, found.next)


def _page_of(tx: Connection, context: RequestContext, wanted: RunFilter, page: PageRequest) -> Page[Run]:
    """Read a page of runs in the caller's scope."""

    def find(above: str | None) -> str | None:
        return None if above is None else find_parent(tx, context, above).account.id

    population, budget, within = map(find, (wanted.population, wanted.budget, wanted.within))
    wanted = replace(wanted, population=population, budget=budget, within=within)
    return runs.page(tx, context.organisation_id, wanted, page, context.principal.scope)


def read_history(context: RequestContext, run_id: str, *, after: int, max_points: int) -> History:
    """Get a run's decisions after a position (-1: all), thinned out evenly to `max_points`, at least 2."""
    with context.read() as tx:
        path = find_path(tx, context, run_id)
        run = runs.get(tx, context.organisation_id, run_id)
        wanted = spread(after + 1, run.decisions, max_points)
        points = decisions.at_positions(tx, context.organisation_id, run_id, wanted)
    return History(run_id, tuple(record.account.id for record in path), tuple(points), run.decisions)


def read_whole_history(context: RequestContext, run_id: str) -> Iterator[list[DecisionWithPath]]:
    """Read a run's decisions in order, in pages with a transaction each."""
    position, count = 0, 1
    while position < count:
        with context.read() as tx:
            path = find_path(tx, context, run_id)[-1].account.path
            count = runs.get(tx, context.organisation_id, run_id).decisions
            wanted = list(range(position, min(position + HISTORY_ROWS, count)))
            found = decisions.at_positions(tx, context.organisation_id, run_id, wanted)
            number = account_metadata.numbers_of(tx, context.organisation_id, [run_id]).get(run_id, 1)
        yield [DecisionWithPath(decision, path, number) for decision in found]
        position += HISTORY_ROWS


def find_path(tx: Connection, context: RequestContext, run_id: str) -> Path:
    """Get the path of a run, locked if the transaction writes."""
    path = accounts.path_of(tx, context.organisation_id, run_id)
    if not path or path[-1].account.kind is not AccountKind.RUN:
        raise missing_account_error(AccountKind.RUN, run_id)
    context.require_scope([record.account.id for record in path])
    return tuple(path)


def find_paths(tx: Connection, context: RequestContext, run_ids: Sequence[str]) -> list[Path]:
    """Get the paths of readable runs, in a constant number of statements."""
    ids = locks.paths(tx, context.organisation_id, run_ids)
    wanted = sorted({account_id for path in ids.values() for account_id in path})
    records = {record.account.id: record for record in accounts.read_many(tx, context.organisation_id, wanted)}
    return [tuple(records[account_id] for account_id in ids[run_id]) for run_id in run_ids]


def partitions_of(tx: Connection, context: RequestContext, found: Iterable[Account]) -> list[Account]:
    """Get the partitions of those accounts that are parallel."""
    parallel = list({account.id: None for account in found if account.partitions_per_unit is not None})
    return [part.account for part in accounts.children(tx, context.organisation_id, parallel)] if parallel else []


def read_run(tx: Connection, context: RequestContext, run_id: str) -> RunRecord:
    """Read a run within a transaction; CostNotReadyError: the cost of its default event is missing."""
    path = find_path(tx, context, run_id)
    [record] = _records(tx, context, [(runs.get(tx, context.organisation_id, run_id), path)])
    return record


def _records(tx: Connection, context: RequestContext, found: Sequence[tuple[Run, Path]]) -> list[RunRecord]:
    """Build the records of runs, in a constant number of statements."""
    beside = partitions_of(tx, context, (record.account for _, path in found for record in path))
    prices = _prices(tx, context, found)
    about = account_metadata.find_many(tx, context.organisation_id, [run.account_id for run, _ in found])
    waits = waiting.of_runs(tx, context.organisation_id, [run.account_id for run, _ in found])
    read = []
    readings = _read_all(tx, context, [path for _, path in found])
    for (run, path), (epsilon, delta) in zip(found, readings, strict=True):
        touched = exposed([record.account for record in path], beside)
        event, rule = run.event, _rule(path[0].account)
        left: tuple[int, Account] | tuple[None, None] = (None, None)
        if event is not None and run.status not in TAKES_NO_STEPS:
            stopped = next((record.account for record in path if record.quarantine is not None), None)
            left = repetitions_left(touched, prices[rule, event]) if stopped is None else (0, stopped)
        used = left[1].used() if left[1] is not None else max(account.used() for account in touched)
        waits_for = waits.get(run.account_id)
        read.append(RunRecord(run, path, about[run.account_id], epsilon, delta, used, left[0], left[1], waits_for))
    return read


def _read_all(tx: Connection, context: RequestContext, paths: Sequence[Path]) -> list[tuple[float, float]]:
    """Read the epsilon and the delta of the run of each path."""
    deltas = [delta_of_run([record.account for record in path]) for path in paths]
    wanted = [(path[-1], delta) for path, delta in zip(paths, deltas, strict=True)]
    return list(zip(read_epsilons(tx, context.organisation_id, wanted), deltas, strict=True))


def _rule(account: Account) -> Rule:
    return account.relation, account.grid_version


def _prices(
    tx: Connection, context: RequestContext, found: Sequence[tuple[Run, Path]]
) -> dict[tuple[Rule, DpEvent], PricedStep]:
    """Get the cost of each run's default event."""
    wanted: dict[Rule, tuple[Account, set[StepEvent]]] = {}
    for run, path in found:
        if run.event is not None and run.status not in TAKES_NO_STEPS:
            root = path[0].account
            wanted.setdefault(_rule(root), (root, set()))[1].add(StepEvent(run.event, 1))
    return {
        (rule, step.step.event): step
        for rule, (root, steps) in wanted.items()
        for step in cost_steps(tx, context.organisation_id, root, list(steps), context.costs)
    }
