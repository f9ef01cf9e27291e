"""Webhooks as those see them who look after them: what waits, and how the last deliveries went."""

from dataclasses import dataclass
from typing import Final

from app.ledger.permissions import Permission
from app.persistence.repositories import deliveries, webhooks
from app.persistence.repositories.deliveries import Delivery
from app.persistence.repositories.webhooks import Webhook
from app.service.auth.request_context import RequestContext

LAST: Final = 5
"""Of the deliveries to each webhook."""


@dataclass(frozen=True, slots=True)
class WebhookStatus:
    """A webhook, and how it does.

    Args:
        webhook: as it is stored.
        waiting: how many deliveries are pending.
        last: the newest deliveries first.
    """

    webhook: Webhook
    waiting: int
    last: tuple[Delivery, ...]


def read_webhooks(call: RequestContext, *, after: str | None, limit: int) -> list[WebhookStatus]:
    """Read webhooks in the order of their making, and how they do.

    Args:
        call: needs WEBHOOK_MANAGE, in the whole organisation.
        after: only those after this id.
        limit: how many at the most.
    """
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
