"""Periodic maintenance of a ledger."""

import asyncio
import logging
from collections.abc import Iterator
from contextlib import suppress
from datetime import datetime, timedelta
from functools import partial
from typing import Final

from sqlalchemy import Connection

from app.ledger.audit import SERVICE
from app.ledger.errors import LedgerError
from app.ledger.moves import OrganisationMovingError
from app.ledger.reservations import forfeit, has_lapsed
from app.persistence.database import ALL_TENANTS, Database
from app.persistence.repositories import periodic_queries
from app.persistence.repositories.periodic_queries import Lapsed, find_stale
from app.service.alerts.alert_factory import stale_reservation_alert
from app.service.alerts.forecasts import record_usage_snapshots
from app.service.background import repeat
from app.service.charging.close import close_reservation
from app.service.charging.loading import load_run
from app.service.charging.saving import save
from app.service.governance.block_schedules import open_due_blocks
from app.service.scheduling.grants import expire_waiting, grant_waiting

LOOK_SECONDS = 5.0
PAGE = 100
"""Interval between checks for lapsed reservations and due data blocks, and the page size."""

GRANT_SECONDS = 1.0
"""Interval between looks whether plans that wait fit."""

READING_SECONDS = 300.0
"""Interval between usage snapshots."""

SILENT_SHARE: Final = 0.5
"""Share of the lease after which a trainer counts as silent."""

_logger = logging.getLogger(__name__)


async def run_maintenance(db: Database) -> None:
    """Run the periodic jobs until cancelled; failures are logged and retried."""
    failure = "The maintenance of a database failed, and is tried again"
    await asyncio.gather(
        repeat(
            "maintenance",
            failure,
            LOOK_SECONDS,
            lambda: open_due_blocks(db, db.clock.moment()),
            lambda: expire_reservations(db, db.clock.moment().earliest),
            lambda: alert_stale_reservations(db, db.clock.moment().earliest),
            lambda: expire_waiting(db),
            db.analyze,
        ),
        repeat("scheduling", failure, GRANT_SECONDS, lambda: grant_waiting(db)),
        repeat("maintenance", failure, READING_SECONDS, lambda: record_usage_snapshots(db, db.clock.now())),
    )


def expire_reservations(db: Database, now: datetime) -> int:
    """Forfeit reservations whose lease has expired; return their number.

    Their remaining steps are charged, because the trainer may have released them.
    """

    def lapse(found: Lapsed, tx: Connection) -> bool:
        work = load_run(tx, found.organisation_id, found.run_id)
        active = work.reservations.get(found.run_id)
        if active is None or not has_lapsed(active, now):
            return False
        close_reservation(tx, work, active, forfeit(active), SERVICE, now)
        save(tx, work)
        return True

    ended = 0
    for found in _lapsed(db, now):
        try:
            ended += db.transact(found.organisation_id, partial(lapse, found))
        except OrganisationMovingError:
            continue
        except LedgerError as reason:  # a quarantined account must not block the others
            _logger.warning("Reservation %s has lapsed and is still held: %s", found.id, reason.detail)
        except Exception:
            _logger.exception("Reservation %s has lapsed and is still held", found.id)
    return ended


def _lapsed(db: Database, now: datetime) -> Iterator[Lapsed]:
    """Iterate over lapsed reservations by cursor, so that failing ones block no others."""
    page: list[Lapsed] = []
    while not page or len(page) == PAGE:
        with db.read(ALL_TENANTS) as tx:
            page = periodic_queries.lapsed(tx, now, PAGE, after=page[-1] if page else None)
        yield from page
        if not page:
            return


def alert_stale_reservations(db: Database, now: datetime) -> int:
    """Create alerts for trainers silent for half their lease; return their number."""

    def alert_if_stale(organisation_id: str, run_id: str, tx: Connection) -> None:
        work = load_run(tx, organisation_id, run_id)
        reservation, own = work.reservations.get(run_id), work.record(run_id)
        if reservation is None or now >= reservation.expires_at:
            return
        lease = timedelta(seconds=reservation.lease_seconds)
        heard = max(reservation.expires_at - lease, own.updated_at)
        if now - heard > lease * SILENT_SHARE:
            work.alerts.append(stale_reservation_alert(own.account, reservation, heard, now))
            save(tx, work)

    with db.read(ALL_TENANTS) as tx:
        found = find_stale(tx, now, SILENT_SHARE, PAGE)
    for organisation_id, run_id in found:
        with suppress(OrganisationMovingError):
            db.transact(organisation_id, partial(alert_if_stale, organisation_id, run_id))
    return len(found)
