"""The lineage of a run: what it starts from, what that started from, and what all of it reveals together."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from sqlalchemy import Connection

from app.accounting.conversion import epsilon_of_curve
from app.accounting.curves import RdpCurve, orders
from app.ledger.accounts.account import Account, AccountKind
from app.ledger.accounts.account_records import AccountRecord
from app.ledger.accounts.metadata import title_of
from app.ledger.admission.admission import governing_of
from app.ledger.admission.lineage_loss import loss_of_runs
from app.ledger.runs.origins import ModelOrigin, Origins, origin_models, origin_runs
from app.ledger.runs.run import Run
from app.persistence.repositories import account_metadata, locks, run_origins, runs
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
    found = [
        _ancestor(known[each], paths[each], numbers.get(each, 1), generations.get(each, MOST_ANCESTORS), scope)
        for each in ids
    ]
    return Lineage(
        run.declaration.starts_from,
        tuple(sorted(found, key=lambda each: (each.generation, each.run))),
        _models([run, *known.values()]),
        _totals(path, list(paths.values()), is_complete=is_complete),
        is_complete,
    )


def lineage_token(tx: Connection, context: RequestContext, run_id: str) -> tuple[object, ...]:
    """Get a token that changes with what the lineage of a run reveals, and with the runs that start from it."""
    whose = context.organisation_id
    ids = run_origins.ancestors(tx, whose, run_id, MOST_ANCESTORS)
    versions = [tuple(row) for row in locks.read_versions(tx, whose, ids)]
    return *sorted(versions), *run_origins.successors(tx, whose, run_id, context.principal.scope, 1)


def total_epsilon(curve: RdpCurve, grid_version: int, delta: float) -> float:
    """Compute the epsilon of releases that were fixed in advance from their composed curve, at the full delta.

    The one place where the charges of a lineage become an epsilon.
    """
    return epsilon_of_curve(orders(grid_version), curve, delta).epsilon


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


def _ancestor(run: Run, path: Path, number: int, generation: int, scope: str | None) -> Ancestor:
    own, accounts = path[-1], [record.account for record in path]
    governing = governing_of(accounts)
    assert governing.limit is not None, "it governs by its limit"
    delta = governing.limit.delta
    seen = scope is None or any(account.id == scope for account in accounts)
    return Ancestor(
        run.account_id,
        title_of(own.account.path, number) if seen else None,
        str(run.status),
        generation,
        total_epsilon(own.account.spent, own.account.grid_version, delta),
        delta,
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


def _totals(own: Path, others: Sequence[Path], *, is_complete: bool) -> tuple[LineageTotal, ...]:
    """Compose the charges of a lineage for each population, at the delta of the run's limit or of the population's."""
    lineage = [[record.account for record in path] for path in (own, *others)]
    populations = {
        record.account.id: record for path in (own, *others) for record in path if is_population(record.account)
    }
    charged = {record.account.id for record in own}
    governing = governing_of(lineage[0])
    totals = []
    for key, record in populations.items():
        account = record.account
        limit = governing.limit if key in charged else account.limit
        assert limit is not None, "a population has one, and so has what governs a run"
        paths = [path for path in lineage if any(each.id == key for each in path)]
        epsilon = None
        if is_complete:
            epsilon = total_epsilon(loss_of_runs(account, paths), account.grid_version, limit.delta)
        totals.append(LineageTotal(record, epsilon, limit.delta, len(paths)))
    return tuple(totals)


def is_population(account: Account) -> bool:
    """Whether an account is a population."""
    return account.kind is AccountKind.POPULATION
