"""The lineage of a run: what it starts from, what that started from, and what all of it reveals together."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from sqlalchemy import Connection

from app.accounting.conversion import epsilon_of_curve
from app.accounting.curves import orders
from app.ledger.accounts.account import Account, AccountKind
from app.ledger.accounts.account_records import AccountRecord
from app.ledger.accounts.metadata import title_of
from app.ledger.accounts.part_counts import CountedPart, counts_that_matter
from app.ledger.admission.composition import budgets_of
from app.ledger.admission.lineage_loss import loss_of_runs
from app.ledger.runs.origins import ModelOrigin, Origins, origin_models, origin_runs
from app.ledger.runs.run import Run
from app.persistence.repositories import account_metadata, locks, run_origins, runs
from app.service.accounts.epsilons import delta_of_run, read_epsilons, read_epsilons_of
from app.service.auth.request_context import RequestContext
from app.service.queries.runs import Path, find_path, find_paths

MOST_ANCESTORS: Final = 1000
"""Maximum number of runs of a lineage; a longer one has no total."""

LATEST: Final = 20
"""Number of runs listed that start from a run."""


@dataclass(frozen=True, slots=True)
class Ancestor:
    """A run that another one starts from, directly or by others.

    Args:
        title: its path with its number; None: it lies outside of the caller's scope.
        generation: 1 if the run itself starts from it, 2 if such a run does, and so on; at most MOST_ANCESTORS.
        epsilon: of its own charges at `delta`, that of the limit which governs it.
        starts_from: as it declared; None: it did not.
    """

    run: str
    title: str | None
    status: str
    generation: int
    epsilon: float
    delta: float
    starts_from: Origins | None
    quarantined: bool


@dataclass(frozen=True, slots=True)
class LineageTotal:
    """What the runs of a lineage reveal together about one unit of a population.

    Args:
        epsilon: at `delta`; None: the lineage is too long to be composed.
        runs: number of its runs that charge the population.
    """

    population: AccountRecord
    epsilon: float | None
    delta: float
    runs: int


@dataclass(frozen=True, slots=True)
class Lineage:
    """What a run starts from, and what that started from.

    Args:
        starts_from: as the run declared; None: it did not.
        ancestors: sorted by generation.
        models: the outside models of the whole lineage, each with the runs that start from it.
        totals: for each population that the lineage charges, those of the run first.
        is_complete: whether no ancestor is left out.
    """

    starts_from: Origins | None
    ancestors: tuple[Ancestor, ...]
    models: Mapping[ModelOrigin, tuple[str, ...]]
    totals: tuple[LineageTotal, ...]
    is_complete: bool

    @property
    def undeclared(self) -> int:
        """Number of runs of the lineage, the run itself included, that do not say what they start from."""
        return sum(each is None for each in (self.starts_from, *(one.starts_from for one in self.ancestors)))


@dataclass(frozen=True, slots=True)
class LineageView:
    """The lineage of a run, and the newest runs that start from it.

    Args:
        successors: title of each by its id.
        successor_count: number of all that the caller sees.
    """

    lineage: Lineage
    successors: Mapping[str, str]
    successor_count: int


def view_lineage(context: RequestContext, run_id: str) -> LineageView:
    """Get the lineage of a run, and the newest runs that start from it."""
    with context.read() as tx:
        path = find_path(tx, context, run_id)
        whose, scope = context.organisation_id, context.principal.scope
        newest, count = run_origins.successors(tx, whose, run_id, scope, LATEST)
        numbers = account_metadata.numbers_of(tx, whose, newest)
        found = zip(newest, find_paths(tx, context, newest), strict=True)
        successors = {each: title_of(above[-1].account.path, numbers.get(each, 1)) for each, above in found}
        lineage = read_lineage(tx, context, runs.get(tx, whose, run_id), path)
    return LineageView(lineage, successors, count)


def read_lineage(tx: Connection, context: RequestContext, run: Run, path: Path) -> Lineage:
    """Read the lineage of a run in a constant number of statements.

    Args:
        tx: of the caller.
        context: whose scope decides which titles are shown.
        run: the run, readable by the caller.
        path: its account and ancestors.
    """
    whose, scope = context.organisation_id, context.principal.scope
    ids = run_origins.ancestors(tx, whose, run.account_id, MOST_ANCESTORS + 1)
    is_complete, ids = len(ids) <= MOST_ANCESTORS, ids[:MOST_ANCESTORS]
    known = {each.account_id: each for each in runs.get_many(tx, whose, ids)}
    paths = dict(zip(ids, find_paths(tx, context, ids), strict=True))
    numbers = account_metadata.numbers_of(tx, whose, ids)
    generations = _generations(run, known)
    deltas = [delta_of_run([record.account for record in paths[each]]) for each in ids]
    epsilons = read_epsilons(tx, whose, [(paths[each][-1], delta) for each, delta in zip(ids, deltas, strict=True)])
    found = [
        _ancestor(known[each], paths[each], numbers.get(each, 1), generations.get(each, MOST_ANCESTORS), scope, reading)
        for each, reading in zip(ids, zip(epsilons, deltas, strict=True), strict=True)
    ]
    return Lineage(
        run.declaration.starts_from,
        tuple(sorted(found, key=lambda each: (each.generation, each.run))),
        _models([run, *known.values()]),
        _totals(tx, whose, (path, *paths.values()), is_complete=is_complete),
        is_complete,
    )


def lineage_token(tx: Connection, context: RequestContext, run_id: str) -> tuple[object, ...]:
    """Get a token that changes with what the lineage of a run reveals, and with the runs that start from it."""
    whose = context.organisation_id
    ids = run_origins.ancestors(tx, whose, run_id, MOST_ANCESTORS)
    versions = [tuple(row) for row in locks.read_versions(tx, whose, ids)]
    return *sorted(versions), *run_origins.successors(tx, whose, run_id, context.principal.scope, 1)


def _generations(run: Run, known: Mapping[str, Run]) -> dict[str, int]:
    """Compute the distance of each ancestor from a run."""
    found: dict[str, int] = {}
    reached, generation = origin_runs(run.declaration.starts_from), 1
    while reached:
        new = [each for each in dict.fromkeys(reached) if each in known and each not in found]
        found |= dict.fromkeys(new, generation)
        reached = [above for each in new for above in origin_runs(known[each].declaration.starts_from)]
        generation += 1
    return found


def _ancestor(
    run: Run, path: Path, number: int, generation: int, scope: str | None, reading: tuple[float, float]
) -> Ancestor:
    """Describe an ancestor; `reading` is its epsilon, and the delta."""
    own = path[-1]
    seen = scope is None or any(record.account.id == scope for record in path)
    return Ancestor(
        run.account_id,
        title_of(own.account.path, number) if seen else None,
        str(run.status),
        generation,
        *reading,
        run.declaration.starts_from,
        own.quarantine is not None,
    )


def _models(lineage: Sequence[Run]) -> dict[ModelOrigin, tuple[str, ...]]:
    """Collect the outside models of runs, each with the runs that start from it."""
    found: dict[ModelOrigin, tuple[str, ...]] = {}
    for run in lineage:
        for model in origin_models(run.declaration.starts_from):
            found[model] = (*found.get(model, ()), run.account_id)
    return found


def _totals(
    tx: Connection, organisation_id: str, lineage: Sequence[Path], *, is_complete: bool
) -> tuple[LineageTotal, ...]:
    """Compose the charges of a lineage for each population, at the delta of the run's limit or of the population's.

    The first path is the run's own.
    """
    populations = {record.account.id: record for path in lineage for record in path if is_population(record.account)}
    charged, governing = {record.account.id for record in lineage[0]}, [record.account for record in lineage[0]]
    totals = []
    for key, record in populations.items():
        account = record.account
        delta = delta_of_run(governing) if key in charged or account.limit is None else account.limit.delta
        paths = [path for path in lineage if any(each.account.id == key for each in path)]
        total = None if not is_complete else _composed(tx, organisation_id, account, paths, delta)
        totals.append(LineageTotal(record, total, delta, len(paths)))
    return tuple(totals)


def _composed(tx: Connection, organisation_id: str, account: Account, paths: Sequence[Path], delta: float) -> float:
    """Compute the epsilon at delta of what runs have charged to a population, as if nothing else had."""
    counts = counts_that_matter(account.id, _counted(paths)) or ()
    [by_distributions] = read_epsilons_of(tx, organisation_id, account.relation, delta, [counts])
    loss = loss_of_runs(account, [[record.account for record in path] for path in paths])
    return min(by_distributions, epsilon_of_curve(orders(account.grid_version), loss, delta).epsilon)


def _counted(paths: Sequence[Path]) -> Iterator[CountedPart]:
    """Iterate over the runs of some paths with their counts, and the accounts above them without."""
    above: dict[str, CountedPart] = {}
    for path in paths:
        run = path[-1]
        budgets = tuple(each.id for each in budgets_of([record.account for record in path]))
        yield CountedPart(run.account.id, budgets, run.counts, None, is_run=True)
        for account in (record.account for record in path[:-1]):
            parents = () if account.parent_id is None else (account.parent_id,)
            above[account.id] = CountedPart(account.id, parents, None, account.parts_that_count, is_run=False)
    yield from above.values()


def is_population(account: Account) -> bool:
    """Whether an account is a population."""
    return account.kind is AccountKind.POPULATION
