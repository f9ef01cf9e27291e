"""Specification of a new account, its validation, and its audit payload."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

from sqlalchemy import Connection

from app.accounting.curves import GRID_VERSION
from app.accounting.errors import UnsupportedEventError
from app.accounting.events import DpEvent, NeighboringRelation
from app.accounting.pricing_effort import MAX_PLAN_WORK
from app.ledger.accounts.account import Account, AccountKind, zero_curve
from app.ledger.accounts.account_records import Attestation, Block, Population
from app.ledger.accounts.metadata import NO_METADATA, Metadata
from app.ledger.admission.composition import MAX_PARTITIONS, REMOVAL_IS_BOUNDED, counting_plans
from app.ledger.errors import InvalidInputError
from app.ledger.filter.filters import check_limit
from app.ledger.filter.limits import Limit
from app.ledger.governance.filter_weights import DECLARED_SHARE, DEFAULT_SHARE, planned_weights
from app.ledger.governance.policy_checks import (
    require_bounded_on_removal,
    require_limit_allowed,
    require_relation,
    require_steps,
    sources_of,
)
from app.ledger.governance.unit_checks import require_priced
from app.ledger.plan.plan_filter import workload_of
from app.ledger.settings.windows import ALWAYS, Window
from app.ledger.step_events import MAX_COUNT, StepEvent
from app.persistence.repositories import accounts, organisations, partitions
from app.persistence.repositories.account_values import planned_sha256
from app.service.auth.request_context import RequestContext
from app.service.costing import PrecomputedCosts
from app.service.ids import new_id
from app.service.worker_pool import Job

ID_PREFIXES = {AccountKind.POPULATION: "pop", AccountKind.BUDGET: "bud", AccountKind.RUN: "run"}


@dataclass(frozen=True, slots=True)
class ParallelSpec:
    """The attestation that an account's children are disjoint partitions.

    Args:
        partitions_per_unit: number of partitions that one privacy unit may be in.
        attestation: why they are disjoint and chosen independently of the data.
        replacement_assumption: effect of replacing a unit; only for replace_one.
    """

    partitions_per_unit: int
    attestation: str | None
    replacement_assumption: str | None


@dataclass(frozen=True, slots=True)
class AccountSpec:
    """The specification of a new account; only a run may lack a limit.

    `planned` is the plan of an account with a limit; the last event may have no end. `parallel` is set if its children
    are disjoint partitions, `block` if it represents a data block.
    """

    name: str
    limit: Limit | None
    planned: tuple[StepEvent, ...]
    parallel: ParallelSpec | None = None
    window: Window = ALWAYS
    block: Block | None = None
    metadata: Metadata = NO_METADATA


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


def check_account_limit(account: Account, population: Population) -> None:
    """Check the limit of an account, if it has one, for one of its populations.

    Raises:
        DeltaTooLargeError: delta is 1/size or more.
        LimitTooSmallError: no step could ever be admitted.
    """
    if account.limit is not None:
        check_limit(account.limit, population.size, account.grid_version)


def with_plan(
    account: Account, ancestors: Sequence[Account], costs: PrecomputedCosts, default: DpEvent | None = None
) -> Account:
    """Freeze the plan of a new account, and let it count what it uses up of plans.

    Args:
        account: new, with its planned events.
        ancestors: by depth and id.
        costs: precomputed.
        default: the default event of a run, which is its plan if it has a limit and declares no other.

    Raises:
        CostNotReadyError: the plan must be computed first; `RequestContext.run_with_costs` catches it.
        UnsupportedEventError: a planned event has no sound bound under the relation, or cannot be planned.
        PlanTooExpensiveError: to freeze the plan would take more work than a request may take.
        InvalidInputError: no filter can be tuned to the planned workload.
    """
    share = DECLARED_SHARE
    tuned = account.limit is not None and not account.limit.is_exact
    if default is not None and not account.planned and tuned and _is_plannable(account, default):
        account, share = replace(account, planned=(StepEvent(default, MAX_COUNT),)), DEFAULT_SHARE
    events = [step.event for step in account.planned]
    costs.require(account, events)
    curves = [costs.curve(account, event) for event in events]
    if curves and all(curve.is_exhausted for curve in curves):
        raise InvalidInputError(
            "The planned workload loses everything at every order: no filter can be tuned for it. Plan more noise or "
            "fewer repetitions, or leave `planned` out."
        )
    if account.limit is not None and tuned and any(not curve.is_zero for curve in curves):
        rule = (account.relation, account.grid_version)
        choice = Job(planned_weights, (account.limit, account.planned, *rule, share), MAX_PLAN_WORK)
        account = replace(account, weights=costs.filter_weights(choice))
    return counting_plans(account, ancestors)


def _is_plannable(account: Account, event: DpEvent) -> bool:
    try:
        workload_of((StepEvent(event, MAX_COUNT),), account.relation)
    except UnsupportedEventError:
        return False
    return True


def require_dates(path: Sequence[Account], population: Population) -> None:
    """Require that every policy on an account's path allows its terms.

    Raises:
        PolicyViolationError: a policy forbids the relation, the limit's delta or a planned event.
        UnsupportedEventError: a planned event has no bound where units may leave their partitions, or no value in the
            unit of a limit.
    """
    sources, account = sources_of(path), path[-1]
    require_relation(sources, population.relation)
    if account.limit is not None:
        require_limit_allowed(sources, account.limit, population.size)
    planned = [step.event for step in account.planned]
    require_steps(sources, population.relation, planned)
    require_bounded_on_removal(path, planned)
    require_priced(path, planned)


def build_attestation(
    context: RequestContext, said: ParallelSpec, relation: NeighboringRelation, by: str | None = None
) -> Attestation:
    """Build the attestation of an account composed in parallel.

    Raises:
        InvalidInputError: the attestation is missing, or the relation needs or forbids the replacement assumption.
    """
    if said.attestation is None or not said.attestation.strip():
        raise InvalidInputError(
            "`composition` is parallel, so an `attestation` is needed: say why the parts are disjoint and chosen "
            'independently of the data, such as "each patient is treated at one site; sites were fixed beforehand".',
            field="attestation",
        )
    if relation is NeighboringRelation.REPLACE_ONE:
        if said.replacement_assumption is None:
            raise InvalidInputError(
                "Under replace_one a replaced unit may leave one part and enter another. Say in "
                "`replacement_assumption` either stay_in_their_parts (a unit's place fixes its part, whatever is "
                "there) or removal_is_bounded (the mechanisms of a part bound what it loses when a unit leaves or "
                "enters).",
                field="replacement_assumption",
            )
    elif said.replacement_assumption is not None:
        raise InvalidInputError(
            f"`replacement_assumption` applies to the relation replace_one only; this one is {relation}.",
            field="replacement_assumption",
        )
    return Attestation(said.attestation, said.replacement_assumption, by or context.principal.actor, context.now)


def check_part(tx: Connection, context: RequestContext, parent: Account, block: Block | None) -> None:
    """Check that a parent has room for a budget and its block.

    Raises:
        InvalidInputError: the parent has the maximum of partitions, the parent of a block is not composed in parallel,
            or the block overlaps another one.
    """
    if parent.partitions_per_unit is None:
        if block is not None:
            raise InvalidInputError(
                f"A block is a part of an account that is composed in parallel, and {parent.path} is not: the "
                "spending of its children adds up. Create the block under a parallel population or budget.",
                field="block",
            )
        return
    siblings = [record.account for record in accounts.children(tx, context.organisation_id, [parent.id])]
    if len(siblings) >= MAX_PARTITIONS:
        raise InvalidInputError(f"{parent.path} has {MAX_PARTITIONS} parts already, the most that an account may have.")
    if block is None:
        return
    taken = partitions.blocks_of(tx, context.organisation_id, [sibling.id for sibling in siblings])
    for sibling in siblings:
        other = taken.get(sibling.id)
        if other is not None and other.data_from < block.data_to and block.data_from < other.data_to:
            raise InvalidInputError(
                f"The block overlaps {sibling.path}, which has the data from {other.data_from.isoformat()} to "
                f"{other.data_to.isoformat()}. Blocks of one account are disjoint.",
                field="block",
            )


def account_audit_payload(account: Account, population: Population | None) -> dict[str, object]:
    """Build the audit payload of a new account; `population` only for a population."""
    facts: dict[str, object] = {
        "kind": str(account.kind),
        "name": account.name,
        "path": account.path,
        "parent": account.parent_id,
        "population": account.population_id,
        "depth": account.depth,
        "limit": account.limit and account.limit.facts(),
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


def metadata_payload(number: int, metadata: Metadata) -> dict[str, object]:
    """Build the part of an audit payload about metadata, and about the number of a run that is not the first."""
    facts: dict[str, object] = {"metadata": metadata.payload()} if metadata != NO_METADATA else {}
    return facts if number == 1 else facts | {"number": number}


def partition_payload(said: Attestation | None, block: Block | None) -> dict[str, object]:
    """Build the part of an audit payload about attestation and block."""
    facts: dict[str, object] = {}
    if said is not None:
        facts["attestation"] = said.text
        facts["replacement_assumption"] = said.replacement_assumption
        facts["attested_by"] = said.attested_by
        facts["attested_at"] = said.attested_at.isoformat()
    if block is not None:
        facts["block"] = [block.data_from.isoformat(), block.data_to.isoformat(), block.label]
    return facts


def budget_payload(budgets: Sequence[str]) -> dict[str, object]:
    """Build the audit payload of several budgets of a run."""
    return {"budgets": list(budgets)} if len(budgets) > 1 else {}
