"""Alerts, alert settings and forecasts."""

from collections.abc import Sequence

from epsilon_ledger._wire.alert_models import Alert, AlertSettings, Forecast
from epsilon_ledger._wire.coercion import items
from epsilon_ledger._wire.references import find_account_id
from epsilon_ledger._wire.requests import Listing, RequestFlow, get, path, put


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
    body: dict[str, object] = {"thresholds": items("thresholds", thresholds, "[0.5, 0.8]")}
    account_id = yield from find_account_id(account)
    if forecast_days is not None:
        body["forecast_days"] = forecast_days
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
