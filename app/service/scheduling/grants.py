"""Grant reservations that have waited, the moment that they fit, and end those that have waited in vain."""

import logging
from datetime import timedelta
from typing import Final

from sqlalchemy import Connection

from app.ledger.admission.admission import Refusal
from app.ledger.audit import AuditAction
from app.ledger.errors import LedgerError, ReservationStateConflictError
from app.ledger.governance.policy_checks import require_open
from app.ledger.runs.reservations import Reservation
from app.ledger.runs.run import RunStatus, status_payload
from app.ledger.scheduling.queue import Grant, Ledgers
from app.ledger.scheduling.waiting import expire, grant, has_expired
from app.persistence.database import Database
from app.persistence.repositories import alerts, reservations, waiting
from app.service.alerts.alert_factory import granted_alert
from app.service.auth.request_context import RequestContext, service_context
from app.service.auth.use_cases import use_case
from app.service.charging.ledger_state import LedgerState
from app.service.charging.loading import LoadRequest, load
from app.service.charging.saving import save
from app.service.charging.unit_of_work import UnitOfWork
from app.service.periodic_work import find_due, isolated
from app.service.scheduling.endings import end_waiting
from app.service.scheduling.explanations import grant_payload
from app.service.scheduling.holding import hold_priced, price_reservation
from app.service.scheduling.queue_snapshots import BEGINS, QueueSnapshot, grants_in, waiting_reservations

PAGE: Final = 100
"""Maximum number of reservations that one snapshot ends, and that one transaction grants."""

BARRED: Final = timedelta(minutes=1)
"""For so long a reservation that fits, and may not be granted, is left out, and keeps no other waiting."""

_logger = logging.getLogger(__name__)


def grant_waiting(db: Database) -> int:
    """Grant the reservations that fit now, in all organisations; return their number."""
    granted = 0
    for organisation_id in find_due(db, waiting.organisations):
        with isolated("Reservations of %s wait, and could not be looked at", organisation_id):
            granted += grant_in_organisation(db, organisation_id)
    return granted


def grant_in_organisation(db: Database, organisation_id: str) -> int:
    """Grant the reservations of an organisation that fit now, in the order of their rule; return their number."""
    queue, context = waiting_reservations(db, organisation_id), service_context(db, organisation_id)
    total = 0
    while True:
        with db.read(organisation_id) as tx, queue.lock:  # who has the lock waits for no connection
            snapshot = queue.snapshot(tx, context.now, context.lapsed_by)
            accounts, changed = queue.changed(snapshot)
            if not grants_in(tx, organisation_id, snapshot, accounts, changed):
                queue.settle(snapshot)
                return total
        granted, skipped = _grant(context)
        total += granted
        if granted < PAGE and not skipped:  # what was granted makes no room for others
            return total


@use_case()
def _grant(tx: Connection, context: RequestContext) -> tuple[int, bool]:
    """Grant reservations in one transaction: decided again under the locks, so that each is granted once.

    The first one that may not be granted after all is the last: the order of those after it took it for granted.

    Returns:
        The number of granted reservations, and whether one of them was skipped.
    """
    organisation_id = context.organisation_id
    queue = waiting_reservations(context.db, organisation_id)
    with queue.lock:
        snapshot = queue.snapshot(tx, context.now, context.lapsed_by)
        ledgers = Ledgers({}, snapshot.ledgers.withholdings)  # as they are before the first grant
        found = grants_in(tx, organisation_id, snapshot, *queue.changed(snapshot))[:PAGE]
        if not found:
            queue.settle(snapshot)
            return 0, False
    wanted = [LoadRequest(each.standing.reservation.path[-1]) for each in found]
    work = load(tx, LedgerState(), organisation_id, wanted)
    waited = reservations.get_many(tx, organisation_id, [each.standing.reservation.id for each in found])
    by_id = {each.id: each for each in waited}
    granted = []
    skipped = False
    for one in found:
        reservation = by_id[one.standing.reservation.id]
        try:
            if not _grant_one(work, context, ledgers, one, reservation):
                break
        except LedgerError as reason:
            _logger.warning("The reservation %s fits, and is not granted: %s", reservation.id, reason.detail)
            with queue.lock:
                queue.skip(reservation.id, context.now + BARRED)
            skipped = True
            break
        granted.append((one, reservation))
    save(tx, work)
    for one, reservation in granted:
        _record(tx, context, work, snapshot, one, reservation)
    return len(granted), skipped


def _record(
    tx: Connection, context: RequestContext, work: UnitOfWork, snapshot: QueueSnapshot, one: Grant, waited: Reservation
) -> None:
    """Record a grant with its reasons, and the activation of a run that has waited for it."""
    run, own = work.stored_runs[waited.run_id], work.record(waited.run_id).account
    now = work.reservations[waited.run_id]
    before = {"status": str(waited.status)}
    after = {"status": str(now.status), "run": waited.run_id, **grant_payload(snapshot, one)}
    context.record(tx, AuditAction.RESERVATION_GRANTED, waited.id, before, after)
    if run.status is RunStatus.WAITING:
        active = work.run(waited.run_id)
        context.record(tx, AuditAction.RUN_ACTIVATED, waited.run_id, status_payload(run), status_payload(active))
    alerts.add(tx, context.organisation_id, [granted_alert(own, now, context.now)])


def _grant_one(work: UnitOfWork, context: RequestContext, ledgers: Ledgers, one: Grant, waited: Reservation) -> bool:
    """Hold a reservation on its locked path and activate it, unless it does not fit or wait any more.

    Raises:
        LedgerError: it fits, and its time is over, or a rule of its accounts forbids it.
    """
    run = work.run(waited.run_id)
    if run.status not in BEGINS or run.reservation_id is not None:
        queue = waiting_reservations(context.db, context.organisation_id)
        with queue.lock:
            queue.defer(waited.id)
        return False
    if has_expired(waited, context.now):
        raise ReservationStateConflictError("It has waited in vain, and is ended soon.")
    reservation = one.standing.reservation
    work.costs_of(work.record(reservation.path[0]).account).update(
        {each.step.event: each.curve for each in reservation.steps}
    )
    priced = price_reservation(work, context, waited.run_id, waited.items)
    require_open(priced.path, context.now)
    holding = hold_priced(work, context, priced, views=ledgers.views)
    if isinstance(holding, Refusal):
        return False
    ledgers.store(reservation, holding)
    work.grant(grant(waited, context.now), context.now)
    work.change(holding, context.now)
    return True


def expire_waiting(db: Database) -> int:
    """End the reservations that have waited in vain, in all organisations; return their number."""
    earliest = db.clock.moment().earliest
    ended = 0
    for organisation_id, reservation_id in find_due(db, lambda tx, among: waiting.expired(tx, earliest, PAGE, among)):
        with isolated("%s has waited in vain, and cannot be ended", reservation_id):  # such as a quarantined one
            ended += _expire(service_context(db, organisation_id), reservation_id)
    return ended


@use_case()
def _expire(tx: Connection, context: RequestContext, reservation_id: str) -> bool:
    found = reservations.find(tx, context.organisation_id, reservation_id)
    if found is None or not has_expired(found, context.lapsed_by):
        return False
    end_waiting(tx, context, expire(found))
    return True
