"""Receivers and their deliveries."""

from http import HTTPStatus

from fastapi import Request, Response

from app.api.idempotency import IdempotencyDep
from app.api.lists import ListEndpoint, NoFilter, add_list, unfiltered
from app.api.problems import READ_ERRORS, WRITE_ERRORS, responses
from app.api.route import ContextDep, etag_response, router
from app.api.schemas.alerts import (
    CreatedReceiver,
    CreateReceiver,
    Delivery,
    Receiver,
    RotateReceiverSecret,
)
from app.ledger.accounts.alerts import DeliveryFilter
from app.service.alerts import receivers
from app.service.alerts.receivers import ReceiverRules

routes = router("receivers")

_CHANGING = (*WRITE_ERRORS, "not_found")
_CONFLICTING = (*_CHANGING, "receiver_state_conflict")


@routes.create("/receivers", "Create a receiver", CreatedReceiver, *_CONFLICTING)
def create_receiver(
    body: CreateReceiver, request: Request, context: ContextDep, idempotency: IdempotencyDep
) -> Response:
    """Create a receiver: a webhook by the Standard Webhooks specification, a channel of a chat, or mail addresses.

    Only this response contains the secret; the request therefore takes no Idempotency-Key.
    """
    rules: ReceiverRules = request.app.state.receiver_rules
    return idempotency.respond_with_secret(
        receivers.create_receiver.effect(context, body.subscription(), rules),
        CreatedReceiver.of,
        "delete the receiver whose secret is lost and create another one",
    )


add_list(routes, ListEndpoint("receivers", NoFilter, unfiltered(receivers.list_receivers), Receiver))


@routes.read("/receivers/{receiver_id}", "Get a receiver", Receiver, *READ_ERRORS, "permission_denied")
def get_receiver(receiver_id: str, request: Request, context: ContextDep) -> Response:
    """Get a receiver's kind, destination, alert types and status."""
    return etag_response(request, Receiver.of(receivers.get_receiver(context, receiver_id)))


@routes.change("/receivers/{receiver_id}/disable", "Disable a receiver", *_CHANGING)
def disable_receiver(receiver_id: str, context: ContextDep) -> Receiver:
    """Disable a receiver, and give up its pending deliveries."""
    return Receiver.of(receivers.disable_receiver(context, receiver_id))


@routes.change("/receivers/{receiver_id}/enable", "Enable a receiver", *_CONFLICTING)
def enable_receiver(receiver_id: str, context: ContextDep) -> Receiver:
    """Enable a disabled receiver, which gets new alerts. Deliveries that were given up can be retried one by one."""
    return Receiver.of(receivers.enable_receiver(context, receiver_id))


@routes.delete(
    "/receivers/{receiver_id}", summary="Delete a receiver", status_code=204, responses=responses(*_CHANGING)
)
def delete_receiver(receiver_id: str, context: ContextDep) -> Response:
    """Delete a receiver and its deliveries. The alerts stay, and the audit log keeps its facts."""
    receivers.delete_receiver(context, receiver_id)
    return Response(status_code=HTTPStatus.NO_CONTENT)


@routes.create("/receivers/{receiver_id}/rotate", "Rotate the secret of a receiver", CreatedReceiver, *_CONFLICTING)
def rotate_receiver_secret(
    receiver_id: str, context: ContextDep, idempotency: IdempotencyDep, body: RotateReceiverSecret | None = None
) -> Response:
    """Rotate the secret of a webhook.

    During the overlap requests have two signatures, so that the receiver can switch at any time.

    Only this response contains the secret; the request therefore takes no Idempotency-Key.
    """
    effect = receivers.rotate_secret.effect(context, receiver_id, (body or RotateReceiverSecret()).overlap_seconds)
    return idempotency.respond_with_secret(effect, CreatedReceiver.of, "ask again, for another one still")


@routes.create("/receivers/{receiver_id}/test", "Send a test event", Delivery, *_CONFLICTING, "idempotency_key_reused")
def send_test_event(receiver_id: str, context: ContextDep, idempotency: IdempotencyDep) -> Response:
    """Send a `receiver.test` alert at once; the list of deliveries has its result."""
    return idempotency.respond(receivers.send_test_event.effect(context, receiver_id), Delivery.of)


add_list(routes, ListEndpoint("deliveries", DeliveryFilter, receivers.list_deliveries, Delivery))


@routes.change("/deliveries/{delivery_id}/retry", "Retry a delivery", *_CONFLICTING)
def retry_delivery(delivery_id: str, context: ContextDep) -> Delivery:
    """Retry a delivery at once, whatever its status."""
    return Delivery.of(receivers.retry_delivery(context, delivery_id))
