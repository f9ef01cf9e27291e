"""Alert settings, alerts and forecasts of accounts."""

from dataclasses import asdict

from sqlalchemy import Connection

from app.ledger.alert_thresholds import check_thresholds, reached
from app.ledger.audit_actions import AuditAction
from app.ledger.errors import InvalidInputError, NotFoundError
from app.ledger.permissions import Permission
from app.persistence.repositories import accounts, alerts, organisations
from app.persistence.repositories.accounts import AccountRecord
from app.persistence.repositories.alert_settings import AlertSettings, save_alert_settings
from app.persistence.repositories.alerts import Alert, AlertFilter, AlertType
from app.service.accounts.lookup import find_account, require_reach
from app.service.alerts.alert_factory import threshold_alerts
from app.service.alerts.forecasts import LimitForecast, forecast_limit
from app.service.audit_log import AuditEvent
from app.service.auth.request_context import RequestContext


def list_alerts(
    call: RequestContext, *, account: str | None, kind: AlertType | None, before: str | None, limit: int
) -> list[Alert]:
    """List alerts in the caller's scope, newest first.

    Args:
        call: needs LEDGER_READ.
        account: id or path; only alerts about it or accounts under it.
        kind: only alerts of this type.
        before: cursor: only alerts before this id.
        limit: page size.

    Raises:
        NotFoundError: the account does not exist.
        InsufficientScopeError: it is out of the caller's scope.
    """
    call.require_permission(Permission.LEDGER_READ)
    with call.db.read(call.organisation_id) as tx:
        within = call.principal.scope if account is None else find_account(tx, call, account).account.id
        return alerts.page(tx, call.organisation_id, AlertFilter(kind, within), before=before, limit=limit)


def get_alert_settings(call: RequestContext, account_id: str) -> AlertSettings:
    """Get the alert settings of an account; needs LEDGER_READ.

    Raises:
        NotFoundError: the account does not exist.
        InsufficientScopeError: it is out of the caller's scope.
    """
    call.require_permission(Permission.LEDGER_READ)
    with call.db.read(call.organisation_id) as tx:
        return _found(tx, call, account_id).tells


def set_alert_settings(call: RequestContext, account_id: str, tells: AlertSettings) -> AlertSettings:
    """Replace the alert settings of an account; needs WEBHOOK_MANAGE.

    Thresholds that are already reached create their alerts at once, unless they exist.

    Raises:
        NotFoundError: the account does not exist.
        InsufficientScopeError: it is out of the caller's scope.
        InvalidInputError: the thresholds do not increase, are too many, or out of range.
    """
    call.require_permission(Permission.WEBHOOK_MANAGE)
    check_thresholds(tells.thresholds)

    def write() -> AlertSettings:
        with call.db.write(call.organisation_id) as tx:
            organisations.lock(tx, call.organisation_id)
            path = accounts.path_of(tx, call.organisation_id, account_id)
            if not path:
                raise _missing(account_id)
            call.require_scope([record.account.id for record in path])
            account, before = path[-1].account, path[-1].tells
            save_alert_settings(tx, call.organisation_id, account, tells, call.now)
            call.record(tx, AuditEvent(AuditAction.ALERT_SETTINGS_REPLACED, account_id, asdict(before), asdict(tells)))
            passed = tells.thresholds[: reached(account, tells.thresholds)]
            alerts.add(tx, call.organisation_id, threshold_alerts(account, passed, call.now))
            return tells

    return call.db.retried(write)


def get_forecast(call: RequestContext, account_id: str) -> tuple[AccountRecord, LimitForecast]:
    """Forecast when an account reaches its limit; needs LEDGER_READ.

    Raises:
        NotFoundError: the account does not exist.
        InsufficientScopeError: it is out of the caller's scope.
        InvalidInputError: it is a run without a limit of its own.
    """
    call.require_permission(Permission.LEDGER_READ)
    with call.db.read(call.organisation_id) as tx:
        record = _found(tx, call, account_id)
        if record.account.limit is None:
            raise InvalidInputError(f"The run {account_id} has no limit of its own; ask for the budget above it.")
        return record, forecast_limit(tx, call.organisation_id, record, call.now)


def _found(tx: Connection, call: RequestContext, account_id: str) -> AccountRecord:
    found = accounts.find(tx, call.organisation_id, account_id)
    if found is None:
        raise _missing(account_id)
    require_reach(tx, call, account_id)
    return found


def _missing(account_id: str) -> NotFoundError:
    return NotFoundError(f"There is no account {account_id!r} in your organisation.")
