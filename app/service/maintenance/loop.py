"""Periodic maintenance of a ledger."""

import asyncio
import logging
from collections.abc import Callable, Iterator
from datetime import datetime
from functools import partial
from time import monotonic

from sqlalchemy.exc import SQLAlchemyError

from app.ledger.errors import LedgerError
from app.ledger.hash_chain import SERVICE
from app.ledger.reservations import forfeit, has_lapsed
from app.persistence.database import ALL_TENANTS, Database, error_summary
from app.persistence.repositories import reservations
from app.persistence.repositories.reservations import Lapsed
from app.service.alerts.forecasts import record_usage_snapshots
from app.service.charging.close import close_reservation
from app.service.charging.loading import load_run
from app.service.charging.saving import save
from app.service.maintenance.stale_reservations import alert_stale_reservations
from app.service.metrics import counters

LOOK_SECONDS = 5.0
PAGE = 100
"""Interval between checks for lapsed reservations, and the page size."""

READING_SECONDS = 300.0
"""Interval between usage snapshots."""

_logger = logging.getLogger(__name__)


async def run_maintenance(db: Database) -> None:
    """Run the periodic jobs until cancelled; failures are logged and retried."""
    work: tuple[Callable[[], object], ...] = (
        lambda: expire_reservations(db, db.clock.moment().earliest),
        lambda: alert_stale_reservations(db, db.clock.moment().earliest),
        db.learn_sizes,
    )
    read_at = monotonic()
    while True:
        await asyncio.sleep(LOOK_SECONDS)
        due = monotonic() - read_at >= READING_SECONDS
        if due:
            read_at = monotonic()
        for each in (*work, lambda: record_usage_snapshots(db, db.clock.now())) if due else work:
            try:
                await asyncio.to_thread(each)
                counters.background_done("maintenance")
            except (LedgerError, SQLAlchemyError) as error:  # repeats every few seconds: log one line
                why = error_summary(error)
                _logger.warning("The maintenance of a database failed, and is tried again: %s", why)
            except Exception:
                _logger.exception("The maintenance of a database failed, and is tried again")


def expire_reservations(db: Database, now: datetime) -> int:
    """Forfeit reservations whose lease has expired; return their number.

    Their remaining steps are charged, because the trainer may have released them.
    """

    def lapse(found: Lapsed) -> bool:
        with db.write(found.organisation_id) as tx:
            work = load_run(tx, found.organisation_id, found.run_id)
            active = work.reservations.get((found.organisation_id, found.run_id))
            if active is None or not has_lapsed(active, now):
                return False
            close_reservation(work, found.organisation_id, active, forfeit(active), SERVICE, now)
            save(work)
            return True

    ended = 0
    for found in _lapsed(db, now):
        try:
            ended += db.retried(partial(lapse, found))
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
            page = reservations.lapsed(tx, now, PAGE, after=page[-1] if page else None)
        yield from page
        if not page:
            return
