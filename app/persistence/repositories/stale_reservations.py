"""Find reservations whose trainer has been inactive for long."""

from datetime import datetime

from sqlalchemy import Connection, select

from app.ledger.alerts import AlertType
from app.persistence.repositories.partial_indexes import ACTIVE
from app.persistence.repositories.sql_time import seconds
from app.persistence.tables import accounts, alerts, reservations


def find_stale(tx: Connection, now: datetime, share: float, limit: int) -> list[tuple[str, str]]:
    """Find runs with a reservation inactive for a share of its lease.

    Those with an alert are excluded. A step, and any other change of the run, counts as activity, as a renewal does.
    The result has organisation and run ids.
    """
    told = select(alerts.c.id).where(
        alerts.c.organisation_id == reservations.c.organisation_id,
        alerts.c.account_id == reservations.c.run_id,
        alerts.c.type == str(AlertType.RESERVATION_STALE),
        alerts.c.dedup_key == reservations.c.id,
    )
    lease = reservations.c.lease_seconds
    found = (
        select(reservations.c.organisation_id, reservations.c.run_id)
        .join(
            accounts,
            (accounts.c.organisation_id == reservations.c.organisation_id) & (accounts.c.id == reservations.c.run_id),
        )
        .where(
            ACTIVE,
            reservations.c.expires_at > now,
            seconds(tx, now, reservations.c.expires_at) < lease * (1 - share),
            seconds(tx, accounts.c.updated_at, now) > lease * share,
            ~told.exists(),
        )
        .limit(limit)
    )
    return [(row.organisation_id, row.run_id) for row in tx.execute(found)]
