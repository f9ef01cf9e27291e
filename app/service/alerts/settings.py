"""Alert settings, alerts and forecasts of accounts.

An account is given by id or path. NotFoundError: it does not exist; PermissionDeniedError: it is out of the caller's
scope.
"""

from dataclasses import replace

from sqlalchemy import Connection

from app.ledger.accounts.account_records import reached
from app.ledger.accounts.alerts import Alert, AlertFilter, AlertSettings, check_thresholds
from app.ledger.errors import InvalidInputError
from app.ledger.governance.settings import ALERT_SETTINGS
from app.ledger.pages import Page, PageRequest
from app.persistence.repositories import account_writes, alerts
from app.service.accounts.lookup import find_account, find_path_of, find_scope
from app.service.alerts.alert_factory import threshold_alerts
from app.service.alerts.forecasts import PathForecast, forecast_path
from app.service.auth.request_context import RequestContext
from app.service.auth.use_cases import use_case


def list_alerts(context: RequestContext, wanted: AlertFilter, page: PageRequest) -> Page[Alert]:
    """List alerts in the caller's scope; needs LEDGER_READ. `wanted.within` is an id or a path."""
    with context.read() as tx:
        reachable = replace(wanted, within=find_scope(tx, context, wanted.within))
        return alerts.list_alerts(tx, context.organisation_id, reachable, page)


def get_alert_settings(context: RequestContext, account: str) -> AlertSettings:
    """Get the alert settings of an account; needs LEDGER_READ."""
    with context.read() as tx:
        return find_account(tx, context, account).alert_settings


@use_case(ALERT_SETTINGS.permission)
def set_alert_settings(tx: Connection, context: RequestContext, account: str, after: AlertSettings) -> AlertSettings:
    """Replace the alert settings of an account; needs ALERT_MANAGE.

    Thresholds that are already reached create their alerts at once, unless they exist.

    Raises:
        InvalidInputError: the thresholds do not increase, are too many, or out of range.
    """
    check_thresholds(after.thresholds)
    record = find_path_of(tx, context, account)[-1]
    changed, before = record.account, record.alert_settings
    account_writes.set_alert_settings(tx, context.organisation_id, changed, after, context.now)
    payloads = ALERT_SETTINGS.payload(before, 0), ALERT_SETTINGS.payload(after, 0)
    context.record(tx, ALERT_SETTINGS.action_at(changed.kind), changed.id, *payloads)
    passed = after.thresholds[: reached(changed, after.thresholds)]
    alerts.add(tx, context.organisation_id, threshold_alerts(changed, passed, context.now))
    return after


def get_forecast(context: RequestContext, account: str) -> PathForecast:
    """Forecast when an account reaches its limit, and what the limits above leave it; needs LEDGER_READ.

    Raises:
        InvalidInputError: it is a run without a limit of its own.
    """
    with context.read() as tx:
        path = find_path_of(tx, context, account)
        if path[-1].account.limit is None:
            raise InvalidInputError(f"The run {account} has no limit of its own; ask for the budget above it.")
        return forecast_path(tx, context.organisation_id, path, context.now)
