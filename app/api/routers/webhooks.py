"""Webhooks and their deliveries."""

from typing import Annotated

from fastapi import Query, Request, Response

from app.api.idempotency import IdempotencyDep
from app.api.pagination import PageRequestDep, page_response
from app.api.problems import AUTH_ERRORS, READ_ERRORS, WRITE_ERRORS, cacheable_responses, responses
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
_MAKING = (*_CHANGING, "idempotency_key_reused", "webhook_state_conflict")


@routes.post(
    "/webhooks",
    summary="Create a webhook",
    status_code=201,
    response_model=CreatedWebhook,
    responses=responses(*_CHANGING, "webhook_state_conflict"),
)
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


@routes.get(
    "/webhooks",
    summary="List webhooks",
    response_model=WebhookPage,
    responses=cacheable_responses(*AUTH_ERRORS, "insufficient_scope", "invalid_request"),
)
def list_webhooks(request: Request, context: ContextDep, page: PageRequestDep) -> Response:
    """List the organisation's webhooks, newest first, disabled ones included."""
    return page_response(request, webhooks.list_webhooks(context, page), WebhookPage, Webhook.of)


@routes.get(
    "/webhooks/{webhook_id}",
    summary="Get a webhook",
    response_model=Webhook,
    responses=cacheable_responses(*READ_ERRORS, "insufficient_scope"),
)
def get_webhook(webhook_id: str, request: Request, context: ContextDep) -> Response:
    """Get a webhook's URL, alert types and status."""
    return etag_response(request, Webhook.of(webhooks.get_webhook(context, webhook_id)))


@routes.post(
    "/webhooks/{webhook_id}/disable",
    summary="Disable a webhook",
    responses=responses(*_CHANGING),
)
def disable_webhook(webhook_id: str, context: ContextDep) -> Webhook:
    """Disable a webhook for good, and cancel its pending deliveries. Create a new one to receive alerts again."""
    return Webhook.of(webhooks.disable_webhook(context, webhook_id))


@routes.post(
    "/webhooks/{webhook_id}/rotate",
    summary="Rotate the secret of a webhook",
    status_code=201,
    response_model=CreatedWebhook,
    responses=responses(*_CHANGING, "webhook_state_conflict"),
)
def rotate_webhook_secret(
    webhook_id: str, context: ContextDep, idempotency: IdempotencyDep, body: RotateWebhookSecret | None = None
) -> Response:
    """Rotate the secret. During the overlap requests have two signatures, so that the receiver can switch at any time.

    Only this response contains the secret; the request therefore takes no Idempotency-Key.
    """
    effect = webhooks.rotate_secret(context, webhook_id, (body or RotateWebhookSecret()).overlap_seconds)
    return idempotency.respond_with_secret(effect, CreatedWebhook.of, "ask again, for another one still")


@routes.post(
    "/webhooks/{webhook_id}/test",
    summary="Send a test event",
    status_code=201,
    response_model=Delivery,
    responses=responses(*_MAKING),
)
def send_test_event(webhook_id: str, context: ContextDep, idempotency: IdempotencyDep) -> Response:
    """Send a `webhook.test` alert at once; the list of deliveries has its result."""
    return idempotency.respond(webhooks.send_test_event(context, webhook_id), Delivery.of)


@routes.get(
    "/deliveries",
    summary="List deliveries",
    response_model=DeliveryPage,
    responses=cacheable_responses(*AUTH_ERRORS, "insufficient_scope", "invalid_request"),
)
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


@routes.post(
    "/deliveries/{delivery_id}/retry",
    summary="Retry a delivery",
    responses=responses(*_CHANGING, "webhook_state_conflict"),
)
def retry_delivery(delivery_id: str, context: ContextDep) -> Delivery:
    """Retry a delivery at once, whatever its status."""
    return Delivery.of(webhooks.retry_delivery(context, delivery_id))
