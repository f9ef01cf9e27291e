"""Webhooks end: by somebody's word, or by the receiver's."""

from datetime import datetime
from urllib.parse import urlsplit

from sqlalchemy import Connection

from app.ledger.audit_actions import AuditAction
from app.ledger.hash_chain import Actor, digest
from app.persistence.repositories import deliveries, webhooks
from app.persistence.repositories.webhooks import Webhook
from app.service.audit_log import AuditEvent, record_event


def disable(tx: Connection, organisation_id: str, webhook: Webhook, asker: Actor, why: str, now: datetime) -> None:
    """Disable a webhook, give up what is pending for it, and keep who did it.

    Args:
        tx: a writer's transaction, which has locked the organisation.
        organisation_id: whose webhook.
        webhook: it is not disabled.
        asker: who does it.
        why: for whoever reads it.
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
    """What the chain keeps of a webhook: of its URL only the host, as the rest may be a secret of the receiver's."""
    return {
        "host": urlsplit(webhook.url).hostname,
        "types": list(webhook.types),
        "account": webhook.account_id,
        "url_sha256": digest(webhook.url),
        "secret_sha256": digest(webhook.secret),
    }
