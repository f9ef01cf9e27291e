"""Alerts, alert settings and forecasts."""

from fastapi import Request, Response

from app.api.lists import ListEndpoint, add_list
from app.api.problems import READ_ERRORS, WRITE_ERRORS, responses
from app.api.route import ContextDep, etag_response, router
from app.api.schemas.alerts import Alert, AlertSettings, Forecast, ReplaceAlertSettings
from app.ledger.accounts.alerts import AlertFilter
from app.service.alerts import settings

routes = router("alerts")


add_list(
    routes,
    ListEndpoint("alerts", AlertFilter, settings.list_alerts, Alert),
)


@routes.read(
    "/accounts/{account_id}/alert-settings", "Get the alert settings of an account", AlertSettings, *READ_ERRORS
)
def get_alert_settings(account_id: str, request: Request, context: ContextDep) -> Response:
    """Get the thresholds and the forecast period of a population, a budget or a run."""
    return etag_response(request, AlertSettings.of(settings.get_alert_settings(context, account_id)))


@routes.change(
    "/accounts/{account_id}/alert-settings",
    "Replace the alert settings of an account",
    *WRITE_ERRORS,
    "not_found",
    method="PUT",
)
def replace_alert_settings(account_id: str, body: ReplaceAlertSettings, context: ContextDep) -> AlertSettings:
    """Replace the settings. Each threshold alerts once for a limit; those already reached alert now."""
    return AlertSettings.of(settings.set_alert_settings(context, account_id, body.domain()))


@routes.get(
    "/accounts/{account_id}/forecast", summary="Get the forecast of an account", responses=responses(*READ_ERRORS)
)
def get_forecast(account_id: str, context: ContextDep) -> Forecast:
    """Get the pace of the last seven days, and when the limit is exhausted at this pace.

    The forecast is computed on request: without further charges, the end moves later.
    """
    return Forecast.of(settings.get_forecast(context, account_id))
