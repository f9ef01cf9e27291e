"""Daily snapshots of accounts' utilisation, for forecasts."""

from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Final

from sqlalchemy import Connection, func, select
from sqlalchemy.dialects import postgresql, sqlite

from app.persistence.repositories.partial_indexes import NO_RUN
from app.persistence.repositories.sql_time import seconds
from app.persistence.tables import account_usage_snapshots, accounts

SECONDS_A_DAY: Final = 86_400
COMMIT_SECONDS: Final = 60
"""Maximum delay between a change's time and its visibility."""


@dataclass(frozen=True, slots=True)
class Reading:
    """The utilisation of an account's limit at a time."""

    utilisation: float
    recorded_at: datetime


def due_accounts(tx: Connection, now: datetime, rest: timedelta) -> list[tuple[str, str]]:
    """List changed populations and budgets whose last reading is at least `rest` ago."""
    last = (
        select(func.max(account_usage_snapshots.c.recorded_at))
        .where(
            account_usage_snapshots.c.organisation_id == accounts.c.organisation_id,
            account_usage_snapshots.c.account_id == accounts.c.id,
        )
        .scalar_subquery()
    )
    changed = (
        select(accounts.c.organisation_id, accounts.c.id, accounts.c.updated_at, last.label("read_at"))
        .where(NO_RUN, accounts.c.version > 0)
        .subquery()
    )
    due = (changed.c.read_at <= now - rest) & (seconds(tx, changed.c.read_at, changed.c.updated_at) > -COMMIT_SECONDS)
    found = select(changed.c.organisation_id, changed.c.id).where(changed.c.read_at.is_(None) | due)
    return [(row.organisation_id, row.id) for row in tx.execute(found)]


def put(tx: Connection, organisation_id: str, account_id: str, reading: Reading) -> None:
    """Write a day's reading, replacing an earlier one of that day."""
    values = {
        "organisation_id": organisation_id,
        "account_id": account_id,
        "day": int(reading.recorded_at.timestamp()) // SECONDS_A_DAY,
        "utilisation": reading.utilisation,
        "recorded_at": reading.recorded_at,
    }
    dialect = postgresql if tx.dialect.name == "postgresql" else sqlite
    into = dialect.insert(account_usage_snapshots).values(values)
    tx.execute(
        into.on_conflict_do_update(
            index_elements=list(account_usage_snapshots.primary_key),
            set_={"utilisation": into.excluded.utilisation, "recorded_at": into.excluded.recorded_at},
        )
    )


def newest_before(tx: Connection, organisation_id: str, account_id: str, moment: datetime) -> Reading | None:
    """Get an account's last reading up to a time, or else its first."""
    mine = select(account_usage_snapshots.c.utilisation, account_usage_snapshots.c.recorded_at).where(
        account_usage_snapshots.c.organisation_id == organisation_id, account_usage_snapshots.c.account_id == account_id
    )
    before = (
        mine.where(account_usage_snapshots.c.recorded_at <= moment)
        .order_by(account_usage_snapshots.c.day.desc())
        .limit(1)
    )
    row = (
        tx.execute(before).one_or_none()
        or tx.execute(mine.order_by(account_usage_snapshots.c.day).limit(1)).one_or_none()
    )
    return None if row is None else Reading(row.utilisation, row.recorded_at)
