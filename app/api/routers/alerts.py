"""Alerts: what was told of accounts, of what they tell, and what is to be expected of them."""

from typing import Annotated

from fastapi import Query, Request, Response

from app.api.pagination import After, PageLimit, decode_cursor, split_page
from app.api.problems import READ_ERRORS, WRITE_ERRORS, cacheable_responses, responses
from app.api.route import ContextDep, etag_response, router
from app.api.schemas.alerts import Alert, AlertPage, AlertSettings, Forecast, ReplaceAlertSettings
from app.persistence.repositories.alerts import AlertType
from app.service.alerts import settings

routes = router()


@routes.get(
    "/alerts",
    operation_id="listAlerts",
    summary="List alerts",
    tags=["alerts"],
    response_model=AlertPage,
    responses=cacheable_responses(*READ_ERRORS),
)
def list_alerts(
    request: Request,
    call: ContextDep,
    account: Annotated[
        str | None,
        Query(min_length=1, max_length=2000, description="Only what is about it (id or path), or beneath it."),
    ] = None,
    type: Annotated[AlertType | None, Query(description="Only what is of this type.")] = None,  # noqa: A002 - as on the wire
    limit: PageLimit = 50,
    after: After = None,
) -> Response:
    """Alerts of the caller's organisation, the newest first."""
    found = settings.list_alerts(call, account=account, kind=type, before=decode_cursor(after), limit=limit + 1)
    shown, following = split_page(found, limit, lambda alert: alert.id)
    return etag_response(request, AlertPage(items=[Alert.of(alert) for alert in shown], next=following))


@routes.get(
    "/accounts/{account_id}/alert-settings",
    operation_id="getAlertSettings",
    summary="Get the alert settings of an account",
    tags=["alerts"],
    response_model=AlertSettings,
    responses=cacheable_responses(*READ_ERRORS),
)
def get_alert_settings(account_id: str, request: Request, call: ContextDep) -> Response:
    """The thresholds of a population, a budget or a run, and how far ahead it tells of its limit."""
    return etag_response(request, AlertSettings.of(settings.get_alert_settings(call, account_id)))


@routes.put(
    "/accounts/{account_id}/alert-settings",
    operation_id="replaceAlertSettings",
    summary="Replace the alert settings of an account",
    tags=["alerts"],
    responses=responses(*WRITE_ERRORS, "not_found"),
)
def replace_alert_settings(account_id: str, body: ReplaceAlertSettings, call: ContextDep) -> AlertSettings:
    """Each threshold is told once under one and the same limit; those that are reached already are told now."""
    return AlertSettings.of(settings.set_alert_settings(call, account_id, body.tells()))


@routes.get(
    "/accounts/{account_id}/forecast",
    operation_id="getForecast",
    summary="Get the forecast of an account",
    tags=["alerts"],
    responses=responses(*READ_ERRORS),
)
def get_forecast(account_id: str, call: ContextDep) -> Forecast:
    """The pace of the last seven days, and when a population, a budget or a run is used up if it stays.

    It is made anew each time: the less was charged since the last answer, the later is the end.
    """
    record, seen = settings.get_forecast(call, account_id)
    return Forecast.of(record.account.id, seen)
