"""Daily snapshots of accounts' utilisation, for forecasts."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Final

from sqlalchemy import Connection, func, select

from app.persistence.repositories.expressions import NO_RUN, columns_of, join_on, seconds, upsert
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
        .where(join_on(account_usage_snapshots, accounts, account_id="id"))
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
    into = upsert(tx, account_usage_snapshots).values(values)
    tx.execute(
        into.on_conflict_do_update(
            index_elements=list(account_usage_snapshots.primary_key),
            set_={"utilisation": into.excluded.utilisation, "recorded_at": into.excluded.recorded_at},
        )
    )


def newest_before(tx: Connection, organisation_id: str, account_id: str, moment: datetime) -> Reading | None:
    """Get an account's last reading up to a time, or else its first."""
    return readings_before(tx, organisation_id, [account_id], moment).get(account_id)


def readings_before(
    tx: Connection, organisation_id: str, account_ids: Sequence[str], moment: datetime
) -> dict[str, Reading]:
    """Get the last reading of each account up to a time, or else its first."""
    snapshots = account_usage_snapshots
    mine = (snapshots.c.organisation_id == organisation_id) & snapshots.c.account_id.in_(list(account_ids))
    days = select(snapshots.c.organisation_id, snapshots.c.account_id).where(mine)
    days = days.group_by(snapshots.c.organisation_id, snapshots.c.account_id)
    first = days.add_columns(func.min(snapshots.c.day).label("day")).subquery()
    last = days.add_columns(func.max(snapshots.c.day).label("day")).where(snapshots.c.recorded_at <= moment).subquery()
    found: dict[str, Reading] = {}
    for chosen in (first, last):
        rows = tx.execute(
            select(snapshots.c.account_id, *columns_of(snapshots, Reading)).join(
                chosen, join_on(chosen, snapshots, account_id="account_id", day="day")
            )
        )
        found |= {row.account_id: Reading(row.utilisation, row.recorded_at) for row in rows}
    return found
