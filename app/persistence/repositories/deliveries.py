"""Deliveries of alerts to webhooks."""

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from sqlalchemy import Column, ColumnElement, Connection, Row, Select, Update, exists, func, select, update

from app.ledger.alerts import Alert, Delivery, DeliveryStatus, Webhook
from app.ledger.pages import Page, PageRequest
from app.persistence.repositories.alerts import COLUMNS as ALERT_COLUMNS
from app.persistence.repositories.alerts import read_alert
from app.persistence.repositories.expressions import PENDING, join_on, owned_by, read_page
from app.persistence.repositories.webhooks import COLUMNS as WEBHOOK_COLUMNS
from app.persistence.repositories.webhooks import read_webhook
from app.persistence.tables import alerts, deliveries, webhooks


@dataclass(frozen=True, slots=True)
class ClaimedDelivery:
    """A delivery claimed by the caller.

    `attempts` includes this one; only the claimer of the last attempt may write its outcome.
    """

    organisation_id: str
    id: str
    attempts: int
    webhook: Webhook
    alert: Alert


_WITH_WEBHOOK = join_on(webhooks, deliveries, id="webhook_id")
_WITH_ALERT = join_on(alerts, deliveries, id="alert_id")
_COLUMNS = [
    alerts.c.type.label(name) if name == "alert_type" else deliveries.c[name] for name in Delivery.__dataclass_fields__
]


def has_due(tx: Connection, now: datetime, busy: Collection[str]) -> bool:
    """Check whether a delivery is due for a webhook that is not busy."""
    return bool(tx.execute(select(exists(_due(now, busy)))).scalar())


def claim(tx: Connection, now: datetime, until: datetime, busy: Collection[str], most: int) -> list[ClaimedDelivery]:
    """Claim due deliveries until `until`, at most one per idle webhook.

    PostgreSQL skips rows locked by another claim. They become due again unless their outcome is written.
    """
    found = _due(now, busy).order_by(deliveries.c.next_attempt_at, deliveries.c.id).limit(most)
    taken: dict[tuple[str, str], str] = {}
    for row in tx.execute(found.with_for_update(of=deliveries, skip_locked=True)):
        taken.setdefault((row.organisation_id, row.webhook_id), row.id)
    due = []
    for (organisation_id, _), delivery_id in taken.items():
        attempts = _started(tx, organisation_id, delivery_id, now, until)
        webhook = tx.execute(_joined(WEBHOOK_COLUMNS, _WITH_WEBHOOK, organisation_id, delivery_id)).one()
        alert = tx.execute(_joined(ALERT_COLUMNS, _WITH_ALERT, organisation_id, delivery_id)).one()
        due.append(ClaimedDelivery(organisation_id, delivery_id, attempts, read_webhook(webhook), read_alert(alert)))
    return due


def save_success(tx: Connection, sent: ClaimedDelivery, status: int, now: datetime) -> None:
    """Write that a delivery was acknowledged."""
    tx.execute(
        _attempt(sent).values(
            status=str(DeliveryStatus.DELIVERED), delivered_at=now, last_status=status, last_error=None
        )
    )


def save_failure(tx: Connection, sent: ClaimedDelivery, status: int | None, why: str, again_at: datetime) -> None:
    """Write that an attempt failed, and when the next one is due."""
    tx.execute(_attempt(sent).values(last_status=status, last_error=why, next_attempt_at=again_at))


def postpone(tx: Connection, organisation_id: str, webhook_id: str, until: datetime) -> None:
    """Postpone a webhook's pending deliveries to a time."""
    early = _pending(organisation_id, webhook_id).where(deliveries.c.next_attempt_at < until)
    tx.execute(early.values(next_attempt_at=until))


def give_up(tx: Connection, organisation_id: str, webhook_id: str) -> None:
    """Give up a webhook's pending deliveries."""
    tx.execute(_pending(organisation_id, webhook_id).values(status=str(DeliveryStatus.GIVEN_UP)))


