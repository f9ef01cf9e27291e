"""Read model of the webhooks page."""

from dataclasses import dataclass
from typing import Final

from app.ledger.alerts import Delivery, Webhook
from app.ledger.permissions import Permission
from app.persistence.repositories import deliveries, webhooks
from app.service.auth.request_context import RequestContext

LAST: Final = 5
"""Deliveries shown per webhook."""


@dataclass(frozen=True, slots=True)
class WebhookStatus:
    """A webhook with its number of pending deliveries, and its newest deliveries."""

    webhook: Webhook
    waiting: int
    last: tuple[Delivery, ...]


def read_webhooks(context: RequestContext, *, after: str | None, limit: int) -> list[WebhookStatus]:
    """List webhooks with their deliveries, in order of creation."""
    context.require_organisation_scope(Permission.WEBHOOK_MANAGE)
    with context.db.read(context.organisation_id) as tx:
        waiting = deliveries.waiting(tx, context.organisation_id)
        found = []
        for each in webhooks.page(tx, context.organisation_id, after=after, limit=limit):
            last = deliveries.page(
                tx, context.organisation_id, webhook_id=each.id, alert_id=None, status=None, before=None, limit=LAST
            )
            found.append(WebhookStatus(each, waiting.get(each.id, 0), tuple(last)))
        return found
