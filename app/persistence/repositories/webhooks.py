"""Webhooks: the receivers of alerts."""

import json
from datetime import datetime
from typing import Any

from sqlalchemy import Connection, Row, Select, Update, func, insert, select, update

from app.ledger.alerts import Webhook
from app.ledger.pages import Page, PageRequest
from app.persistence.repositories import expressions
from app.persistence.repositories.expressions import columns_of, owned_by, read_page, values_of
from app.persistence.tables import webhooks

COLUMNS = columns_of(webhooks, Webhook)


def add(tx: Connection, organisation_id: str, webhook: Webhook) -> None:
    """Add a webhook."""
    values = values_of(webhook) | {"types": json.dumps(webhook.types)}
    tx.execute(insert(webhooks).values(organisation_id=organisation_id, **values, consecutive_failures=0))


def find(tx: Connection, organisation_id: str, webhook_id: str) -> Webhook | None:
    """Find a webhook by id."""
    row = tx.execute(_of(organisation_id).where(webhooks.c.id == webhook_id)).one_or_none()
    return None if row is None else read_webhook(row)


def newest_id(tx: Connection, organisation_id: str) -> str | None:
    """Get the greatest id."""
    return expressions.newest_id(tx, webhooks, organisation_id, "whk")


def active(tx: Connection, organisation_id: str) -> list[Webhook]:
    """List the enabled webhooks by id, locked against disabling until the transaction ends."""
    found = _of(organisation_id).where(webhooks.c.disabled_at.is_(None)).order_by(webhooks.c.id)
    return [read_webhook(row) for row in tx.execute(found.with_for_update(read=True))]


def page(tx: Connection, organisation_id: str, request: PageRequest) -> Page[Webhook]:
    """List webhooks, newest first."""
    return read_page(tx, _of(organisation_id), webhooks.c.id, request, read_webhook)


def save_secrets(tx: Connection, organisation_id: str, webhook: Webhook) -> None:
    """Write a webhook's secrets."""
    names = ("secret", "previous_secret", "previous_secret_expires_at")
    tx.execute(_this(organisation_id, webhook.id).values(values_of(webhook, names)))


def disable(tx: Connection, organisation_id: str, webhook_id: str, why: str, now: datetime) -> None:
    """Disable a webhook; the first reason stays."""
    this = _this(organisation_id, webhook_id).where(webhooks.c.disabled_at.is_(None))
    tx.execute(this.values(disabled_at=now, disabled_reason=why))


def note_success(tx: Connection, organisation_id: str, webhook_id: str) -> None:
    """Reset a webhook's failures after an acknowledged delivery."""
    tx.execute(
        _this(organisation_id, webhook_id)
        .where(webhooks.c.consecutive_failures > 0)
        .values(consecutive_failures=0, failing_since=None)
    )


def note_failure(tx: Connection, organisation_id: str, webhook_id: str, now: datetime) -> tuple[int, datetime]:
    """Count a failed attempt; return the consecutive failures and when they began."""
    failed = _this(organisation_id, webhook_id).values(
        consecutive_failures=webhooks.c.consecutive_failures + 1,
        failing_since=func.coalesce(webhooks.c.failing_since, now),
    )
    row = tx.execute(failed.returning(webhooks.c.consecutive_failures, webhooks.c.failing_since)).one()
    return row.consecutive_failures, row.failing_since


def read_webhook(row: Row[Any]) -> Webhook:
    """Read a webhook from its COLUMNS."""
    return Webhook(**row._asdict() | {"types": tuple(json.loads(row.types))})


def _of(organisation_id: str) -> Select[Any]:
    return select(*COLUMNS).where(webhooks.c.organisation_id == organisation_id)


def _this(organisation_id: str, webhook_id: str) -> Update:
    return update(webhooks).where(owned_by(webhooks, organisation_id, id=webhook_id))
