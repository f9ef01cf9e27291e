"""Reservations: steps are held together, or refused; later they are committed, voided or forfeited."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from datetime import datetime, timedelta

from sqlalchemy import Connection

from app.ledger.accounts.account import Account
from app.ledger.admission.admission import Refusal, repetitions_left
from app.ledger.audit import AuditAction
from app.ledger.errors import NotFoundError, ReservationStateConflictError, require_found
from app.ledger.permissions import Permission
from app.ledger.runs.reservation_closing import ReservationClose, commit, forfeit, void
from app.ledger.runs.reservation_use import claim, renew
from app.ledger.runs.reservations import Reservation, ReservationStatus, has_lapsed, items_of
from app.ledger.runs.run import RunStatus, require_active, require_attempt
from app.ledger.scheduling.waiting import check_wait, wait
from app.ledger.step_events import StepEvent, total_cost
from app.persistence.repositories import reservations
from app.service.accounts.epsilons import delta_of_run, read_epsilons
from app.service.accounts.lookup import require_reach
from app.service.auth.request_context import RequestContext
from app.service.auth.use_cases import use_case
from app.service.charging.loading import find_limit_change, load_for
from app.service.charging.requests import refusal_payload
from app.service.charging.reservation_ends import close_reservation
from app.service.charging.saving import save
from app.service.charging.unit_of_work import UnitOfWork
from app.service.costing import PrecomputedCosts, price_steps
from app.service.ids import new_id
from app.service.scheduling.arrivals import hold_in_turn, record_queued
from app.service.scheduling.endings import waiting_of
from app.service.scheduling.explanations import WaitingDetail, explain_waiting
from app.service.scheduling.holding import price_reservation


@dataclass(frozen=True, slots=True)
class PrecedingReservation:
    """The active reservation to commit before a new one is created."""

    id: str
    steps_executed: int


@dataclass(frozen=True, slots=True)
class ReservationRequest:
    """Steps to reserve, and the active reservation to commit first.

    Args:
        expected_steps: number of all steps of the training, for the alternatives of a refusal; None: as the run
            declared.
        wait_until: until when it waits if it does not fit; None: then it is refused.
    """

    run_id: str
    steps: tuple[StepEvent, ...]
    lease_seconds: int
    attempt: int
    preceding: PrecedingReservation | None = None
    expected_steps: int | None = None
    wait_until: datetime | None = None


@dataclass(frozen=True, slots=True)
class WaitingReservation:
    """A reservation that waits, and for what."""

    reservation: Reservation
    detail: WaitingDetail


@dataclass(frozen=True, slots=True)
class CreatedReservation:
    """A new reservation and the state of its run.

    Args:
        epsilon: of the run now, at `delta`; `epsilon_including_reserved` once the reserved steps are executed.
        delta: of the limit that governs the run.
        used: share of the capacity of the account that allows the fewest further steps; `used_including_reserved` of
            all that is reserved, too.
        steps_remaining: repetitions of the last reserved event that would fit in addition.
        binding: the account that allows the fewest of them.
    """

    reservation: Reservation
    next_step: int
    epsilon: float
    epsilon_including_reserved: float
    delta: float
    used: float
    used_including_reserved: float
    steps_remaining: int
    binding: Account


@use_case(Permission.STEP_AUTHORIZE)
def create_reservation(
    tx: Connection, context: RequestContext, request: ReservationRequest
) -> CreatedReservation | WaitingReservation | Refusal:
    """Hold the exact cost of steps on every account of a path, let it wait, or refuse.

    A preceding reservation is committed in the same transaction; a refusal leaves it active.

    Raises:
        AttemptSupersededError: a newer attempt has begun.
        RunStateConflictError: the run is not active.
        ReservationStateConflictError: the run has an active reservation, and the request does not name it as preceding.
        ReservationClosedError: the preceding one was closed differently, or its lease has expired.
        InvalidInputError: its executed steps are below the authorised or above the reserved ones.
        Also those of `reserve`.
    """
    work = load_reservation(tx, context, request)
    run = work.run(request.run_id)
    require_attempt(run, request.attempt)
    require_active(run)
    active = work.reservations.get(request.run_id)
    waiting = waiting_of(tx, context.organisation_id, request.run_id)
    if waiting is not None:
        raise ReservationStateConflictError(
            f"The reservation {waiting.id} of the run waits until {waiting.expires_at.isoformat()}; wait for it, or "
            "cancel it before the next one.",
            reservation=waiting.id,
        )
    if active is not None and has_lapsed(active, context.lapsed_by):
        # Forfeited even if the new one is refused.
        close_reservation(tx, work, active, forfeit(active), context.actor, context.now)
        save(tx, work)
        work = load_reservation(tx, context, request)
    _end_the_one_before(tx, work, context, request)
    held = reserve(tx, work, context, request)
    if isinstance(held, Refusal):  # nothing was saved: the preceding reservation stays active
        payload = refusal_payload(held, request.steps)
        context.record(tx, AuditAction.RESERVATION_REFUSED, request.run_id, after=payload)
        return held
    if held.status is ReservationStatus.WAITING:
        return WaitingReservation(held, record_queued(tx, context, held))
    return _as_held(tx, work, held, request.steps[-1])


def load_reservation(tx: Connection, context: RequestContext, request: ReservationRequest) -> UnitOfWork:
    """Load a run to reserve steps for, with their costs."""
    return load_for(tx, context, request.run_id, events=[step.event for step in request.steps])


def _end_the_one_before(tx: Connection, work: UnitOfWork, context: RequestContext, request: ReservationRequest) -> None:
    """Commit the preceding reservation; refuse any other active one."""
    active = work.reservations.get(request.run_id)
    if request.preceding is not None and (active is None or active.id == request.preceding.id):
        found = active or reservations.find(tx, context.organisation_id, request.preceding.id)
        if found is None or found.run_id != request.run_id:
            raise NotFoundError(f"The run {request.run_id} has no reservation {request.preceding.id!r}.")
        closing = commit(found, request.preceding.steps_executed)
        if not closing.replayed:
            close_reservation(tx, work, found, closing, context.actor, context.now)
    elif active is not None:
        raise ReservationStateConflictError(
            f"The run has the active reservation {active.id}; commit or void it before the next one, or let the next "
            "one follow on it.",
            reservation=active.id,
        )


def reserve(
    tx: Connection, work: UnitOfWork, context: RequestContext, request: ReservationRequest, *, registers: bool = False
) -> Reservation | Refusal:
    """Hold the steps of `load_reservation`, or let them wait, and save the work unless it is refused.

    `registers` is whether the run is registered with this reservation; then it waits, too.

    Raises:
        AccountClosedError: an account of the run's path is not open.
        UnsupportedEventError: an event has no sound bound under the population's relation.
        PolicyViolationError: a policy forbids an event of the reservation.
        ReservationsWaitingError: the reservation fits, but others are served first, and it does not wait.
        InvalidInputError: it cannot wait so long.
    """
    if request.wait_until is not None:
        check_wait(request.wait_until, context.now)
    priced = price_reservation(work, context, request.run_id, items_of(request.steps))
    work.remember_costs(priced.path[0], priced.steps)
    holding = hold_in_turn(tx, work, context, priced, request.expected_steps, waits=request.wait_until is not None)
    if isinstance(holding, Refusal):
        return replace(holding, limit_change=find_limit_change(tx, context.organisation_id, holding.binding))
    reservation = Reservation(
        id=new_id("res", context.now),
        run_id=request.run_id,
        attempt=request.attempt,
        status=ReservationStatus.ACTIVE,
        items=priced.items,
        lease_seconds=request.lease_seconds,
        expires_at=context.now + timedelta(seconds=request.lease_seconds),
        created_at=context.now,
    )
    if isinstance(holding, tuple):
        work.open(reservation, total_cost(priced.steps), context.now)
        work.change(holding, context.now)
    else:
        assert request.wait_until is not None, "else it is refused"
        reservation = wait(reservation, request.wait_until)
        work.queue(reservation, total_cost(priced.steps), context.now)
        if registers:
            work.move(work.run(request.run_id)._replace(status=RunStatus.WAITING))
    save(tx, work)
    return reservation


def _as_held(tx: Connection, work: UnitOfWork, reservation: Reservation, last: StepEvent) -> CreatedReservation:
    path, record = work.path(reservation.run_id), work.record(reservation.run_id)
    delta, items = delta_of_run(path), [StepEvent(item.event, item.count) for item in reservation.items]
    executed = record.with_executed(items)
    epsilon, together = read_epsilons(tx, work.organisation_id, [(record, delta), (executed, delta)])
    [step] = price_steps(path[0], [replace(last, count=1)], work.costs_of(path[0]), PrecomputedCosts())
    remaining, binding = repetitions_left(path, step)
    next_step = work.run(reservation.run_id).next_step
    used = binding.used(), binding.used(binding.spent + binding.held)
    return CreatedReservation(reservation, next_step, epsilon, together, delta, *used, remaining, binding)


def get_reservation(context: RequestContext, reservation_id: str) -> tuple[Reservation, WaitingDetail | None]:
    """Get a reservation, and what it waits for, if it waits."""
    with context.read() as tx:
        found = _found(tx, context.organisation_id, reservation_id)
        require_reach(tx, context, found.run_id)
        return found, explain_waiting(tx, context, found)


def commit_reservation(context: RequestContext, reservation_id: str, steps_executed: int) -> Reservation:
    """Close a reservation with its number of executed steps.

    Raises:
        ReservationClosedError: it was closed differently, or its lease has expired.
        InvalidInputError: `steps_executed` is below the authorised or above the reserved steps.
    """
    return _ended(context, reservation_id, lambda reservation: commit(reservation, steps_executed))


def void_reservation(context: RequestContext, reservation_id: str) -> Reservation:
    """Close an unused reservation.

    Raises:
        ReservationClosedError: it was closed differently, or its lease has expired.
        ReservationStateConflictError: steps were authorised under it.
    """
    return _ended(context, reservation_id, void)


def claim_reservation(context: RequestContext, reservation_id: str) -> Reservation:
    """Take up a granted reservation, whose lease starts anew; a repeated claim renews it.

    Raises:
        ReservationClosedError: it is closed, or its lease has expired.
        ReservationStateConflictError: it waits, or the rest of its steps was revoked.
    """
    return _lease(context, reservation_id, claim)


def renew_reservation(context: RequestContext, reservation_id: str) -> Reservation:
    """Restart the lease of a reservation.

    Raises:
        ReservationClosedError: it is closed, or its lease has expired.
        ReservationStateConflictError: it waits, nobody has claimed it, or the rest of its steps was revoked.
    """
    return _lease(context, reservation_id, renew)


@use_case(Permission.STEP_AUTHORIZE, locks_organisation=False)
def _lease(
    tx: Connection,
    context: RequestContext,
    reservation_id: str,
    how: Callable[[Reservation, datetime, datetime], Reservation],
) -> Reservation:
    found = _found(tx, context.organisation_id, reservation_id)
    work = load_for(tx, context, found.run_id)
    leased = how(_as_it_stands(tx, work, found), context.now, context.lapsed_by)
    reservations.save_lease(tx, context.organisation_id, leased)
    work.renew(found.run_id)
    save(tx, work)
    return leased


def _ended(context: RequestContext, reservation_id: str, how: Callable[[Reservation], ReservationClose]) -> Reservation:
    closing, lapsed = _close(context, reservation_id, how)
    return how(closing.reservation).reservation if lapsed else closing.reservation


@use_case(Permission.STEP_AUTHORIZE, locks_organisation=False)
def _close(
    tx: Connection, context: RequestContext, reservation_id: str, how: Callable[[Reservation], ReservationClose]
) -> tuple[ReservationClose, bool]:
    found = _found(tx, context.organisation_id, reservation_id)
    work = load_for(tx, context, found.run_id)
    reservation = _as_it_stands(tx, work, found)
    lapsed = has_lapsed(reservation, context.lapsed_by)
    closing = forfeit(reservation) if lapsed else how(reservation)
    if not closing.replayed:
        close_reservation(tx, work, reservation, closing, context.actor, context.now)
        save(tx, work)
    return closing, lapsed


def _found(tx: Connection, organisation_id: str, reservation_id: str) -> Reservation:
    return require_found(reservations.find(tx, organisation_id, reservation_id), "reservation", reservation_id)


def _as_it_stands(tx: Connection, work: UnitOfWork, found: Reservation) -> Reservation:
    """Read a reservation again, as it may have changed before the lock."""
    active = work.reservations.get(found.run_id)
    return active if active is not None and active.id == found.id else _found(tx, work.organisation_id, found.id)
