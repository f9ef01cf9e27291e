"""Alerts, alert settings, forecasts, webhooks and deliveries."""

from collections.abc import Sequence

from epsilon_ledger._wire.alert_models import (
    Alert,
    AlertSettings,
    CreatedWebhook,
    Delivery,
    DeliveryStatus,
    Forecast,
    Webhook,
)
from epsilon_ledger._wire.references import find_account_id
from epsilon_ledger._wire.requests import Call, Listing, RequestFlow, get, path, post, post_for_secret, put


def list_alerts(
    *,
    account: str | None = None,
    type: str | None = None,  # noqa: A002 - as on the wire
    page_size: int = 100,
) -> Listing[Alert]:
    """List alerts, newest first.

    Args:
        account: only those about this account, an id or a path, and accounts under it.
        type: only those of this type, "account.exhausted" for instance.
        page_size: items of one request, in [1, 200].

    Returns:
        An iterator, which requests a page when it is needed.

    Raises:
        LedgerError: while iterating: the account does not exist, or no response arrived.
    """
    return Listing("v1/alerts", {"account": account, "type": type}, Alert, page_size)


def get_alert_settings(account: str) -> RequestFlow[AlertSettings]:
    """Get the alert settings of an account.

    Args:
        account: id or path of a population, a budget or a run.

    Returns:
        Its thresholds, and the days of its forecast.

    Raises:
        LedgerError: the account does not exist, or no response arrived.
    """
    account_id = yield from find_account_id(account)
    return (yield get(f"{path('accounts', account_id)}/alert-settings")).read(AlertSettings)


def replace_alert_settings(
    account: str, *, thresholds: Sequence[float], forecast_days: int | None = None
) -> RequestFlow[AlertSettings]:
    """Replace the alert settings of an account.

    Args:
        account: id or path of a population, a budget or a run.
        thresholds: increasing shares of the limit's epsilon, each of which alerts once; those already reached alert
            now. Empty: none.
        forecast_days: alert if the limit is forecast to be exhausted within so many days; 0: never, None: the ledger's
            default.

    Returns:
        The new settings.

    Raises:
        LedgerError: they were not replaced, or no response arrived.
    """
    account_id = yield from find_account_id(account)
    body = {"thresholds": list(thresholds), "forecast_days": forecast_days}
    return (yield put(f"{path('accounts', account_id)}/alert-settings", body)).read(AlertSettings)


def get_forecast(account: str) -> RequestFlow[Forecast]:
    """Get the pace of an account, and when its limit is exhausted at this pace.

    Args:
        account: id or path of a population, a budget or a run.

    Returns:
        The forecast, computed now.

    Raises:
        LedgerError: the account does not exist, or no response arrived.
    """
    account_id = yield from find_account_id(account)
    return (yield get(f"{path('accounts', account_id)}/forecast")).read(Forecast)


def create_webhook(url: str, *, types: Sequence[str] = (), account: str | None = None) -> Call[CreatedWebhook]:
    """Create a webhook, to which alerts are posted.

    Args:
        url: of the receiver, https only.
        types: of alerts; empty: all.
        account: only alerts about this account, an id or a path, and accounts under it; None: all.

    Returns:
        The webhook with its secret, which is not shown again.

    Raises:
        LedgerUnavailableError: no response arrived. If it is `in_doubt`, list the webhooks and disable an unknown one:
            the request is not repeated, because the ledger keeps no secret to answer it again.
        LedgerError: any other failure.
    """
    return Call(post_for_secret("v1/webhooks", {"url": url, "types": list(types), "account": account}), CreatedWebhook)


def list_webhooks(*, page_size: int = 100) -> Listing[Webhook]:
    """List webhooks, newest first.

    Args:
        page_size: items of one request, in [1, 200].

    Returns:
        An iterator, which requests a page when it is needed.

    Raises:
        LedgerError: while iterating: no response arrived.
    """
    return Listing("v1/webhooks", {}, Webhook, page_size)


def get_webhook(webhook_id: str) -> Call[Webhook]:
    """Get a webhook.

    Args:
        webhook_id: its id.

    Returns:
        The webhook, without its secret.

    Raises:
        LedgerError: it does not exist, or no response arrived.
    """
    return Call(get(path("webhooks", webhook_id)), Webhook)


def disable_webhook(webhook_id: str) -> Call[Webhook]:
    """Disable a webhook, and give up its pending deliveries.

    Args:
        webhook_id: its id.

    Returns:
        The webhook.

    Raises:
        LedgerError: it does not exist, or no response arrived.
    """
    return Call(post(f"{path('webhooks', webhook_id)}/disable", {}), Webhook)


def rotate_webhook_secret(webhook_id: str, *, overlap_seconds: int | None = None) -> Call[CreatedWebhook]:
    """Rotate the secret of a webhook.

    Args:
        webhook_id: its id.
        overlap_seconds: seconds during which the previous secret signs too; None: the ledger's default.

    Returns:
        The webhook with its new secret, which is not shown again.

    Raises:
        WebhookStateConflictError: the webhook is disabled.
        LedgerError: as in `create_webhook`.
    """
    body = {"overlap_seconds": overlap_seconds}
    return Call(post_for_secret(f"{path('webhooks', webhook_id)}/rotate", body), CreatedWebhook)


def send_test_event(webhook_id: str) -> Call[Delivery]:
    """Send a test event to a webhook.

    Args:
        webhook_id: its id.

    Returns:
        The pending delivery.

    Raises:
        WebhookStateConflictError: the webhook is disabled.
        LedgerError: any other failure.
    """
    return Call(post(f"{path('webhooks', webhook_id)}/test", {}), Delivery)


def list_deliveries(
    *,
    webhook: str | None = None,
    alert: str | None = None,
    status: DeliveryStatus | None = None,
    page_size: int = 100,
) -> Listing[Delivery]:
    """List deliveries of alerts to webhooks, newest first.

    Args:
        webhook: only those to the webhook with this id.
        alert: only those of the alert with this id.
        status: only those with this status.
        page_size: items of one request, in [1, 200].

    Returns:
        An iterator, which requests a page when it is needed.

    Raises:
        LedgerError: while iterating: no response arrived.
    """
    return Listing("v1/deliveries", {"webhook": webhook, "alert": alert, "status": status}, Delivery, page_size)


def retry_delivery(delivery_id: str) -> Call[Delivery]:
    """Deliver an alert again.

    Args:
        delivery_id: its id.

    Returns:
        The pending delivery.

    Raises:
        WebhookStateConflictError: the webhook is disabled.
        LedgerError: any other failure.
    """
    return Call(post(f"{path('deliveries', delivery_id)}/retry", {}), Delivery)
