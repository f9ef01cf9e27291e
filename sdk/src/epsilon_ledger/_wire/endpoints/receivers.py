"""Receivers of alerts, and deliveries to them."""

from collections.abc import Sequence

from epsilon_ledger._wire.alert_models import CreatedReceiver, Delivery, DeliveryStatus, Receiver, ReceiverKind
from epsilon_ledger._wire.coercion import items
from epsilon_ledger._wire.requests import Call, Listing, RequestFlow, delete, get, path, post, post_for_secret


def create_receiver(
    kind: ReceiverKind = "webhook",
    *,
    url: str | None = None,
    addresses: Sequence[str] = (),
    types: Sequence[str] = (),
    account: str | None = None,
) -> Call[CreatedReceiver]:
    """Create a receiver, to which alerts are sent.

    Args:
        kind: a webhook, a chat, or mail.
        url: where to, https only; of a chat, its incoming webhook or workflow. Required unless `email`.
        addresses: mail addresses, for `email`.
        types: of alerts; empty: all.
        account: only alerts about this account, an id or a path, and accounts under it; None: all.

    Returns:
        The receiver. That of a webhook has a secret, which is not shown again.

    Raises:
        LedgerUnavailableError: no response arrived. If it is `in_doubt`, list the receivers and delete an unknown one:
            the request is not repeated, because the ledger keeps no secret to answer it again.
        LedgerError: any other failure.
    """
    body: dict[str, object] = {
        "kind": kind,
        "url": url,
        "addresses": items("addresses", addresses, '["privacy@hospital.example"]') or None,
        "types": items("types", types, '["account.exhausted"]'),
        "account": account,
    }
    return Call(post_for_secret("v1/receivers", body), CreatedReceiver)


def list_receivers(*, page_size: int = 100) -> Listing[Receiver]:
    """List receivers, newest first.

    Args:
        page_size: items of one request, in [1, 200].

    Returns:
        An iterator, which requests a page when it is needed.

    Raises:
        LedgerError: while iterating: no response arrived.
    """
    return Listing("v1/receivers", {}, Receiver, page_size)


def get_receiver(receiver_id: str) -> Call[Receiver]:
    """Get a receiver.

    Args:
        receiver_id: its id.

    Returns:
        The receiver, without its secret.

    Raises:
        LedgerError: it does not exist, or no response arrived.
    """
    return Call(get(path("receivers", receiver_id)), Receiver)


def enable_receiver(receiver_id: str) -> Call[Receiver]:
    """Enable a disabled receiver, which gets new alerts.

    Args:
        receiver_id: its id.

    Returns:
        The receiver.

    Raises:
        ReceiverStateConflictError: the organisation has as many as it may.
        LedgerError: it does not exist, or no response arrived.
    """
    return Call(post(f"{path('receivers', receiver_id)}/enable", {}), Receiver)


def disable_receiver(receiver_id: str) -> Call[Receiver]:
    """Disable a receiver, and give up its pending deliveries.

    Args:
        receiver_id: its id.

    Returns:
        The receiver.

    Raises:
        LedgerError: it does not exist, or no response arrived.
    """
    return Call(post(f"{path('receivers', receiver_id)}/disable", {}), Receiver)


def delete_receiver(receiver_id: str) -> RequestFlow[None]:
    """Delete a receiver and its deliveries; the alerts stay.

    Args:
        receiver_id: its id.

    Raises:
        NotFoundError: it does not exist. After attempts without an answer, one of them may have deleted it.
        LedgerError: no response arrived.
    """
    yield delete(path("receivers", receiver_id))


def rotate_receiver_secret(receiver_id: str, *, overlap_seconds: int | None = None) -> Call[CreatedReceiver]:
    """Rotate the secret of a webhook.

    Args:
        receiver_id: its id.
        overlap_seconds: seconds during which the previous secret signs too; None: the ledger's default.

    Returns:
        The receiver with its new secret, which is not shown again.

    Raises:
        ReceiverStateConflictError: the receiver is disabled.
        LedgerError: as in `create_receiver`.
    """
    body = {"overlap_seconds": overlap_seconds}
    return Call(post_for_secret(f"{path('receivers', receiver_id)}/rotate", body), CreatedReceiver)


def send_test_event(receiver_id: str) -> Call[Delivery]:
    """Send a test event to a receiver.

    Args:
        receiver_id: its id.

    Returns:
        The pending delivery.

    Raises:
        ReceiverStateConflictError: the receiver is disabled.
        LedgerError: any other failure.
    """
    return Call(post(f"{path('receivers', receiver_id)}/test", {}), Delivery)


def list_deliveries(
    *,
    receiver: str | None = None,
    alert: str | None = None,
    status: DeliveryStatus | None = None,
    page_size: int = 100,
) -> Listing[Delivery]:
    """List deliveries of alerts to receivers, newest first.

    Args:
        receiver: only those to the receiver with this id.
        alert: only those of the alert with this id.
        status: only those with this status.
        page_size: items of one request, in [1, 200].

    Returns:
        An iterator, which requests a page when it is needed.

    Raises:
        LedgerError: while iterating: no response arrived.
    """
    return Listing("v1/deliveries", {"receiver": receiver, "alert": alert, "status": status}, Delivery, page_size)


def retry_delivery(delivery_id: str) -> Call[Delivery]:
    """Deliver an alert again.

    Args:
        delivery_id: its id.

    Returns:
        The pending delivery.

    Raises:
        ReceiverStateConflictError: the receiver is disabled.
        LedgerError: any other failure.
    """
    return Call(post(f"{path('deliveries', delivery_id)}/retry", {}), Delivery)
