"""Periodic maintenance of a ledger."""

import asyncio
from collections.abc import Iterator
from datetime import datetime, timedelta
from typing import Final

from sqlalchemy import Connection

from app.ledger.runs.reservation_closing import forfeit
from app.ledger.runs.reservations import has_lapsed
from app.persistence.database import Database
from app.persistence.repositories import periodic_queries
from app.persistence.repositories.periodic_queries import Lapsed, find_stale
from app.service.alerts.alert_factory import stale_reservation_alert
from app.service.alerts.forecasts import record_usage_snapshots
from app.service.auth.request_context import RequestContext, service_context
from app.service.auth.use_cases import use_case
from app.service.background import repeat
from app.service.charging.loading import load_run
from app.service.charging.reservation_ends import close_reservation
from app.service.charging.saving import save
from app.service.governance.block_schedules import open_due_blocks
from app.service.periodic_work import find_due, isolated
from app.service.scheduling.grants import expire_waiting, grant_waiting

LOOK_SECONDS: Final = 5.0
PAGE = 100
"""Interval between checks for lapsed reservations and due data blocks, and the page size."""

GRANT_SECONDS = 1.0
"""Interval between looks whether reservations that wait fit."""

WAL_SECONDS = 2.0
"""Interval between checkpoints of a SQLite file's log, which grows by up to 5 MB per second."""

READING_SECONDS: Final = 300.0
"""Interval between usage snapshots."""

SILENT_SHARE: Final = 0.5
"""Share of the lease after which a trainer counts as silent."""


async def run_maintenance(
    db: Database, look_seconds: float = LOOK_SECONDS, reading_seconds: float = READING_SECONDS
) -> None:
    """Run the periodic jobs until cancelled; failures are logged and retried."""
    failure = "The maintenance of a database failed, and is tried again"
    await asyncio.gather(
        repeat(
            "maintenance",
            failure,
            look_seconds,
            lambda: open_due_blocks(db, db.clock.moment()),
            lambda: expire_reservations(db, db.clock.moment().earliest),
            lambda: alert_stale_reservations(db, db.clock.moment().earliest),
            lambda: expire_waiting(db),
            db.analyze,
        ),
        repeat("scheduling", failure, GRANT_SECONDS, lambda: grant_waiting(db)),
        repeat("maintenance", failure, reading_seconds, lambda: record_usage_snapshots(db, db.clock.now())),
    )


async def run_wal_checkpoints(db: Database) -> None:
    """Checkpoint the log of a SQLite file until cancelled, so that no commit does."""
    await repeat("wal", "The log of a SQLite file could not be copied into it", WAL_SECONDS, db.checkpoint_wal)


def expire_reservations(db: Database, now: datetime) -> int:
    """Forfeit reservations whose lease has expired; return their number.

    Their remaining steps are charged, because the trainer may have released them.
    """
    ended = 0
    for found in _lapsed(db, now):
        with isolated("Reservation %s has lapsed and is still held", found.id):  # a quarantined account blocks no other
            ended += _expire(service_context(db, found.organisation_id, now), found.run_id)
    return ended


@use_case(locks_organisation=False)
def _expire(tx: Connection, context: RequestContext, run_id: str) -> bool:
    work = load_run(tx, context.organisation_id, run_id)
    active = work.reservations.get(run_id)
    if active is None or not has_lapsed(active, context.now):
        return False
    close_reservation(tx, work, active, forfeit(active), context.actor, context.now)
    save(tx, work)
    return True


def _lapsed(db: Database, now: datetime) -> Iterator[Lapsed]:
    """Iterate over lapsed reservations by cursor, so that failing ones block no others."""
    last: Lapsed | None = None
    while True:
        found = find_due(db, lambda tx, among: periodic_queries.lapsed(tx, now, PAGE, last, among))  # noqa: B023 - at once
        page = sorted(found, key=lambda each: (each.expires_at, each.id))[:PAGE]  # of each worker there may be one
        yield from page
        if len(page) < PAGE:
            return
        last = page[-1]


def alert_stale_reservations(db: Database, now: datetime) -> int:
    """Create alerts for trainers silent for half their lease; return their number."""
    found = find_due(db, lambda tx, among: find_stale(tx, now, SILENT_SHARE, PAGE, among))
    for organisation_id, run_id in found:
        with isolated("The trainer of %s is silent, and no alert could be raised", run_id):
            _alert_if_stale(service_context(db, organisation_id, now), run_id)
    return len(found)


@use_case(locks_organisation=False)
def _alert_if_stale(tx: Connection, context: RequestContext, run_id: str) -> None:
    work, now = load_run(tx, context.organisation_id, run_id), context.now
    reservation, own = work.reservations.get(run_id), work.record(run_id)
    if reservation is None or now >= reservation.expires_at:
        return
    lease = timedelta(seconds=reservation.lease_seconds)
    heard = max(reservation.expires_at - lease, own.updated_at)
    if now - heard > lease * SILENT_SHARE:
        work.alerts.append(stale_reservation_alert(own.account, reservation, heard, now))
        save(tx, work)
