"""The alert outbox, written in the transaction of an alert's cause (ADR 0018)."""

import json
import secrets
from collections.abc import Iterable, Sequence
from typing import Any

from sqlalchemy import Connection, Row, insert, select

from app.ledger.alerts import Alert, AlertFilter, AlertType, DeliveryStatus
from app.ledger.pages import Page, PageRequest
from app.persistence.repositories import webhooks
from app.persistence.repositories.expressions import columns_of, read_page, upsert, values_of
from app.persistence.repositories.locks import ancestor_ids, descendant_ids
from app.persistence.tables import alerts, deliveries

COLUMNS = columns_of(alerts, Alert)


def add(tx: Connection, organisation_id: str, new: Iterable[Alert]) -> None:
    """Add new alerts, and a delivery to each webhook that wants them, ignoring duplicates."""
    wanting = webhooks.active(tx, organisation_id)
    for alert in new:
        added = upsert(tx, alerts).values(_values(organisation_id, alert)).on_conflict_do_nothing()
        if tx.execute(added.returning(alerts.c.id)).scalar() is None:
            continue
        scoped = any(each.account_id is not None for each in wanting)
        above = ancestor_ids(tx, organisation_id, alert.account_id) if scoped and alert.account_id is not None else ()
        address(tx, organisation_id, alert, [each.id for each in wanting if each.wants(alert.type, above)])


def add_test(tx: Connection, organisation_id: str, alert: Alert, webhook_id: str) -> str:
    """Add a test alert for one webhook; return the delivery's id."""
    tx.execute(insert(alerts).values(_values(organisation_id, alert)))
    [delivery_id] = address(tx, organisation_id, alert, [webhook_id])
    return delivery_id


def address(tx: Connection, organisation_id: str, alert: Alert, webhook_ids: Sequence[str]) -> list[str]:
    """Add an alert's deliveries, due now, to some webhooks; return their ids."""
    # Like all ids, it sorts by the time of creation, which is the alert's.
    made = [f"dlv_{alert.id[4:16]}{secrets.token_hex(8)}" for _ in webhook_ids]
    if made:
        rows = [
            {
                "organisation_id": organisation_id,
                "id": delivery_id,
                "webhook_id": webhook_id,
                "alert_id": alert.id,
                "status": str(DeliveryStatus.PENDING),
                "attempts": 0,
                "next_attempt_at": alert.created_at,
                "created_at": alert.created_at,
            }
            for delivery_id, webhook_id in zip(made, webhook_ids, strict=True)
        ]
        tx.execute(insert(deliveries), rows)
    return made


def page(tx: Connection, organisation_id: str, wanted: AlertFilter, request: PageRequest) -> Page[Alert]:
    """List alerts, newest first."""
    found = select(*COLUMNS).where(alerts.c.organisation_id == organisation_id)
    if wanted.kind is not None:
        found = found.where(alerts.c.type == str(wanted.kind))
    if wanted.within is not None:
        found = found.where(alerts.c.account_id.in_(descendant_ids(organisation_id, wanted.within)))
    return read_page(tx, found, alerts.c.id, request, read_alert)


def read_alert(row: Row[Any]) -> Alert:
    """Read an alert from its COLUMNS."""
    return Alert(**row._asdict() | {"type": AlertType(row.type), "payload": json.loads(row.payload)})


def _values(organisation_id: str, alert: Alert) -> dict[str, object]:
    return {"organisation_id": organisation_id, **values_of(alert), "payload": json.dumps(alert.payload)}
