"""Registration of runs."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime

from sqlalchemy import Connection

from app.accounting.events import DpEvent, NeighboringRelation, fingerprint
from app.ledger.accounts.account import Account, AccountKind
from app.ledger.accounts.account_records import AccountRecord, Population
from app.ledger.admission.admission import Refusal
from app.ledger.admission.composition import budgets_of, check_several, require_charged_directly
from app.ledger.audit import AuditAction
from app.ledger.errors import InvalidInputError, PrivacyUnitMismatchError, RelationMismatchError
from app.ledger.governance.policy_checks import Size, require_open, require_origins, require_run, sources_of
from app.ledger.governance.registered_steps import registered_steps
from app.ledger.permissions import Permission
from app.ledger.runs.decisions import genesis
from app.ledger.runs.reservations import Reservation, ReservationStatus
from app.ledger.runs.run import NOTHING_DECLARED, Run, RunDeclaration, RunStatus, registration_payload
from app.ledger.step_events import StepEvent, planned_steps
from app.persistence.repositories import account_writes, accounts, runs
from app.service.accounts.lookup import find_parent
from app.service.accounts.metadata import require_unarchived
from app.service.accounts.spec import (
    AccountSpec,
    account_audit_payload,
    budget_payload,
    check_account_limit,
    metadata_payload,
    new_account,
    with_plan,
)
from app.service.accounts.tuning import keep_costs, tune
from app.service.auth.request_context import RequestContext
from app.service.auth.use_cases import use_case
from app.service.charging.requests import refusal_payload
from app.service.governance.run_approvals import (
    find_excess,
    largest,
    needs_approval,
    propose_run,
    require_policy_compliance,
    size_of,
)
from app.service.keys.api_keys import bind_to_run
from app.service.queries.runs import RunRecord, read_run
from app.service.reservations import ReservationRequest, load_reservation, reserve
from app.service.runs.origins import resolve_origins
from app.service.scheduling.arrivals import record_queued


@dataclass(frozen=True, slots=True)
class RunRegistration:
    """The registration of a run by its trainer.

    Args:
        budgets: ids or paths; the first is the run's parent.
        event: default event of a step.
        reserve: steps to reserve at registration for `lease_seconds`, unless the run needs approval.
        wait_until: until when the run waits for its reservation if that does not fit; None: then it is refused.
        privacy_unit: None: the population's.
        relation: that its mechanism is calibrated for; None: the population's.
        declaration: without a number of steps, the run's is that of the reserved or planned events.
        bounded: whether the planned steps cap the spend as a limit would.
    """

    budgets: tuple[str, ...]
    terms: AccountSpec
    event: DpEvent | None
    reserve: tuple[StepEvent, ...] = ()
    lease_seconds: int = 0
    privacy_unit: str | None = None
    relation: NeighboringRelation | None = None
    declaration: RunDeclaration = NOTHING_DECLARED
    bounded: bool = False
    wait_until: datetime | None = None


@use_case(Permission.RUN_MANAGE)
def register_run(tx: Connection, context: RequestContext, registration: RunRegistration) -> RunRecord | Refusal:
    """Register a run that charges each step to all its budgets or none.

    A run that needs approval is pending and reserves nothing: the lease could expire before the approval and forfeit
    the steps. Steps that do not fit create no run.

    Raises:
        InvalidInputError: an account cannot be charged by a run, or not together with the others.
        AccountArchivedError: a budget or one of its ancestors is archived.
        AccountClosedError: a budget or one of its ancestors is not open.
        PrivacyUnitMismatchError: declaration and populations name different privacy units.
        RelationMismatchError: declaration and populations name different relations.
        NotFoundError: a budget, or a run that it starts from, is unknown.
        Also those of `check_account_limit`, `with_plan` and `require_policy_compliance`.
    """
    before = tx.begin_nested()
    opened = insert_run(tx, context, registration)
    if isinstance(opened, Refusal):
        before.rollback()
        budget = find_parent(tx, context, registration.budgets[0]).account.id
        context.record(tx, AuditAction.RUN_REFUSED, budget, after=refusal_payload(opened, registration.reserve))
        return opened
    before.commit()
    return read_run(tx, context.bound_to(opened), opened)


def insert_run(tx: Connection, context: RequestContext, registration: RunRegistration) -> str | Refusal:
    """Insert a run as `register_run`; the organisation is locked and the caller authorised.

    Returns the run's id, or the refusal of its reservation; the caller then rolls back.
    """
    charged = _charged(tx, context, registration.budgets)
    for budget in charged:
        require_unarchived(tx, context, budget.record.account.id)
        _check_declaration(registration, budget.record.population)
    _check_expected_steps(registration)
    ancestors = _in_order([account for budget in charged for account in budget.path])
    require_open(ancestors, context.now, registration.wait_until)
    declaration = _declared(tx, context, registration)
    first, terms = charged[0].record.account, registration.terms
    account = new_account(tx, context, AccountKind.RUN, first, terms, first.relation, depth=ancestors[-1].depth)
    for budget in charged:
        check_account_limit(account, budget.record.population)
    if registration.event is not None:
        context.costs.require(account, [registration.event])
    account = with_plan(account, ancestors, context.costs, registration.event)
    path = [*ancestors, account]
    for budget in charged:
        require_policy_compliance(path, budget.record.population, registration.event, registration.reserve)
    planned = registration.reserve or terms.planned
    sizes = [size_of([*budget.path, account], planned, context.costs) for budget in charged]
    limited = account.limit is not None or registration.bounded
    for size in sizes:
        require_run(sources_of(path), size, limited=limited, planned=bool(planned))
    require_origins(sources_of(path), declaration.starts_from)
    size = largest(sizes)
    excess = None
    if not needs_approval(path, size):
        excess = find_excess(tx, context, ancestors, _promised(charged, account, size, bounded=registration.bounded))
    status = RunStatus.PENDING if excess or needs_approval(path, size) else RunStatus.ACTIVE
    whose = context.organisation_id
    number = account_writes.add(tx, whose, account, ancestors, None, context.now, metadata=terms.metadata)
    run = Run(
        account.id,
        status,
        registration.event,
        attempt=1,
        next_step=0,
        decisions=0,
        chain_head=genesis(context.organisation_id, account.id),
        declaration=declaration,
    )
    runs.add(tx, context.organisation_id, run, context.now)
    declared = registered_steps(account.planned, run.event, run.declaration.expected_steps)
    keep_costs(tx, context, account, {step.event for step in declared})
    tuned = tune(tx, context, path)
    bind_to_run(tx, context, account.id)
    context = context.bound_to(account.id)
    held = None if status is RunStatus.PENDING else _reserve_steps(tx, context, account.id, registration)
    if isinstance(held, Refusal):
        return held
    waits = held is not None and held.status is ReservationStatus.WAITING
    registered = run._replace(status=RunStatus.WAITING) if waits else run
    _record_registration(tx, context, path, registered, metadata_payload(number, terms.metadata) | tuned)
    if status is RunStatus.PENDING:
        propose_run(tx, context, path, size, excess, planned=bool(planned))
    elif held is not None and waits:
        record_queued(tx, context, held)
    return account.id


def _declared(tx: Connection, context: RequestContext, registration: RunRegistration) -> RunDeclaration:
    """Complete a declaration: the number of steps by those planned, and the ids of the runs that it starts from."""
    declared, planned = registration.declaration, registration.reserve or registration.terms.planned
    return replace(
        declared,
        expected_steps=declared.expected_steps or planned_steps(planned),
        starts_from=resolve_origins(tx, context, declared.starts_from),
    )


def _reserve_steps(
    tx: Connection, context: RequestContext, run_id: str, registration: RunRegistration
) -> Reservation | Refusal | None:
    """Reserve the steps of a new run, or let them wait; None: it reserves none."""
    if not registration.reserve:
        return None
    wait_until = registration.wait_until
    request = ReservationRequest(
        run_id, registration.reserve, registration.lease_seconds, attempt=1, wait_until=wait_until
    )
    return reserve(tx, load_reservation(tx, context, request), context, request, registers=True)


def _record_registration(
    tx: Connection, context: RequestContext, path: Sequence[Account], run: Run, written: Mapping[str, object]
) -> None:
    """Record a run with its budgets in stored order, which replay can reproduce.

    `written` is its metadata, and the weights of filters that were tuned to it.
    """
    account = path[-1]
    facts = account_audit_payload(account, None) | budget_payload([budget.id for budget in budgets_of(path)])
    event = None if run.event is None else fingerprint(run.event)
    facts |= registration_payload(event, run.declaration)
    context.record(tx, AuditAction.RUN_CREATED, account.id, after={**facts, **written, "status": str(run.status)})


@dataclass(frozen=True, slots=True)
class _Charged:
    """A budget to be charged, and its path, root first and itself last."""

    record: AccountRecord
    path: tuple[Account, ...]


def _promised(charged: Sequence[_Charged], account: Account, size: Size, *, bounded: bool) -> float:
    """Get a run's maximum epsilon; a plan caps only a bounded run."""
    if account.limit is not None or bounded:
        return size.epsilon
    return max(budget.path[-1].limit.epsilon for budget in charged if budget.path[-1].limit is not None)


