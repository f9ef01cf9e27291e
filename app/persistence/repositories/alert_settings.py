"""Of what accounts tell: it lies in their rows, so that a charge knows it without asking."""

import json
from dataclasses import dataclass
from datetime import datetime
from functools import lru_cache
from typing import Final

from sqlalchemy import Connection, update

from app.ledger.accounts import Account
from app.ledger.alert_thresholds import DEFAULT_THRESHOLDS
from app.persistence.tables import accounts


@dataclass(frozen=True, slots=True)
class AlertSettings:
    """Of what an account tells.

    Args:
        thresholds: shares of its limit's epsilon, increasing.
        forecast_days: it tells when it is about to reach its limit within so many days; 0: never.
    """

    thresholds: tuple[float, ...]
    forecast_days: int


DEFAULT_ALERT_SETTINGS: Final = AlertSettings(DEFAULT_THRESHOLDS, 30)


@lru_cache(maxsize=256)
def read_alert_settings(thresholds: str, forecast_days: int) -> AlertSettings:
    """What is told, from the columns of an account's row."""
    return AlertSettings(tuple(json.loads(thresholds)), forecast_days)


def save_alert_settings(
    tx: Connection, organisation_id: str, account: Account, tells: AlertSettings, now: datetime
) -> None:
    """Write of what an account tells, with a new version of it, so that nobody believes an older one.

    Args:
        tx: a writer's transaction, in which the account is locked.
        organisation_id: whose account it is.
        account: as it stands.
        tells: from now on.
        now: in UTC.
    """
    this = (accounts.c.organisation_id == organisation_id) & (accounts.c.id == account.id)
    tx.execute(
        update(accounts)
        .where(this)
        .values(
            alert_thresholds=json.dumps(tells.thresholds),
            forecast_days=tells.forecast_days,
            version=account.version + 1,
            updated_at=now,
        )
    )
