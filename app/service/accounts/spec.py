"""Specification of a new account and its validation."""

from collections.abc import Sequence
from dataclasses import asdict, dataclass

from sqlalchemy import Connection

from app.accounting.curves import GRID_VERSION
from app.accounting.events import NeighboringRelation
from app.ledger.account_records import Block, Population
from app.ledger.accounts import Account, AccountKind, StepEvent, zero_curve
from app.ledger.composition import REMOVAL_IS_BOUNDED, require_bounded_on_removal
from app.ledger.errors import InvalidInputError
from app.ledger.filters import FilterKind, Limit, check_limit
from app.ledger.policy_checks import require_limit_allowed, require_relation, require_steps, sources_of
from app.ledger.windows import ALWAYS, Window
from app.persistence.repositories import accounts, organisations
from app.persistence.repositories.account_values import planned_sha256
from app.service.accounts.partitions import ParallelSpec
from app.service.auth.request_context import RequestContext
from app.service.costing import PrecomputedCosts
from app.service.ids import new_id

ID_PREFIXES = {AccountKind.POPULATION: "pop", AccountKind.BUDGET: "bud", AccountKind.RUN: "run"}


@dataclass(frozen=True, slots=True)
class AccountSpec:
    """The specification of a new account; only a run may lack a limit.

    Adaptive weights are tuned for `planned`. `parallel` is set if its children are disjoint partitions, `block` if it
    represents a data block.
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
    context: RequestContext,
    kind: AccountKind,
    parent: Account | None,
    terms: AccountSpec,
    relation: NeighboringRelation,
    *,
    depth: int = 0,
) -> Account:
    """Build a new account with nothing spent; it is not yet written.

    `depth` is that of the deepest ancestor, if that is not the parent.
    """
    prefix = ID_PREFIXES[kind]
    account_id = new_id(prefix, context.now, accounts.newest_id(tx, context.organisation_id, prefix))
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
        organisation_policy=None if parent else organisations.policy(tx, context.organisation_id)[0],
    )


def validate_spec(account: Account, population: Population, ready: PrecomputedCosts) -> Account:
    """Validate limit and planned workload, and tune the filter's weights to the plan.

    Raises:
        CostNotReadyError: a planned event has no cost yet; `run_with_costs` catches it.
        DeltaTooLargeError: delta is 1/size or more.
        LimitTooSmallError: no step could ever be admitted.
        InvalidInputError: no filter can be tuned to the planned workload.
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
    """Require that every policy on an account's path allows its terms.

    Raises:
        PolicyViolationError: a policy forbids the relation, the limit's delta or a planned event.
        UnsupportedEventError: a planned event has no bound where units may leave their partitions.
    """
    sources, account = sources_of(path), path[-1]
    require_relation(sources, population.relation)
    if account.limit is not None:
        require_limit_allowed(sources, account.limit, population.size)
    planned = [step.event for step in account.planned]
    require_steps(sources, population.relation, planned)
    require_bounded_on_removal(path, planned)


def run_audit_payload(event: str | None, steps: int | None, steps_per_hour: float | None) -> dict[str, object]:
    """Build the part of an audit payload that only runs have."""
    return {"event": event, "declared_steps": steps, "declared_steps_per_hour": steps_per_hour}


def account_audit_payload(account: Account, population: Population | None) -> dict[str, object]:
    """Build the audit payload of a new account; `population` only for a population."""
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
