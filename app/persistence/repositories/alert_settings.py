"""Alert settings, stored in accounts' rows so that a charge needs no extra query."""

import json
from datetime import datetime
from functools import lru_cache

from sqlalchemy import Connection, update

from app.ledger.accounts import Account
from app.ledger.alerts import AlertSettings
from app.persistence.tables import accounts


@lru_cache(maxsize=256)
def read_alert_settings(thresholds: str, forecast_days: int) -> AlertSettings:
    """Parse the alert settings in an account's row."""
    return AlertSettings(tuple(json.loads(thresholds)), forecast_days)


def save_alert_settings(
    tx: Connection, organisation_id: str, account: Account, tells: AlertSettings, now: datetime
) -> None:
    """Write a locked account's alert settings, with a new version that invalidates caches."""
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
