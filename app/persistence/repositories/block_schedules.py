"""Block schedules of populations and budgets."""

from collections.abc import Collection
from datetime import date, datetime

from sqlalchemy import Connection, Row, delete, select, update

from app.ledger.accounts.calendar import BlockSchedule, CalendarPeriod, ScheduleStatus
from app.persistence.repositories.account_values import limit_values, read_limit
from app.persistence.repositories.expressions import owned_by, owned_by_any, upsert
from app.persistence.tables import block_schedules


def put(tx: Connection, organisation_id: str, account_id: str, schedule: BlockSchedule) -> None:
    """Add the schedule of an account, or replace it."""
    values = {
        "period": str(schedule.period),
        "start": schedule.start.isoformat(),
        **limit_values(schedule.limit),
        "prefix": schedule.prefix,
    }
    key = {"organisation_id": organisation_id, "account_id": account_id}
    added = upsert(tx, block_schedules).values(**key, **values)
    tx.execute(added.on_conflict_do_update(index_elements=list(key), set_=values))


def set_outcome(
    tx: Connection, organisation_id: str, account_id: str, due_at: datetime | None, failure: str | None
) -> None:
    """Write when a schedule is due next, None: never, and why a block was not opened, None: none is missing."""
    here = owned_by(block_schedules, organisation_id, account_id=account_id)
    tx.execute(update(block_schedules).where(here).values(due_at=due_at, failure=failure))


def remove(tx: Connection, organisation_id: str, account_id: str) -> None:
    """Remove the schedule of an account."""
    tx.execute(delete(block_schedules).where(owned_by(block_schedules, organisation_id, account_id=account_id)))


def find(tx: Connection, organisation_id: str, account_id: str) -> ScheduleStatus | None:
    """Get the schedule of an account."""
    row = tx.execute(
        select(block_schedules).where(owned_by(block_schedules, organisation_id, account_id=account_id))
    ).one_or_none()
    return None if row is None else _read(row)


def list_due(tx: Connection, now: datetime, among: Collection[str] | None = None) -> list[tuple[str, str]]:
    """List the organisations, among some, None: all, and accounts whose schedules are due by `now`."""
    found = select(block_schedules.c.organisation_id, block_schedules.c.account_id).where(
        block_schedules.c.due_at <= now, owned_by_any(block_schedules, among)
    )
    return [(row.organisation_id, row.account_id) for row in tx.execute(found.order_by(*block_schedules.primary_key))]


def _read(row: Row[tuple[object, ...]]) -> ScheduleStatus:
    limit = read_limit(row)
    assert limit is not None, "its columns have no nulls"
    schedule = BlockSchedule(CalendarPeriod(row.period), date.fromisoformat(row.start), limit, row.prefix)
    return ScheduleStatus(schedule, row.due_at, row.failure)
