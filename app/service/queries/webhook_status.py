"""Read model of the webhooks page."""

from dataclasses import dataclass
from typing import Final

from app.ledger.alerts import Delivery, Webhook
from app.ledger.pages import Page, PageRequest
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


def read_webhooks(context: RequestContext, page: PageRequest) -> Page[WebhookStatus]:
    """List webhooks with their deliveries."""
    with context.read(Permission.WEBHOOK_MANAGE, whole_organisation=True) as tx:
        waiting = deliveries.waiting(tx, context.organisation_id)

        def status(webhook: Webhook) -> WebhookStatus:
            last = deliveries.page(tx, context.organisation_id, PageRequest(LAST), webhook_id=webhook.id)
            return WebhookStatus(webhook, waiting.get(webhook.id, 0), tuple(last.items))

        return webhooks.page(tx, context.organisation_id, page).map(lambda found: [status(each) for each in found])
