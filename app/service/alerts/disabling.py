"""Disabling of webhooks, by a user or after a receiver's 410."""

from datetime import datetime
from urllib.parse import urlsplit

from sqlalchemy import Connection

from app.ledger.audit_actions import AuditAction
from app.ledger.hash_chain import Actor, digest
from app.persistence.repositories import deliveries, webhooks
from app.persistence.repositories.webhooks import Webhook
from app.service.audit_log import AuditEvent, record_event


def disable(tx: Connection, organisation_id: str, webhook: Webhook, asker: Actor, why: str, now: datetime) -> None:
    """Disable an active webhook, cancel its deliveries and record the audit event.

    Args:
        tx: a write transaction that holds the organisation's lock.
        organisation_id: owner of the webhook.
        webhook: to disable.
        asker: actor of the audit event.
        why: reason, for display.
        now: in UTC.
    """
    webhooks.disable(tx, organisation_id, webhook.id, why, now)
    deliveries.give_up(tx, organisation_id, webhook.id)
    record_event(
        tx,
        organisation_id,
        asker,
        AuditEvent(AuditAction.WEBHOOK_DISABLED, webhook.id, before=facts(webhook), reason=why),
        now,
    )


def facts(webhook: Webhook) -> dict[str, object]:
    """Build the audited facts of a webhook; only the host of its URL, the rest may be secret."""
    return {
        "host": urlsplit(webhook.url).hostname,
        "types": list(webhook.types),
        "account": webhook.account_id,
        "url_sha256": digest(webhook.url),
        "secret_sha256": digest(webhook.secret),
    }
