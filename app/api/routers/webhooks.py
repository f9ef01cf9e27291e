"""Webhooks and their deliveries."""

from http import HTTPStatus
from typing import Annotated

from fastapi import Query, Request, Response

from app.api.idempotency import IdempotencyDep
from app.api.pagination import PageRequestDep, page_response
from app.api.problems import LIST_ERRORS, READ_ERRORS, WRITE_ERRORS, responses
from app.api.route import ContextDep, etag_response, router
from app.api.schemas.alerts import (
    CreatedWebhook,
    CreateWebhook,
    Delivery,
    DeliveryPage,
    RotateWebhookSecret,
    Webhook,
    WebhookPage,
)
from app.ledger.alerts import DeliveryStatus
from app.service.alerts import webhooks

routes = router("webhooks")

_CHANGING = (*WRITE_ERRORS, "not_found")
_CONFLICTING = (*_CHANGING, "webhook_state_conflict")


@routes.create("/webhooks", "Create a webhook", CreatedWebhook, *_CONFLICTING)
def create_webhook(body: CreateWebhook, request: Request, context: ContextDep, idempotency: IdempotencyDep) -> Response:
    """Create a webhook, which posts alerts by the Standard Webhooks specification.

    Only this response contains the secret; the request therefore takes no Idempotency-Key.
    """
    private = request.app.state.webhooks_allow_private
    return idempotency.respond_with_secret(
        webhooks.create_webhook(context, body.subscription(), allow_private=private),
        CreatedWebhook.of,
        "disable the webhook whose secret is lost and create another one",
    )


@routes.read("/webhooks", "List webhooks", WebhookPage, *LIST_ERRORS)
def list_webhooks(request: Request, context: ContextDep, page: PageRequestDep) -> Response:
    """List the organisation's webhooks, newest first, disabled ones included."""
    return page_response(request, webhooks.list_webhooks(context, page), WebhookPage, Webhook.of)


@routes.read("/webhooks/{webhook_id}", "Get a webhook", Webhook, *READ_ERRORS, "insufficient_scope")
def get_webhook(webhook_id: str, request: Request, context: ContextDep) -> Response:
    """Get a webhook's URL, alert types and status."""
    return etag_response(request, Webhook.of(webhooks.get_webhook(context, webhook_id)))


@routes.change("/webhooks/{webhook_id}/disable", "Disable a webhook", *_CHANGING)
def disable_webhook(webhook_id: str, context: ContextDep) -> Webhook:
    """Disable a webhook, and give up its pending deliveries."""
    return Webhook.of(webhooks.disable_webhook(context, webhook_id))


@routes.change("/webhooks/{webhook_id}/enable", "Enable a webhook", *_CONFLICTING)
def enable_webhook(webhook_id: str, context: ContextDep) -> Webhook:
    """Enable a disabled webhook, which gets new alerts. Deliveries that were given up can be retried one by one."""
    return Webhook.of(webhooks.enable_webhook(context, webhook_id))


@routes.delete("/webhooks/{webhook_id}", summary="Delete a webhook", status_code=204, responses=responses(*_CHANGING))
def delete_webhook(webhook_id: str, context: ContextDep) -> Response:
    """Delete a webhook and its deliveries. Its alerts stay in the list of alerts, and the audit log keeps its facts."""
    webhooks.delete_webhook(context, webhook_id)
    return Response(status_code=HTTPStatus.NO_CONTENT)


@routes.create("/webhooks/{webhook_id}/rotate", "Rotate the secret of a webhook", CreatedWebhook, *_CONFLICTING)
def rotate_webhook_secret(
    webhook_id: str, context: ContextDep, idempotency: IdempotencyDep, body: RotateWebhookSecret | None = None
) -> Response:
    """Rotate the secret. During the overlap requests have two signatures, so that the receiver can switch at any time.

    Only this response contains the secret; the request therefore takes no Idempotency-Key.
    """
    effect = webhooks.rotate_secret(context, webhook_id, (body or RotateWebhookSecret()).overlap_seconds)
    return idempotency.respond_with_secret(effect, CreatedWebhook.of, "ask again, for another one still")


@routes.create("/webhooks/{webhook_id}/test", "Send a test event", Delivery, *_CONFLICTING, "idempotency_key_reused")
def send_test_event(webhook_id: str, context: ContextDep, idempotency: IdempotencyDep) -> Response:
    """Send a `webhook.test` alert at once; the list of deliveries has its result."""
    return idempotency.respond(webhooks.send_test_event(context, webhook_id), Delivery.of)


@routes.read("/deliveries", "List deliveries", DeliveryPage, *LIST_ERRORS)
def list_deliveries(
    request: Request,
    context: ContextDep,
    page: PageRequestDep,
    *,
    webhook: Annotated[str | None, Query(max_length=100, description="Only deliveries to this webhook (id).")] = None,
    alert: Annotated[str | None, Query(max_length=100, description="Only deliveries of this alert (id).")] = None,
    status: Annotated[DeliveryStatus | None, Query(description="Only items with this status.")] = None,
) -> Response:
    """List the organisation's deliveries, newest first."""
    found = webhooks.list_deliveries(context, page, webhook=webhook, alert=alert, status=status)
    return page_response(request, found, DeliveryPage, Delivery.of)


@routes.change("/deliveries/{delivery_id}/retry", "Retry a delivery", *_CONFLICTING)
def retry_delivery(delivery_id: str, context: ContextDep) -> Delivery:
    """Retry a delivery at once, whatever its status."""
    return Delivery.of(webhooks.retry_delivery(context, delivery_id))
