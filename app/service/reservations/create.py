"""A plan is set aside at once, or refused at once; it may follow on the one before it."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from datetime import timedelta

from sqlalchemy import Connection

from app.ledger.accounts import Account, StepEvent, total_cost
from app.ledger.admission import Reading, Refusal, hold, reading_of, repetitions_left
from app.ledger.audit_actions import AuditAction
from app.ledger.composition import require_bounded_on_removal
from app.ledger.errors import NotFoundError, ReservationStateConflictError
from app.ledger.permissions import Permission
from app.ledger.plans import plan_of
from app.ledger.policy_checks import require_declared, require_steps, sources_of
from app.ledger.reservations import Reservation, ReservationStatus, commit, forfeit, has_lapsed
from app.ledger.runs import require_active, require_attempt
from app.ledger.windows import require_open
from app.persistence.repositories import reservations
from app.service.auth.request_context import RequestContext
from app.service.charging.close import close_reservation
from app.service.charging.loading import load_for
from app.service.charging.refusing import refusal_details, refusal_event, with_limit_change
from app.service.charging.saving import save
from app.service.charging.unit_of_work import UnitOfWork
from app.service.charging.watching import find_deviations, require_no_sweep
from app.service.costing import PrecomputedCosts
from app.service.idempotency import IdempotentRequest, ResponseOverride, StoredResponse, run_idempotent
from app.service.ids import new_id


@dataclass(frozen=True, slots=True)
class PrecedingReservation:
    """The reservation that a new one follows on.

    Args:
        id: of the reservation.
        steps_executed: the trainer's word: it is committed with them.
    """

    id: str
    steps_executed: int


@dataclass(frozen=True, slots=True)
class PlanRequest:
    """What is to be set aside.

    Args:
        run_id: for whose steps.
        steps: the plan.
        lease_seconds: how long the trainer may be silent.
        attempt: the trainer's fencing token.
        preceding: the active reservation that ends with it; None: the run has none.
    """

    run_id: str
    steps: tuple[StepEvent, ...]
    lease_seconds: int
    attempt: int
    preceding: PrecedingReservation | None = None


@dataclass(frozen=True, slots=True)
class CreatedReservation:
    """A plan that is set aside, and where its run stands.

    Args:
        reservation: active.
        next_step: of the run.
        reading: of the run as it is, its plan not yet executed.
        planned: of the run once its plan is executed.
        steps_remaining: further repetitions of the plan's last event that would fit besides the plan.
        binding: the account that leaves the fewest of them.
    """

    reservation: Reservation
    next_step: int
    reading: Reading
    planned: Reading
    steps_remaining: int
    binding: Account


def create_reservation(
    call: RequestContext,
    request: PlanRequest,
    identity: IdempotentRequest,
    render: Callable[[CreatedReservation], str],
    refuse: Callable[[Refusal], ResponseOverride],
) -> StoredResponse:
    """Set a plan's exact cost aside on every account of a run's path, or refuse it at once.

    A plan that follows on another ends that one first, in the same transaction; if the new plan is refused, the other
    stays as it is.

    Args:
        call: needs STEP_AUTHORIZE.
        request: run, plan, lease.
        identity: of the request.
        render: makes the reply's body.
        refuse: makes the reply to a plan that does not fit.

    Returns:
        The reply.

    Raises:
        NotFoundError: the organisation has no such run, or the run no such reservation before.
        AttemptSupersededError: another attempt of the run has begun.
        RunStateConflictError: the run is not active.
        ReservationStateConflictError: the run has an active reservation that the plan does not follow on.
        ReservationClosedError: the one before was not committed with that word, or its lease has run out.
        InvalidInputError: of the one before, fewer steps were executed than were authorised, or more than were planned.
        BudgetClosedError: an account of the run's path is not open.
        UnsupportedEventError: an event has no sound bound under the population's relation.
        PolicyViolationError: a policy does not allow an event of the plan.
    """
    call.require_permission(Permission.STEP_AUTHORIZE)

    def create(tx: Connection, ready: PrecomputedCosts) -> str | ResponseOverride:
        work = load_for(tx, call, request.run_id)
        run = work.run(call.organisation_id, request.run_id)
        require_attempt(run, request.attempt)
        require_active(run)
        active = work.reservations.get((call.organisation_id, request.run_id))
        if active is not None and has_lapsed(active, call.lapsed_by):
            # It is forfeited whatever becomes of the new plan.
            close_reservation(work, call.organisation_id, active, forfeit(active), call.actor, call.now)
            save(work)
            work = load_for(tx, call, request.run_id)
        before = tx.begin_nested()
        _end_the_one_before(work, call, request)
        held = hold_plan(work, call, request, ready)
        if isinstance(held, Refusal):
            before.rollback()
            count = sum(step.count for step in request.steps)
            call.record(
                tx,
                refusal_event(
                    AuditAction.RESERVATION_REFUSED, request.run_id, count, held.binding.id, refusal_details(held)
                ),
            )
            return refuse(held)
        before.commit()
        save(work)
        return render(_as_held(work, call.organisation_id, held, request.steps[-1]))

    return run_idempotent(call, identity, create)


def _end_the_one_before(work: UnitOfWork, call: RequestContext, request: PlanRequest) -> None:
    """End the run's active reservation by the word that came with the new plan."""
    active = work.reservations.get((call.organisation_id, request.run_id))
    if request.preceding is not None and (active is None or active.id == request.preceding.id):
        found = active or reservations.find(work.tx, call.organisation_id, request.preceding.id)
        if found is None or found.run_id != request.run_id:
            raise NotFoundError(f"The run {request.run_id} has no reservation {request.preceding.id!r}.")
        closing = commit(found, request.preceding.steps_executed)
        if not closing.replayed:
            close_reservation(work, call.organisation_id, found, closing, call.actor, call.now)
    elif active is not None:
        raise ReservationStateConflictError(
            f"The run has the active reservation {active.id}; commit or void it before the next one, or let the next "
            "one follow on it.",
            reservation=active.id,
        )


