"""Readings of accounts, taken from time to time, and what they let expect."""

import logging
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime, timedelta
from functools import partial
from itertools import groupby
from operator import itemgetter
from typing import Final

from sqlalchemy import Connection

from app.ledger.errors import LedgerError
from app.ledger.forecast import Forecast, forecast, share_used
from app.persistence.database import ALL_TENANTS, Database
from app.persistence.repositories import accounts, alerts, usage_snapshots
from app.persistence.repositories.accounts import AccountRecord
from app.persistence.repositories.usage_snapshots import Reading
from app.service.alerts.alert_factory import forecast_near

WINDOW: Final = timedelta(days=7)
"""Over which the pace of an account is taken: a whole week, as weekends are slower."""

REST: Final = timedelta(hours=1)
"""The least time between two readings of an account, and from one to a forecast."""

LEAST_KNOWN: Final = timedelta(days=1)
"""An account of which less is known tells nothing by itself; it can be asked all the same."""

PAGE: Final = 50
"""Accounts that are read in one transaction."""

_logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Outlook:
    """A forecast, and what it is based on.

    Args:
        forecast: share, pace, and how long it takes.
        since: from when on the pace was taken; None: nothing is known.
        exhaustion_at: in UTC; None: never, or it has, or nobody knows.
    """

    forecast: Forecast
    since: datetime | None
    exhaustion_at: datetime | None


def outlook(tx: Connection, organisation_id: str, record: AccountRecord, now: datetime) -> Outlook:
    """What is to be expected of an account with a limit.

    The pace is that of the last seven days: since the last reading before, or since the account was opened. Where
    neither is known, since the first reading.

    Args:
        tx: the caller's transaction.
        organisation_id: whose.
        record: the account as it stands.
        now: in UTC.

    Returns:
        The straight line from there to now, and on.
    """
    start = now - WINDOW
    if record.created_at > start:
        base: Reading | None = Reading(0.0, record.created_at)
    else:
        base = usage_snapshots.newest_before(tx, organisation_id, record.account.id, start)
    return expected(share_used(record.account), base, now)


def expected(share: float, base: Reading | None, now: datetime) -> Outlook:
    """What a share that is used now lets expect, beside an earlier reading.

    Args:
        share: used now.
        base: the earlier reading; None: nothing is known.
        now: in UTC.
    """
    if base is None or now - base.recorded_at < REST:  # the pace of a few seconds says nothing of a month
        return Outlook(Forecast(share, None, None), None, None)
    found = forecast(share, base.utilisation, (now - base.recorded_at) / timedelta(days=1))
    at = None if found.days_left is None else now + timedelta(days=found.days_left)
    return Outlook(found, base.recorded_at, at)


def take_readings(db: Database, now: datetime) -> int:
    """Read accounts that have changed, and tell of those that will reach their limit soon.

    Args:
        db: a ledger's database.
        now: in UTC.

    Returns:
        How many were read.
    """
    with db.read(ALL_TENANTS) as tx:
        due = usage_snapshots.unread(tx, now, REST)
    for organisation_id, found in groupby(sorted(due), itemgetter(0)):
        ids = [account_id for _, account_id in found]
        for start in range(0, len(ids), PAGE):
            db.retried(partial(_read_all, db, organisation_id, ids[start : start + PAGE], now))
    return len(due)


def _read_all(db: Database, organisation_id: str, due: Iterable[str], now: datetime) -> None:
    with db.write(organisation_id) as tx:
        for account_id in due:
            try:
                record = accounts.find(tx, organisation_id, account_id)
            except LedgerError as reason:  # a balance that cannot be read: the others are read all the same
                _logger.warning("Account %s is not forecast: %s", account_id, reason.detail)
                continue
            assert record is not None, "accounts are never removed"
            _tell(tx, organisation_id, record, now)
            usage_snapshots.put(tx, organisation_id, account_id, Reading(share_used(record.account), now))


def _tell(tx: Connection, organisation_id: str, record: AccountRecord, now: datetime) -> None:
    seen, days = outlook(tx, organisation_id, record, now), record.tells.forecast_days
    known = seen.since is not None and now - seen.since >= LEAST_KNOWN
    if known and seen.exhaustion_at is not None and seen.exhaustion_at <= now + timedelta(days=days):
        told = forecast_near(record.account, days, seen.forecast, seen.exhaustion_at, now)
        alerts.add(tx, organisation_id, [told])
