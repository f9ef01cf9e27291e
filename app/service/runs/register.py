"""The registration of runs."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from sqlalchemy import Connection

from app.accounting.events import DpEvent, NeighboringRelation, fingerprint
from app.ledger.accounts import Account, AccountKind, StepEvent
from app.ledger.admission import Refusal
from app.ledger.audit_actions import AuditAction
from app.ledger.composition import budgets_of, check_several, require_charged_directly
from app.ledger.errors import InvalidInputError, PrivacyUnitMismatchError, RelationMismatchError
from app.ledger.hash_chain import genesis
from app.ledger.permissions import Permission
from app.ledger.policy_checks import Size, require_run, sources_of
from app.ledger.runs import Run, RunStatus
from app.ledger.windows import require_open
from app.persistence.repositories import account_writes, accounts, runs
from app.persistence.repositories.accounts import AccountRecord, Population
from app.service.accounts.lookup import find_parent
from app.service.accounts.partitions import budget_payload
from app.service.accounts.spec import AccountSpec, account_audit_payload, new_account, run_audit_payload, validate_spec
from app.service.audit_log import AuditEvent
from app.service.auth.request_context import RequestContext
from app.service.charging.loading import load_for
from app.service.charging.refusing import refusal_details, refusal_event
from app.service.charging.saving import save
from app.service.costing import PrecomputedCosts
from app.service.governance.run_policy_checks import (
    largest,
    needs_approval,
    propose_run,
    require_policy_compliance,
    size_of,
)
from app.service.governance.unapproved import find_excess
from app.service.idempotency import IdempotentRequest, ResponseOverride, StoredResponse, run_idempotent
from app.service.queries.runs import RunRecord, read_run
from app.service.reservations.create import PlanRequest, hold_plan


@dataclass(frozen=True, slots=True)
class RunDeclaration:
    """What a trainer says of a run when it registers it.

    Args:
        budgets: ids, or paths of names; the run's name stands beneath the first.
        event: what a step costs unless the request says otherwise.
        privacy_unit: what the trainer protects; None: whatever the population's is.
        relation: what its mechanism is calibrated for; None: whatever the population's is.
        steps_per_hour: how fast it goes at the most; None: it does not say.
    """

    budgets: tuple[str, ...]
    event: DpEvent | None
    privacy_unit: str | None
    relation: NeighboringRelation | None
    steps_per_hour: float | None = None


@dataclass(frozen=True, slots=True)
class RegisteredRun:
    """A new run.

    Args:
        declaration: budgets, default event, privacy unit, relation.
        terms: name, optional limit of its own, filter, planned workload.
        plan: what is to be set aside for it at once, unless it waits for an approval; empty: nothing.
        lease_seconds: how long its trainer may be silent about the plan.
        bounded: whether it can spend no more than it plans, as if that were its limit.
    """

    declaration: RunDeclaration
    terms: AccountSpec
    plan: tuple[StepEvent, ...]
    lease_seconds: int
    bounded: bool = False


def register_run(
    call: RequestContext,
    registration: RegisteredRun,
    identity: IdempotentRequest,
    render: Callable[[RunRecord], str],
    refuse: Callable[[Refusal], ResponseOverride],
) -> StoredResponse:
    """Register a training run beneath a budget, or beneath several: each of its steps is charged to all or to none.

    A run that needs another person's approval is pending, and nothing is set aside for it: its lease would run out
    while it waits, and what nobody may release would be forfeited.

    Args:
        call: needs RUN_MANAGE.
        registration: what the trainer says of the run.
        identity: of the request.
        render: makes the reply's body.
        refuse: makes the reply to a plan that does not fit; then there is no run.

    Returns:
        The reply.

    Raises:
        NotFoundError: there is no such budget.
        InvalidInputError: what is named is no budget that a run can charge, or not together with the others.
        BudgetClosedError: a budget is not open, or an account above it.
        PrivacyUnitMismatchError: the trainer, or another population, protects another unit.
        RelationMismatchError: its mechanism is calibrated for another relation, or another population is kept under it.
        UnsupportedEventError: an event has no sound bound under the relation.
        DeltaTooLargeError: the run's own delta is 1/size or more.
        LimitTooSmallError: the run's own limit could never admit anything.
        PolicyViolationError: a policy does not allow it.
    """
    call.require_permission(Permission.RUN_MANAGE)

    def create(tx: Connection, ready: PrecomputedCosts) -> str | ResponseOverride:
        before = tx.begin_nested()
        opened = insert_run(tx, call, registration, ready)
        if isinstance(opened, Refusal):
            before.rollback()
            budget = find_parent(tx, call, registration.declaration.budgets[0]).account.id
            count = sum(step.count for step in registration.plan)
            call.record(
                tx, refusal_event(AuditAction.RUN_REFUSED, budget, count, opened.binding.id, refusal_details(opened))
            )
            return refuse(opened)
        before.commit()
        return render(read_run(tx, call, opened, ready))

    return run_idempotent(call, identity, create)


def insert_run(
    tx: Connection, call: RequestContext, registration: RegisteredRun, ready: PrecomputedCosts
) -> str | Refusal:
    """Register a run in a transaction that has locked the organisation; as `register_run`, by a caller who may.

    Returns:
        Its id; or why its plan does not fit, and then the caller rolls back what was written.
    """
    declaration, terms = registration.declaration, registration.terms
    charged = _charged(tx, call, declaration.budgets)
    for budget in charged:
        _check_declaration(declaration, budget.record.population)
    ancestors = _in_order([account for budget in charged for account in budget.path])
    require_open(ancestors, call.now)
    first = charged[0].record
    account = new_account(
        tx, call, AccountKind.RUN, first.account, terms, first.account.relation, depth=ancestors[-1].depth
    )
    for budget in charged:
        account = validate_spec(account, budget.record.population, ready)
    if declaration.event is not None:
        ready.require(account, [declaration.event])
    path = [*ancestors, account]
    for budget in charged:
        require_policy_compliance(path, budget.record.population, declaration.event, registration.plan)
    planned = registration.plan or terms.planned
    sizes = [size_of([*budget.path, account], planned, ready) for budget in charged]
    limited = account.limit is not None or registration.bounded
    for size in sizes:
        require_run(sources_of(path), size, limited=limited, planned=bool(planned))
    size = largest(sizes)
    excess = None
    if not needs_approval(path, size):
        excess = find_excess(tx, call, ancestors, _promised(charged, account, size, bounded=registration.bounded))
    status = RunStatus.PENDING if excess or needs_approval(path, size) else RunStatus.ACTIVE
    account_writes.add(tx, call.organisation_id, account, ancestors, None, call.now)
    head = genesis(call.organisation_id, account.id)
    run = Run(account.id, status, declaration.event, 1, next_step=0, decisions=0, chain_head=head)
    run = replace(
        run,
        declared_steps=sum(step.count for step in planned) or None,
        declared_steps_per_hour=declaration.steps_per_hour,
    )
    runs.add(tx, call.organisation_id, run, call.now)
    _record_registration(tx, call, path, run)
    if status is RunStatus.PENDING:
        propose_run(tx, call, path, size, excess, planned=bool(planned))
    elif registration.plan:
        return _hold_plan(tx, call, account.id, registration, ready) or account.id
    return account.id


def _record_registration(tx: Connection, call: RequestContext, path: Sequence[Account], run: Run) -> None:
    """Record a run as its rows keep it: its budgets in their order, not in that of the request."""
    account = path[-1]
    facts = account_audit_payload(account, None) | budget_payload([budget.id for budget in budgets_of(path)])
    event = None if run.event is None else fingerprint(run.event)
    facts |= run_audit_payload(event, run.declared_steps, run.declared_steps_per_hour)
    call.record(tx, AuditEvent(AuditAction.RUN_CREATED, account.id, after=facts | {"status": str(run.status)}))


@dataclass(frozen=True, slots=True)
class _Charged:
    """A budget that a run will charge, and its path, root first and itself last."""

    record: AccountRecord
    path: tuple[Account, ...]


def _promised(charged: Sequence[_Charged], account: Account, size: Size, *, bounded: bool) -> float:
    """The epsilon that a run cannot pass: of its own limit, else of its budgets; a plan binds a sweep only."""
    if account.limit is not None or bounded:
        return size.epsilon
    return max(budget.path[-1].limit.epsilon for budget in charged if budget.path[-1].limit is not None)


def _charged(tx: Connection, call: RequestContext, names: Sequence[str]) -> list[_Charged]:
    """The budgets that a run names, if it can charge all of them at once; they are locked in the global order."""
    found = [find_parent(tx, call, name) for name in names]
    for name, record in zip(names, found, strict=True):
        require_charged_directly(record.account, name)
    if len({record.account.id for record in found}) < len(found):
        raise InvalidInputError("A budget is named twice; each of them is charged once anyway.")
    if len(found) > 1:  # one path is locked as it is read
        accounts.lock_above(tx, call.organisation_id, [record.account.id for record in found])
    charged = []
    for record in found:
        path = accounts.path_of(tx, call.organisation_id, record.account.id)
        charged.append(_Charged(record, tuple(above.account for above in path)))
    check_several({budget.record.account.path: budget.path for budget in charged})
    for budget in charged[1:]:
        _check_alike(charged[0].record, budget.record)
    return charged


def _in_order(found: Sequence[Account]) -> list[Account]:
    """Accounts by depth and id, each once."""
    return sorted({account.id: account for account in found}.values(), key=lambda account: (account.depth, account.id))


def _check_alike(first: AccountRecord, other: AccountRecord) -> None:
    """Refuse budgets whose populations a step does not cost the same."""
    names = f"{first.account.path} and {other.account.path}"
    if first.population.privacy_unit != other.population.privacy_unit:
        raise PrivacyUnitMismatchError(
            f"One run cannot charge {names}: the one is counted by {first.population.privacy_unit!r}, the other by "
            f"{other.population.privacy_unit!r}.",
            privacy_unit=first.population.privacy_unit,
        )
    if first.population.relation is not other.population.relation:
        raise RelationMismatchError(
            f"One run cannot charge {names}: the one is kept under {first.population.relation}, the other under "
            f"{other.population.relation}. Register a run for each.",
            neighboring_relation=str(first.population.relation),
        )
    if first.account.grid_version != other.account.grid_version:
        raise InvalidInputError(
            f"One run cannot charge {names}: they were opened under different versions of the grid of orders "
            f"({first.account.grid_version} and {other.account.grid_version}). Register a run for each."
        )


def _hold_plan(
    tx: Connection, call: RequestContext, run_id: str, registration: RegisteredRun, ready: PrecomputedCosts
) -> Refusal | None:
    """Set the plan of a new run aside; None if it fits."""
    work = load_for(tx, call, run_id)
    request = PlanRequest(run_id, registration.plan, registration.lease_seconds, attempt=1)
    held = hold_plan(work, call, request, ready)
    if isinstance(held, Refusal):
        return held
    save(work)
    return None


def _check_declaration(declaration: RunDeclaration, population: Population) -> None:
    if declaration.privacy_unit not in {None, population.privacy_unit}:
        raise PrivacyUnitMismatchError(
            f"The run protects each {declaration.privacy_unit!r}, but this population is counted by "
            f"{population.privacy_unit!r}.",
            privacy_unit=population.privacy_unit,
        )
    if declaration.relation not in {None, population.relation}:
        raise RelationMismatchError(
            f"The run's mechanism is calibrated for {declaration.relation}, but this population is kept "
            f"under {population.relation}.",
            neighboring_relation=str(population.relation),
        )
