"""What accounts are opened with, and what of that must hold."""

from collections.abc import Sequence
from dataclasses import asdict, dataclass

from sqlalchemy import Connection

from app.accounting.events import NeighboringRelation
from app.accounting.orders import GRID_VERSION
from app.ledger.accounts import Account, AccountKind, StepEvent, check_limit, zero_curve
from app.ledger.composition import REMOVAL_IS_BOUNDED, require_bounded_on_removal
from app.ledger.errors import InvalidInputError
from app.ledger.filters import FilterKind, Limit
from app.ledger.policy_checks import require_limit_allowed, require_relation, require_steps, sources_of
from app.ledger.windows import ALWAYS, Window
from app.persistence.repositories import accounts, organisations
from app.persistence.repositories.accounts import Population, planned_sha256
from app.persistence.repositories.partitions import Block
from app.service.accounts.partitions import ParallelSpec
from app.service.auth.request_context import RequestContext
from app.service.costing import PrecomputedCosts
from app.service.ids import new_id

ID_PREFIXES = {AccountKind.POPULATION: "pop", AccountKind.BUDGET: "bud", AccountKind.RUN: "run"}


@dataclass(frozen=True, slots=True)
class AccountSpec:
    """What an account is opened with.

    Args:
        name: unique among its siblings, for populations and budgets.
        limit: None only for a run.
        filter: how the limit is enforced.
        planned: the workload that adaptive weights are chosen for.
        parallel: what is said of its children, if they are disjoint parts.
        window: when something may be charged to it.
        block: the data that it stands for, if it is a block.
    """

    name: str
    limit: Limit | None
    filter: FilterKind
    planned: tuple[StepEvent, ...]
    parallel: ParallelSpec | None = None
    window: Window = ALWAYS
    block: Block | None = None


def new_account(
    tx: Connection,
    call: RequestContext,
    kind: AccountKind,
    parent: Account | None,
    terms: AccountSpec,
    relation: NeighboringRelation,
    *,
    depth: int = 0,
) -> Account:
    """A new account, nothing spent.

    Args:
        tx: the transaction in which it will be appended.
        call: who asks.
        kind: population, budget or run.
        parent: the account above; None for a population.
        terms: what it is opened with.
        relation: the population's.
        depth: beneath which it has to lie, if it is not its parent's: that of the deepest account above it.

    Returns:
        The account, not yet in the database.
    """
    prefix = ID_PREFIXES[kind]
    account_id = new_id(prefix, call.now, accounts.newest_id(tx, call.organisation_id, prefix))
    grid_version = parent.grid_version if parent else GRID_VERSION  # one charge is added to every curve of a path
    return Account(
        id=account_id,
        kind=kind,
        parent_id=parent.id if parent else None,
        population_id=parent.population_id if parent else account_id,
        name=terms.name,
        path=f"{parent.path}/{terms.name}" if parent else terms.name,
        depth=max(parent.depth, depth) + 1 if parent else 0,
        relation=relation,
        limit=terms.limit,
        filter=terms.filter,
        planned=terms.planned,
        weights=None,
        spent=zero_curve(grid_version),
        held=zero_curve(grid_version),
        grid_version=grid_version,
        partitions_per_unit=terms.parallel.partitions_per_unit if terms.parallel else None,
        parts_lose_units=terms.parallel is not None and terms.parallel.replacement_assumption == REMOVAL_IS_BOUNDED,
        window=terms.window,
        house_policy=None if parent else organisations.policy(tx, call.organisation_id)[0],
    )


def validate_spec(account: Account, population: Population, ready: PrecomputedCosts) -> Account:
    """Refuse terms that protect nobody, admit nothing, or plan what has no sound bound.

    Args:
        account: as proposed.
        population: at the root.
        ready: has the curves of what is planned.

    Returns:
        The account; with the weights of its filter, if it says what it plans.

    Raises:
        UnpreparedError: a planned event was not computed yet; caught by `prepared`.
        DeltaTooLargeError: delta is 1/size or more.
        LimitTooSmallError: nothing could ever be admitted.
        InvalidInputError: what is planned could never be admitted, not even in part of its size.
    """
    if account.limit is not None:
        check_limit(account.limit, account.filter, population.size, account.grid_version)
    ready.require(account, [step.event for step in account.planned])
    workload = zero_curve(account.grid_version)
    for step in account.planned:
        workload = workload + ready.curve(account, step.event).times(step.count)
    if account.planned and workload.is_exhausted:
        raise InvalidInputError(
            "The planned workload loses everything at every order: no filter can be tuned for it. Plan more noise or "
            "fewer repetitions, or leave `planned` out."
        )
    return account if workload.is_zero else account.with_workload(workload)


def require_dates(path: Sequence[Account], population: Population) -> None:
    """Let an account be opened that every policy above it allows.

    Args:
        path: its ancestors, root first, and itself.
        population: at the root.

    Raises:
        PolicyViolationError: the relation, the limit's delta, or what is planned is not allowed.
        UnsupportedEventError: a planned event has no bound where units may leave their parts.
    """
    sources, account = sources_of(path), path[-1]
    require_relation(sources, population.relation)
    if account.limit is not None:
        require_limit_allowed(sources, account.limit, population.size)
    planned = [step.event for step in account.planned]
    require_steps(sources, population.relation, planned)
    require_bounded_on_removal(path, planned)


def run_audit_payload(event: str | None, steps: int | None, steps_per_hour: float | None) -> dict[str, object]:
    """What the chain keeps of a run besides its account: the fingerprint of its event, and what it has declared."""
    return {"event": event, "declared_steps": steps, "declared_steps_per_hour": steps_per_hour}


def account_audit_payload(account: Account, population: Population | None) -> dict[str, object]:
    """What the chain keeps of an account: all that decides what it lets through.

    Args:
        account: as it is opened.
        population: given for a population only.
    """
    facts: dict[str, object] = {
        "kind": str(account.kind),
        "name": account.name,
        "path": account.path,
        "parent": account.parent_id,
        "population": account.population_id,
        "depth": account.depth,
        "limit": account.limit and asdict(account.limit),
        "filter": str(account.filter),
        "planned_sha256": planned_sha256(account.planned),
        "grid_version": account.grid_version,
    }
    if account.partitions_per_unit is not None:
        facts["max_partitions_per_unit"] = account.partitions_per_unit
    if account.window is not ALWAYS:
        facts["opens_at"] = account.window.opens_at and account.window.opens_at.isoformat()
        facts["closes_at"] = account.window.closes_at and account.window.closes_at.isoformat()
    if population is not None:
        facts["privacy_unit"] = population.privacy_unit
        facts["neighboring_relation"] = str(population.relation)
        facts["size"] = population.size
    return facts
