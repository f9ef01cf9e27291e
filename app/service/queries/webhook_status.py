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


def read_webhooks(call: RequestContext, *, after: str | None, limit: int) -> list[WebhookStatus]:
    """List webhooks with their deliveries, in order of creation."""
    call.require_organisation_scope(Permission.WEBHOOK_MANAGE)
    with call.db.read(call.organisation_id) as tx:
        waiting = deliveries.waiting(tx, call.organisation_id)
        return [
            WebhookStatus(
                each,
                waiting.get(each.id, 0),
                tuple(
                    deliveries.page(
                        tx,
                        call.organisation_id,
                        webhook_id=each.id,
                        alert_id=None,
                        status=None,
                        before=None,
                        limit=LAST,
                    )
                ),
            )
            for each in webhooks.page(tx, call.organisation_id, after=after, limit=limit)
        ]
