"""Find active reservations whose lease has expired, or whose trainer has been inactive for long."""

from dataclasses import dataclass
from datetime import datetime

from sqlalchemy import Connection, select

from app.ledger.alerts import AlertType
from app.persistence.repositories.expressions import ACTIVE, columns_of, join_on, seconds
from app.persistence.tables import accounts, alerts, reservations


@dataclass(frozen=True, slots=True)
class Lapsed:
    """An active reservation whose lease has expired."""

    organisation_id: str
    run_id: str
    id: str
    expires_at: datetime


def lapsed(tx: Connection, now: datetime, limit: int, after: Lapsed | None = None) -> list[Lapsed]:
    """List expired active reservations of every organisation after a cursor, oldest first."""
    expires_at, reservation_id = reservations.c.expires_at, reservations.c.id
    found = select(*columns_of(reservations, Lapsed)).where(ACTIVE, expires_at <= now)
    if after is not None:
        same_time = (expires_at == after.expires_at) & (reservation_id > after.id)
        found = found.where((expires_at > after.expires_at) | same_time)
    return [Lapsed(*row) for row in tx.execute(found.order_by(expires_at, reservation_id).limit(limit))]


def find_stale(tx: Connection, now: datetime, share: float, limit: int) -> list[tuple[str, str]]:
    """Find runs with a reservation inactive for a share of its lease.

    Those with an alert are excluded. A step, and any other change of the run, counts as activity, as a renewal does.
    The result has organisation and run ids.
    """
    notified = select(alerts.c.id).where(
        join_on(alerts, reservations, account_id="run_id", dedup_key="id"),
        alerts.c.type == str(AlertType.RESERVATION_STALE),
    )
    lease = reservations.c.lease_seconds
    found = (
        select(reservations.c.organisation_id, reservations.c.run_id)
        .join(accounts, join_on(accounts, reservations, id="run_id"))
        .where(
            ACTIVE,
            reservations.c.expires_at > now,
            seconds(tx, now, reservations.c.expires_at) < lease * (1 - share),
            seconds(tx, accounts.c.updated_at, now) > lease * share,
            ~notified.exists(),
        )
        .limit(limit)
    )
    return [(row.organisation_id, row.run_id) for row in tx.execute(found)]