def hold_plan(
    work: UnitOfWork, call: RequestContext, request: PlanRequest, ready: PrecomputedCosts
) -> Reservation | Refusal:
    """Note what a plan sets aside, and write the reservation itself.

    Args:
        work: has the run's whole path, locked.
        call: who asks, and when.
        request: run, plan, lease.
        ready: what was computed outside the transaction.

    Returns:
        The reservation, or why the plan does not fit.

    Raises:
        BudgetClosedError: an account of the run's path is not open.
        UnsupportedEventError: an event has no sound bound under the population's relation.
    """
    organisation_id = call.organisation_id
    path = work.path(organisation_id, request.run_id)
    assert path is not None, "whoever sets a plan aside has locked the whole path"
    require_no_sweep(work, organisation_id, work.run(organisation_id, request.run_id))
    require_open(path, call.now)
    for account in path:
        if not account.weights_frozen:
            ready.require(account, [step.event for step in account.planned])
    items = plan_of(request.steps)
    require_bounded_on_removal(path, [item.event for item in items])
    sources = sources_of(path)
    if sources:
        planned = [StepEvent(item.event, item.count) for item in items]
        require_steps(sources, path[0].relation, [step.event for step in planned])
        run = work.run(organisation_id, request.run_id)
        require_declared(sources, find_deviations(work, organisation_id, run, planned, call.now))
    priced = work.quote(organisation_id, path[0], [StepEvent(item.event, item.count) for item in items], ready)
    holding = hold(path, priced, ready.noise_that_fits)
    if isinstance(holding, Refusal):
        return with_limit_change(work.tx, organisation_id, holding)
    reservation = Reservation(
        id=new_id("res", call.now),
        run_id=request.run_id,
        attempt=request.attempt,
        status=ReservationStatus.ACTIVE,
        items=items,
        lease_seconds=request.lease_seconds,
        expires_at=call.now + timedelta(seconds=request.lease_seconds),
    )
    reservations.add(work.tx, organisation_id, reservation, total_cost(priced), call.now)
    work.remember_prices(organisation_id, path[0], priced)
    work.change(organisation_id, holding, call.now)
    work.move(organisation_id, replace(work.run(organisation_id, request.run_id), reservation_id=reservation.id))
    return reservation


def _as_held(work: UnitOfWork, organisation_id: str, reservation: Reservation, last: StepEvent) -> CreatedReservation:
    path = work.path(organisation_id, reservation.run_id)
    assert path is not None, "whoever sets a plan aside has locked the whole path"
    own = path[-1]
    executed = (*path[:-1], replace(own, spent=own.spent + own.held))
    [step] = work.quote(organisation_id, path[0], [replace(last, count=1)], PrecomputedCosts())
    remaining, binding = repetitions_left(path, step)
    next_step = work.run(organisation_id, reservation.run_id).next_step
    return CreatedReservation(reservation, next_step, reading_of(path), reading_of(executed), remaining, binding)
