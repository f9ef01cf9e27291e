"""Usage snapshots of accounts, and forecasts from them."""

import logging
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from itertools import groupby
from operator import itemgetter
from typing import Final

from sqlalchemy import Connection

from app.ledger.accounts.account import Account
from app.ledger.accounts.account_records import AccountRecord
from app.ledger.accounts.alerts import Forecast, forecast
from app.ledger.errors import LedgerError
from app.ledger.scheduling.availability import Available
from app.persistence.database import Database
from app.persistence.repositories import accounts, alerts, usage_history
from app.persistence.repositories.usage_history import Reading
from app.service.accounts.availability import read_available_along
from app.service.alerts.alert_factory import forecast_alert
from app.service.auth.request_context import RequestContext, service_context
from app.service.auth.use_cases import use_case
from app.service.periodic_work import find_due, isolated

WINDOW: Final = timedelta(days=7)
"""Window of the pace: a whole week, because weekends are slower."""

REST: Final = timedelta(hours=1)
"""Minimum time between two snapshots of an account, and from a snapshot to a forecast."""

LEAST_KNOWN: Final = timedelta(days=1)
"""Minimum observed time before a forecast alert; forecasts on request have no minimum."""

PAGE: Final = 50
"""Accounts read in one transaction."""

_logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class LimitForecast:
    """A forecast, the start of the observed period, and when the limit is reached; None: never, already, or unknown."""

    forecast: Forecast
    since: datetime | None
    exhaustion_at: datetime | None


def forecast_limit(tx: Connection, organisation_id: str, record: AccountRecord, now: datetime) -> LimitForecast:
    """Forecast an account with a limit from its pace over seven days."""
    account = record.account
    base = base_readings(tx, organisation_id, {account.id: record.created_at}, now).get(account.id)
    return extrapolate(account.used(), base, now)


@dataclass(frozen=True, slots=True)
class PathForecast:
    """The forecast of an account, and what the limits above mean for it.

    Args:
        available: what can be taken now, and the account that limits it. Forecasts are of limits: what is
            locked counts there as unused.
        first: the account along the path whose limit is reached first, and when; None: none is expected to be.
    """

    account_id: str
    own: LimitForecast
    available: Available
    first: tuple[Account, datetime] | None


def forecast_path(tx: Connection, organisation_id: str, path: Sequence[AccountRecord], now: datetime) -> PathForecast:
    """Forecast the last account of a path, and the first limit to be reached of those that it counts for.

    Accounts from a parallel one upwards have the pace of the part that lost most, so they are no forecast for others.
    """
    counted = path[
        max((at for at, each in enumerate(path) if each.account.partitions_per_unit is not None), default=-1) + 1 :
    ]
    counted = counted or path[-1:]
    limited = [each for each in counted if each.account.limit is not None]
    bases = base_readings(tx, organisation_id, {each.account.id: each.created_at for each in limited}, now)
    found = [(each, extrapolate(each.account.used(), bases.get(each.account.id), now)) for each in limited]
    ends = [(each.account, seen.exhaustion_at) for each, seen in reversed(found) if seen.exhaustion_at is not None]
    return PathForecast(
        path[-1].account.id,
        found[-1][1],
        read_available_along(tx, organisation_id, path, now),
        min(ends, key=itemgetter(1), default=None),
    )


def base_readings(
    tx: Connection, organisation_id: str, created: Mapping[str, datetime], now: datetime
) -> dict[str, Reading]:
    """Get where the pace of accounts over seven days starts, given when each was created.

    It starts at the last snapshot before that window or at the account's creation; without either, at the first
    snapshot.
    """
    start = now - WINDOW
    younger = {account_id: Reading(0.0, at) for account_id, at in created.items() if at > start}
    older = sorted(created.keys() - younger.keys())
    return younger | (usage_history.readings_before(tx, organisation_id, older, start) if older else {})


def extrapolate(share: float, base: Reading | None, now: datetime) -> LimitForecast:
    """Forecast from the used share and an earlier snapshot, or none."""
    if base is None or now - base.recorded_at < REST:  # too short to extrapolate
        return LimitForecast(Forecast(share, None, None), None, None)
    found = forecast(share, base.used, (now - base.recorded_at) / timedelta(days=1))
    at = None if found.days_left is None else now + timedelta(days=found.days_left)
    return LimitForecast(found, base.recorded_at, at)


def record_usage_snapshots(db: Database, now: datetime) -> int:
    """Record snapshots of changed accounts, create forecast alerts; return the number of snapshots."""
    due = find_due(db, lambda tx, among: usage_history.due_accounts(tx, now, REST, among))
    for organisation_id, found in groupby(sorted(due), itemgetter(0)):
        ids = [account_id for _, account_id in found]
        for start in range(0, len(ids), PAGE):
            page = ids[start : start + PAGE]
            with isolated("The use of %d accounts of %s is not recorded", len(page), organisation_id):
                _record_page(service_context(db, organisation_id, now), page)
    return len(due)


@use_case(locks_organisation=False)
def _record_page(tx: Connection, context: RequestContext, due: Iterable[str]) -> None:
    organisation_id, now = context.organisation_id, context.now
    for account_id in due:
        try:
            record = accounts.find(tx, organisation_id, account_id)
        except LedgerError as reason:  # an unreadable balance must not block the others
            _logger.warning("Account %s is not forecast: %s", account_id, reason.detail)
            continue
        assert record is not None, "accounts are never removed"
        _alert(tx, organisation_id, record, now)
        usage_history.put(tx, organisation_id, account_id, Reading(record.account.used(), now))


def _alert(tx: Connection, organisation_id: str, record: AccountRecord, now: datetime) -> None:
    seen, days = forecast_limit(tx, organisation_id, record, now), record.alert_settings.forecast_days
    known = seen.since is not None and now - seen.since >= LEAST_KNOWN
    if known and seen.exhaustion_at is not None and seen.exhaustion_at <= now + timedelta(days=days):
        alert = forecast_alert(record.account, days, seen.forecast, seen.exhaustion_at, now)
        alerts.add(tx, organisation_id, [alert])
