"""The end of a reservation that waits: it expires, or is cancelled."""

from sqlalchemy import Connection

from app.ledger.audit import AuditAction
from app.ledger.runs.reservations import Reservation, ReservationStatus
from app.ledger.runs.run import EndReason, RunStatus, status_payload
from app.persistence.repositories import alerts, reservations, waiting
from app.service.alerts.alert_factory import expired_alert
from app.service.auth.request_context import RequestContext
from app.service.charging.loading import load_for
from app.service.charging.saving import save_transition

_ENDS = {
    ReservationStatus.EXPIRED: AuditAction.RESERVATION_EXPIRED,
    ReservationStatus.CANCELLED: AuditAction.RESERVATION_CANCELLED,
}


def end_waiting(
    tx: Connection, context: RequestContext, ended: Reservation, reason: str | None = None, *, ends_run: bool = True
) -> None:
    """Write the end of a waiting reservation, in a transaction that has locked the organisation.

    A run that waits for it has not begun, and is aborted as not granted unless the caller ends it.
    """
    reservations.save_waiting(tx, context.organisation_id, ended, context.now)
    before, after = {"status": str(ReservationStatus.WAITING)}, {"status": str(ended.status), "run": ended.run_id}
    context.record(tx, _ENDS[ended.status], ended.id, before, after, reason)
    work = load_for(tx, context, ended.run_id)
    run = work.run(ended.run_id)
    if ended.status is ReservationStatus.EXPIRED:
        own = work.record(ended.run_id).account
        alerts.add(tx, context.organisation_id, [expired_alert(own, ended, context.now)])
    if run.status is RunStatus.WAITING and ends_run:
        aborted = run.ended(RunStatus.ABORTED, EndReason.NOT_GRANTED, context.now)
        save_transition(tx, work, context.now, aborted)
        context.record(tx, AuditAction.RUN_ABORTED, run.account_id, status_payload(run), status_payload(aborted))


def waiting_of(tx: Connection, organisation_id: str, run_id: str) -> Reservation | None:
    """Find the reservation for which a run waits."""
    found = waiting.of_runs(tx, organisation_id, [run_id]).get(run_id)
    return None if found is None else reservations.find(tx, organisation_id, found)
