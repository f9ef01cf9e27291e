"""Reading, renewing and closing of reservations."""

from collections.abc import Callable

from sqlalchemy import Connection

from app.ledger.errors import ReservationStateConflictError, require_found
from app.ledger.permissions import Permission
from app.ledger.reservations import Reservation, ReservationClose, commit, extend, forfeit, has_lapsed, void
from app.persistence.repositories import reservations
from app.service.accounts.lookup import require_reach
from app.service.auth.request_context import RequestContext
from app.service.charging.close import close_reservation
from app.service.charging.loading import load_for
from app.service.charging.saving import save
from app.service.charging.unit_of_work import UnitOfWork


def get_reservation(context: RequestContext, reservation_id: str) -> Reservation:
    """Get a reservation."""
    with context.read() as tx:
        found = _found(tx, context.organisation_id, reservation_id)
        require_reach(tx, context, found.run_id)
        return found


def commit_reservation(context: RequestContext, reservation_id: str, steps_executed: int) -> Reservation:
    """Close a reservation with its number of executed steps.

    Raises:
        ReservationClosedError: it was closed differently, or its lease has expired.
        InvalidInputError: `steps_executed` is below the authorised or above the planned steps.
    """
    return _ended(context, reservation_id, lambda reservation: commit(reservation, steps_executed))


def void_reservation(context: RequestContext, reservation_id: str) -> Reservation:
    """Close an unused reservation.

    Raises:
        ReservationClosedError: it was closed differently, or its lease has expired.
        ReservationStateConflictError: steps were authorised under it.
    """
    return _ended(context, reservation_id, void)


def renew_reservation(context: RequestContext, reservation_id: str) -> Reservation:
    """Restart the lease of a reservation.

    Raises:
        ReservationClosedError: it is closed, or its lease has expired.
    """
    context.require_permission(Permission.STEP_AUTHORIZE)

    def renew(tx: Connection) -> Reservation:
        found = _found(tx, context.organisation_id, reservation_id)
        work = load_for(tx, context, found.run_id)
        renewed = extend(_as_it_stands(tx, work, found), context.now, context.lapsed_by)
        reservations.save_lease(tx, context.organisation_id, renewed)
        return renewed

    return context.transact(renew)


def end_with_the_run(
    tx: Connection,
    work: UnitOfWork,
    context: RequestContext,
    run_id: str,
    steps_executed: int | None,
    *,
    attested_only: bool,
) -> None:
    """Close a run's active reservation before its end or its next attempt.

    `steps_executed` None forfeits the rest of the plan, unless `attested_only`. The run's path must be locked.

    Raises:
        ReservationStateConflictError: `steps_executed` is missing, or given without an active reservation.
        InvalidInputError: it is below the authorised or above the planned steps.
    """
    active = work.reservations.get(run_id)
    if active is None:
        # It may be closed already: by a step that a lowered limit refused (ADR 0026), or with this very number.
        if steps_executed not in {None, reservations.last_attested(tx, context.organisation_id, run_id)}:
            raise ReservationStateConflictError(
                "The run has no active reservation; leave out `steps_executed`; its steps were charged individually."
            )
        return
    lapsed = has_lapsed(active, context.lapsed_by)
    if steps_executed is None and attested_only and not lapsed:
        raise ReservationStateConflictError(
            f"The run has the active reservation {active.id}: say in `steps_executed` how many of its steps were "
            f"executed ({active.steps_used} were authorised), or commit or void it first.",
            reservation=active.id,
            steps_authorized=active.steps_used,
        )
    closing = forfeit(active) if lapsed or steps_executed is None else commit(active, steps_executed)
    close_reservation(tx, work, active, closing, context.actor, context.now)


def require_same_step_count(tx: Connection, context: RequestContext, run_id: str, steps_executed: int) -> None:
    """Require the step count with which a run's last reservation was committed."""
    attested = reservations.last_attested(tx, context.organisation_id, run_id)
    if attested != steps_executed:
        before = "no word on its steps" if attested is None else f"{attested} steps executed"
        raise ReservationStateConflictError(
            f"The run has ended before, with {before}, and stays so.", steps_executed=attested
        )


def _ended(context: RequestContext, reservation_id: str, how: Callable[[Reservation], ReservationClose]) -> Reservation:
    context.require_permission(Permission.STEP_AUTHORIZE)

    def close(tx: Connection) -> tuple[ReservationClose, bool]:
        found = _found(tx, context.organisation_id, reservation_id)
        work = load_for(tx, context, found.run_id)
        reservation = _as_it_stands(tx, work, found)
        lapsed = has_lapsed(reservation, context.lapsed_by)
        closing = forfeit(reservation) if lapsed else how(reservation)
        if not closing.replayed:
            close_reservation(tx, work, reservation, closing, context.actor, context.now)
            save(tx, work)
        return closing, lapsed

    closing, lapsed = context.transact(close)
    return how(closing.reservation).reservation if lapsed else closing.reservation


def _found(tx: Connection, organisation_id: str, reservation_id: str) -> Reservation:
    return require_found(reservations.find(tx, organisation_id, reservation_id), "reservation", reservation_id)


def _as_it_stands(tx: Connection, work: UnitOfWork, found: Reservation) -> Reservation:
    """Read a reservation again, as it may have changed before the lock."""
    active = work.reservations.get(found.run_id)
    return active if active is not None and active.id == found.id else _found(tx, work.organisation_id, found.id)
