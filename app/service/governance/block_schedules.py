"""Block schedules: data blocks that the service opens by itself when their period begins."""

import hashlib
import logging
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Final

from sqlalchemy import Connection

from app.ledger.accounts.account_records import AccountRecord, Block
from app.ledger.accounts.calendar import BlockSchedule, due_blocks
from app.ledger.admission.composition import MAX_PARTITIONS
from app.ledger.audit import AuditAction, canonical, utc_text
from app.ledger.errors import InvalidInputError, LedgerError, NotFoundError
from app.ledger.governance.settings import BLOCK_SCHEDULE
from app.persistence.clock import Moment
from app.persistence.database import Database
from app.persistence.repositories import accounts, alerts, block_schedules, partitions
from app.service.accounts.create import block_terms, check_budget, open_budget
from app.service.accounts.lookup import find_parent
from app.service.alerts.alert_factory import schedule_failed_alert
from app.service.auth.request_context import RequestContext, service_context
from app.service.auth.use_cases import use_case
from app.service.periodic_work import find_due, isolated
from app.service.setting_changes import SettingHandler, SettingRecord

RETRY: Final = timedelta(minutes=5)
"""Interval between attempts to open a block that could not be opened."""

_logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class ScheduleRecord(SettingRecord[BlockSchedule | None]):
    """The block schedule of the account under which the blocks are opened, if it has one.

    Args:
        failure: why its oldest missing block was not opened; None: none is missing.
        next_opening: when the next period begins; None: it has no schedule, or the calendar ends before.
    """

    failure: str | None
    next_opening: datetime | None


def find_schedule(tx: Connection, context: RequestContext, path: Sequence[AccountRecord]) -> ScheduleRecord:
    """Get the block schedule of the last account of a path; its entity tag covers everything that is shown."""
    account = path[-1].account
    status = block_schedules.find(tx, context.organisation_id, account.id)
    schedule, failure = (None, None) if status is None else (status.schedule, status.failure)
    opening = None if schedule is None else schedule.next_opening(context.lapsed_by)
    shown = [account.id, BLOCK_SCHEDULE.payload(schedule, 0), failure, opening and utc_text(opening)]
    tag = f'"{hashlib.sha256(canonical(shown).encode()).hexdigest()[:32]}"'
    return ScheduleRecord(account.id, path, schedule, 0, tag, failure=failure, next_opening=opening)


def _write(
    tx: Connection, context: RequestContext, before: ScheduleRecord, schedule: BlockSchedule | None
) -> ScheduleRecord:
    assert schedule is not None, "to remove it is another action"
    block_schedules.put(tx, context.organisation_id, before.subject, schedule)
    return find_schedule(tx, context, before.accounts)


SCHEDULES: Final = SettingHandler(BLOCK_SCHEDULE, find_schedule, _write)


@use_case(BLOCK_SCHEDULE.permission)
def replace_schedule(
    tx: Connection, context: RequestContext, account: str, schedule: BlockSchedule, reason: str, tag: str | None
) -> ScheduleRecord:
    """Replace the block schedule of an account, and open the blocks whose period has begun; needs ACCOUNT_MANAGE.

    An equal schedule is neither written nor recorded, but its missing blocks are opened.

    Raises:
        InvalidInputError: more periods have begun than an account may have parts.
        Also those of `find_matching`, and of `create_budget`, for the first block that cannot be created; nothing is
        changed.
    """
    before = SCHEDULES.find_matching(tx, context, account, tag)
    _require_few(schedule, before.path, context.lapsed_by)
    if before.value != schedule:
        SCHEDULES.apply(tx, context, before, schedule, reason)
    _open_all(tx, context, before.accounts[-1], schedule)
    return find_schedule(tx, context, before.accounts)


