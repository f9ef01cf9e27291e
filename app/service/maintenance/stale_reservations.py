"""Alerts about trainers that hold a reservation and send nothing."""

from datetime import datetime, timedelta
from functools import partial
from typing import Final

from app.persistence.database import ALL_TENANTS, Database
from app.persistence.repositories.stale_reservations import find_stale as silent_ones
from app.service.alerts.alert_factory import stale_reservation_alert
from app.service.charging.loading import load_run
from app.service.charging.saving import save

SILENT_SHARE: Final = 0.5
"""Share of the lease after which a trainer counts as silent."""

PAGE: Final = 100


def alert_stale_reservations(db: Database, now: datetime) -> int:
    """Create alerts for trainers silent for half their lease; return their number."""
    with db.read(ALL_TENANTS) as tx:
        found = silent_ones(tx, now, SILENT_SHARE, PAGE)
    for organisation_id, run_id in found:
        db.retried(partial(_tell, db, organisation_id, run_id, now))
    return len(found)


def _tell(db: Database, organisation_id: str, run_id: str, now: datetime) -> None:
    with db.write(organisation_id) as tx:
        work = load_run(tx, organisation_id, run_id)
        reservation, own = work.reservations.get((organisation_id, run_id)), work.accounts[organisation_id, run_id]
        if reservation is None or now >= reservation.expires_at:
            return
        lease = timedelta(seconds=reservation.lease_seconds)
        heard = max(reservation.expires_at - lease, own.updated_at)
        if now - heard > lease * SILENT_SHARE:
            work.tell(organisation_id, [stale_reservation_alert(own.account, reservation, heard, now)])
            save(work)