def send_again(tx: Connection, organisation_id: str, delivery_id: str, now: datetime) -> None:
    """Make a delivery due now, in any status."""
    due = {"status": str(DeliveryStatus.PENDING), "next_attempt_at": now}
    tx.execute(update(deliveries).where(_this(organisation_id, delivery_id)).values(due))


def find(tx: Connection, organisation_id: str, delivery_id: str) -> Delivery | None:
    """Find a delivery by id."""
    row = tx.execute(_of(organisation_id).where(deliveries.c.id == delivery_id)).one_or_none()
    return None if row is None else _delivery(row)


def waiting(tx: Connection, organisation_id: str) -> dict[str, int]:
    """Count the pending deliveries by webhook."""
    mine = deliveries.c.organisation_id == organisation_id
    counted = select(deliveries.c.webhook_id, func.count()).where(mine, PENDING).group_by(deliveries.c.webhook_id)
    return {webhook_id: int(number) for webhook_id, number in tx.execute(counted)}


def page(
    tx: Connection,
    organisation_id: str,
    request: PageRequest,
    *,
    webhook_id: str | None = None,
    alert_id: str | None = None,
    status: DeliveryStatus | None = None,
) -> Page[Delivery]:
    """List deliveries, newest first."""
    found = _of(organisation_id)
    if webhook_id is not None:
        found = found.where(deliveries.c.webhook_id == webhook_id)
    if alert_id is not None:
        found = found.where(deliveries.c.alert_id == alert_id)
    if status is not None:
        found = found.where(deliveries.c.status == str(status))
    return read_page(tx, found, deliveries.c.id, request, _delivery)


def _due(now: datetime, busy: Collection[str]) -> Select[Any]:
    return (
        select(deliveries.c.organisation_id, deliveries.c.id, deliveries.c.webhook_id)
        .join(webhooks, _WITH_WEBHOOK)
        .where(
            PENDING,
            deliveries.c.next_attempt_at <= now,
            webhooks.c.disabled_at.is_(None),
            deliveries.c.webhook_id.not_in(busy),
        )
    )


def _started(tx: Connection, organisation_id: str, delivery_id: str, now: datetime, until: datetime) -> int:
    started = (
        update(deliveries)
        .where(_this(organisation_id, delivery_id))
        .values(attempts=deliveries.c.attempts + 1, last_attempt_at=now, next_attempt_at=until)
        .returning(deliveries.c.attempts)
    )
    attempts: int = tx.execute(started).scalar_one()
    return attempts


def _joined(
    columns: Sequence[Column[Any]], joined: ColumnElement[bool], organisation_id: str, delivery_id: str
) -> Select[Any]:
    return select(*columns).join(deliveries, joined).where(_this(organisation_id, delivery_id))


def _this(organisation_id: str, delivery_id: str) -> ColumnElement[bool]:
    return owned_by(deliveries, organisation_id, id=delivery_id)


def _pending(organisation_id: str, webhook_id: str) -> Update:
    """Build an update of a webhook's pending deliveries."""
    mine = owned_by(deliveries, organisation_id, webhook_id=webhook_id)
    return update(deliveries).where(mine, PENDING)


def _attempt(sent: ClaimedDelivery) -> Update:
    """Build an update of the delivery, if this attempt is still the last one."""
    this = _this(sent.organisation_id, sent.id)
    return update(deliveries).where(this, deliveries.c.attempts == sent.attempts, PENDING)


def _of(organisation_id: str) -> Select[Any]:
    found = select(*_COLUMNS).join_from(deliveries, alerts, _WITH_ALERT)
    return found.where(deliveries.c.organisation_id == organisation_id)


def _delivery(row: Row[Any]) -> Delivery:
    return Delivery(**row._asdict() | {"status": DeliveryStatus(row.status)})