@use_case(BLOCK_SCHEDULE.permission)
def remove_schedule(tx: Connection, context: RequestContext, account: str, reason: str, tag: str | None) -> None:
    """Remove the block schedule of an account; its blocks stay. Needs ACCOUNT_MANAGE.

    Raises:
        NotFoundError: the account has none.
        Also those of `find_matching`.
    """
    before = SCHEDULES.find_matching(tx, context, account, tag)
    if before.value is None:
        raise NotFoundError(f"{before.path} has no block schedule.")
    block_schedules.remove(tx, context.organisation_id, before.subject)
    facts = BLOCK_SCHEDULE.payload(before.value, 0)
    context.record(tx, AuditAction.BLOCK_SCHEDULE_REMOVED, before.subject, facts, None, reason)


def open_due_blocks(db: Database, moment: Moment) -> int:
    """Open the blocks of every organisation whose period has begun by the earliest time; return their number."""
    opened = 0
    for organisation_id, account_id in find_due(
        db, lambda tx, among: block_schedules.list_due(tx, moment.earliest, among)
    ):
        with isolated("The block schedule of %s is not processed", account_id):
            opened += _open_due(service_context(db, organisation_id, moment.latest, moment.earliest), account_id)
    return opened


def _require_few(schedule: BlockSchedule, path: str, now: datetime) -> None:
    begun = schedule.begun(now)
    if begun > MAX_PARTITIONS:
        first = schedule.blocks(begun)[-MAX_PARTITIONS].data_from.date().isoformat()
        raise InvalidInputError(
            f"Since {schedule.start.isoformat()}, {begun} periods of a {schedule.period} have begun, and {path} may "
            f"have at most {MAX_PARTITIONS} parts. Start on {first} or later.",
            field="schedule.start",
        )


def _missing(tx: Connection, context: RequestContext, above: AccountRecord, schedule: BlockSchedule) -> list[Block]:
    """List the blocks of a schedule that are due, and that the account does not have."""
    children = [record.account.id for record in accounts.children(tx, context.organisation_id, [above.account.id])]
    existing = partitions.blocks_of(tx, context.organisation_id, children)
    return due_blocks(schedule, context.lapsed_by, existing.values())


def _open_all(tx: Connection, context: RequestContext, above: AccountRecord, schedule: BlockSchedule) -> None:
    """Open all missing blocks of a schedule; if there are none, check the next one.

    Raises:
        As `create_budget`, for the first block that cannot be created.
    """
    missing = _missing(tx, context, above, schedule)
    for block in missing:
        open_budget(tx, context, above, block_terms(schedule, block))
    if not missing:
        [*_, following] = schedule.blocks(schedule.begun(context.lapsed_by) + 1)
        check_budget(tx, context, above, block_terms(schedule, following))
    following_at = schedule.next_opening(context.lapsed_by)
    block_schedules.set_outcome(tx, context.organisation_id, above.account.id, following_at, None)


@use_case()
def _open_due(tx: Connection, context: RequestContext, account_id: str) -> int:
    """Open the missing blocks of a schedule, each that can be opened; return their number.

    The reason that the oldest other one was not opened is stored, and logged and alerted once.
    """
    whose, now = context.organisation_id, context.lapsed_by
    status = block_schedules.find(tx, whose, account_id)
    if status is None or status.due_at is None or status.due_at > now:
        return 0  # removed, or opened by another replica
    above, schedule = find_parent(tx, context, account_id), status.schedule
    opened, failures = 0, list[tuple[str, str]]()
    for block in _missing(tx, context, above, schedule)[:MAX_PARTITIONS]:
        terms = block_terms(schedule, block)
        try:
            check_budget(tx, context, above, terms)
        except LedgerError as reason:
            failures.append((terms.name, reason.detail))
        else:
            open_budget(tx, context, above, terms)
            opened += 1
    due_at = schedule.next_opening(now)
    if not failures:
        block_schedules.set_outcome(tx, whose, account_id, due_at, None)
        return opened
    name, detail = failures[0]
    failure = f"{name} is not open: {detail}"
    retry_at = now + RETRY
    block_schedules.set_outcome(tx, whose, account_id, min(due_at or retry_at, retry_at), failure)
    if failure != status.failure:
        _logger.warning("The block schedule of %s failed: %s", account_id, failure)
        alerts.add(tx, whose, [schedule_failed_alert(above.account, name, detail, context.now)])
    return opened