def _charged(tx: Connection, context: RequestContext, names: Sequence[str]) -> list[_Charged]:
    """Find and lock the budgets of a run, in the global lock order."""
    found = [find_parent(tx, context, name) for name in names]
    for name, record in zip(names, found, strict=True):
        require_charged_directly(record.account, name)
    if len({record.account.id for record in found}) < len(found):
        raise InvalidInputError("A budget is named twice; each of them is charged once anyway.")
    if len(found) > 1:  # one path is locked as it is read
        accounts.lock_above(tx, context.organisation_id, [record.account.id for record in found])
    charged = []
    for record in found:
        path = accounts.path_of(tx, context.organisation_id, record.account.id)
        charged.append(_Charged(record, tuple(above.account for above in path)))
    check_several({budget.record.account.path: budget.path for budget in charged})
    for budget in charged[1:]:
        _check_alike(charged[0].record, budget.record)
    return charged


def _in_order(found: Sequence[Account]) -> list[Account]:
    """Sort accounts by depth and id, without duplicates."""
    return sorted({account.id: account for account in found}.values(), key=lambda account: (account.depth, account.id))


def _check_alike(first: AccountRecord, other: AccountRecord) -> None:
    """Refuse budgets whose populations need different costs for one step."""
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


def _check_expected_steps(registration: RunRegistration) -> None:
    """Refuse a training that is shorter than what it reserves or plans."""
    expected = registration.declaration.expected_steps
    for name, steps in (("reserve", registration.reserve), ("planned", registration.terms.planned)):
        count = planned_steps(steps)
        if expected is not None and count is not None and count > expected:
            raise InvalidInputError(
                f"`expected_steps` is {expected}, and `{name}` has {count} steps. Send the number of all steps of the "
                "training."
            )


def _check_declaration(registration: RunRegistration, population: Population) -> None:
    if registration.privacy_unit not in {None, population.privacy_unit}:
        raise PrivacyUnitMismatchError(
            f"The run protects each {registration.privacy_unit!r}, but this population is counted by "
            f"{population.privacy_unit!r}.",
            privacy_unit=population.privacy_unit,
        )
    if registration.relation not in {None, population.relation}:
        raise RelationMismatchError(
            f"The run's mechanism is calibrated for {registration.relation}, but this population is kept "
            f"under {population.relation}.",
            neighboring_relation=str(population.relation),
        )
