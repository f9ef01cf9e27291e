"""Reservations: a plan is set aside at once, or refused at once, and ended by the trainer's word or its silence."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from datetime import timedelta

from sqlalchemy import Connection

from app.ledger.accounts import StepEvent, total_cost
from app.ledger.admission import Refusal, hold
from app.ledger.errors import NotFoundError, ReservationConflictError
from app.ledger.plans import plan_of
from app.ledger.reservations import (
    Closing,
    Reservation,
    ReservationStatus,
    commit,
    extend,
    forfeit,
    has_lapsed,
    void,
)
from app.ledger.runs import require_active, require_attempt
from app.persistence.repositories import reservations
from app.service.access import Role
from app.service.call import Call
from app.service.charging.ending import end
from app.service.charging.loading import load_run
from app.service.charging.saving import save
from app.service.charging.working import WorkingSet
from app.service.idempotency import Answer, Identity, Pinned, create_once
from app.service.ids import new_id
from app.service.pricing import Prepared


@dataclass(frozen=True, slots=True)
class PlanRequest:
    """What is to be set aside.

    Args:
        run_id: for whose steps.
        steps: the plan.
        lease_seconds: how long the trainer may be silent.
        attempt: the trainer's fencing token.
    """

    run_id: str
    steps: tuple[StepEvent, ...]
    lease_seconds: int
    attempt: int


def reserve(
    call: Call,
    request: PlanRequest,
    identity: Identity,
    render: Callable[[Reservation], str],
    refuse: Callable[[Refusal], Pinned],
) -> Answer:
    """Set a plan's exact cost aside on every account of a run's path, or refuse it at once.

    Args:
        call: needs the role trainer.
        request: run, plan, lease.
        identity: of the request.
        render: makes the reply's body.
        refuse: makes the reply to a plan that does not fit.

    Returns:
        The reply.

    Raises:
        NotFoundError: the organisation has no such run.
        AttemptSupersededError: another attempt of the run has begun.
        RunStateConflictError: the run is not active.
        ReservationConflictError: the run has an active reservation.
        UnsupportedEventError: an event has no sound bound under the population's relation.
    """
    call.require(Role.TRAINER)

    def create(tx: Connection, ready: Prepared) -> str | Pinned:
        work = load_run(tx, call.organisation_id, request.run_id)
        run = work.run(call.organisation_id, request.run_id)
        require_attempt(run, request.attempt)
        require_active(run)
        active = work.reservations.get((call.organisation_id, run.account_id))
        if active is not None and not has_lapsed(active, call.now):
            raise ReservationConflictError(
                f"The run has the active reservation {active.id}; commit or void it before the next one.",
                reservation=active.id,
            )
        if active is not None:
            end(work, call.organisation_id, active, forfeit(active), call.now)
        held = set_aside(work, call, request, ready)
        save(work)
        return render(held) if isinstance(held, Reservation) else refuse(held)

    return create_once(call, identity, create)


def set_aside(work: WorkingSet, call: Call, request: PlanRequest, ready: Prepared) -> Reservation | Refusal:
    """Note what a plan sets aside, and write the reservation itself.

    Args:
        work: has the run's whole path, locked.
        call: who asks, and when.
        request: run, plan, lease.
        ready: what was computed outside the transaction.

    Returns:
        The reservation, or why the plan does not fit.

    Raises:
        UnsupportedEventError: an event has no sound bound under the population's relation.
    """
    organisation_id = call.organisation_id
    path = work.path(organisation_id, request.run_id)
    assert path is not None, "whoever sets a plan aside has locked the whole path"
    for account in path:
        if not account.weights_frozen:
            ready.require(account, [step.event for step in account.planned])
    items = plan_of(request.steps)
    priced = work.quote(organisation_id, path[0], [StepEvent(item.event, item.count) for item in items], ready)
    holding = hold(path, priced, ready.noise_that_fits)
    if isinstance(holding, Refusal):
        return holding
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


def get_reservation(call: Call, reservation_id: str) -> Reservation:
    """Read a reservation.

    Args:
        call: any role.
        reservation_id: its id.

    Returns:
        The reservation.

    Raises:
        NotFoundError: the organisation has none such.
    """
    with call.db.read() as tx:
        return _found(tx, call.organisation_id, reservation_id)


def commit_reservation(call: Call, reservation_id: str, steps_executed: int) -> Reservation:
    """End a reservation with the trainer's word on how many steps were executed.

    Args:
        call: needs the role trainer.
        reservation_id: its id.
        steps_executed: all steps of the plan that were executed, authorised or not.

    Returns:
        The reservation afterwards.

    Raises:
        NotFoundError: the organisation has none such.
        ReservationTerminalError: it ended in another way, or its lease has run out.
        InvalidInputError: fewer steps than were authorised, or more than were planned.
    """
    return _ended(call, reservation_id, lambda reservation: commit(reservation, steps_executed))


def void_reservation(call: Call, reservation_id: str) -> Reservation:
    """End a reservation of which nothing was used.

    Args:
        call: needs the role trainer.
        reservation_id: its id.

    Returns:
        The reservation afterwards.

    Raises:
        NotFoundError: the organisation has none such.
        ReservationTerminalError: it ended in another way, or its lease has run out.
        ReservationConflictError: steps were authorised under it.
    """
    return _ended(call, reservation_id, void)


def renew_reservation(call: Call, reservation_id: str) -> Reservation:
    """Answer a heartbeat: the whole lease begins anew.

    Args:
        call: needs the role trainer.
        reservation_id: its id.

    Returns:
        The reservation afterwards.

    Raises:
        NotFoundError: the organisation has none such.
        ReservationTerminalError: it has ended, or its lease has run out.
    """
    call.require(Role.TRAINER)

    def renew() -> Reservation:
        with call.db.write() as tx:
            found = _found(tx, call.organisation_id, reservation_id)
            work = load_run(tx, call.organisation_id, found.run_id)
            renewed = extend(_as_it_stands(work, call.organisation_id, found), call.now)
            reservations.save_lease(tx, call.organisation_id, renewed)
            return renewed

    return call.db.retried(renew)


def end_with_the_run(
    work: WorkingSet, call: Call, run_id: str, steps_executed: int | None, *, attested_only: bool
) -> None:
    """End a run's reservation, if it has an active one, before the run itself ends or begins anew.

    Args:
        work: has the run's whole path, locked.
        call: who asks, and when.
        run_id: whose.
        steps_executed: the trainer's word; None: what is left is forfeited.
        attested_only: whether the trainer's word is needed.

    Raises:
        ReservationConflictError: the word is needed and missing, or given where nothing is reserved.
        InvalidInputError: fewer steps than were authorised, or more than were planned.
    """
    active = work.reservations.get((call.organisation_id, run_id))
    if active is None:
        if steps_executed is not None:
            raise ReservationConflictError(
                "The run has no active reservation; leave out `steps_executed`, its steps were charged one by one."
            )
        return
    if has_lapsed(active, call.now):
        end(work, call.organisation_id, active, forfeit(active), call.now)
    elif steps_executed is not None:
        end(work, call.organisation_id, active, commit(active, steps_executed), call.now)
    elif attested_only:
        raise ReservationConflictError(
            f"The run has the active reservation {active.id}: say in `steps_executed` how many of its steps were "
            f"executed ({active.steps_used} were authorised), or commit or void it first.",
            reservation=active.id,
            steps_authorized=active.steps_used,
        )
    else:
        end(work, call.organisation_id, active, forfeit(active), call.now)


def require_attested(tx: Connection, call: Call, run_id: str, steps_executed: int) -> None:
    """Refuse another word than the one with which a run's last reservation was committed.

    Args:
        tx: the caller's transaction.
        call: who asks.
        run_id: a run that has ended.
        steps_executed: the trainer's word now.

    Raises:
        ReservationConflictError: it was another one, or none.
    """
    attested = reservations.last_attested(tx, call.organisation_id, run_id)
    if attested != steps_executed:
        told = "no word on its steps" if attested is None else f"{attested} steps executed"
        raise ReservationConflictError(f"The run has ended before, with {told}, and stays so.", steps_executed=attested)


def _ended(call: Call, reservation_id: str, how: Callable[[Reservation], Closing]) -> Reservation:
    call.require(Role.TRAINER)

    def close() -> Reservation:
        with call.db.write() as tx:
            found = _found(tx, call.organisation_id, reservation_id)
            work = load_run(tx, call.organisation_id, found.run_id)
            reservation = _as_it_stands(work, call.organisation_id, found)
            lapsed = has_lapsed(reservation, call.now)
            closing = forfeit(reservation) if lapsed else how(reservation)
            if not closing.replayed:
                end(work, call.organisation_id, reservation, closing, call.now)
                save(work)
        return how(closing.reservation).reservation if lapsed else closing.reservation

    return call.db.retried(close)


def _found(tx: Connection, organisation_id: str, reservation_id: str) -> Reservation:
    found = reservations.find(tx, organisation_id, reservation_id)
    if found is None:
        raise NotFoundError(f"There is no reservation {reservation_id!r} in your organisation.")
    return found


def _as_it_stands(work: WorkingSet, organisation_id: str, found: Reservation) -> Reservation:
    """The reservation under the lock of its run's account: it may have moved since it was found."""
    active = work.reservations.get((organisation_id, found.run_id))
    return active if active is not None and active.id == found.id else _found(work.tx, organisation_id, found.id)
