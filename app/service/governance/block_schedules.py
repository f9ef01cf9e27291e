"""Block schedules: data blocks that the service opens by itself when their period begins."""

import hashlib
import logging
from dataclasses import asdict, dataclass
from datetime import datetime, timedelta
from functools import partial
from typing import Any, Final

from sqlalchemy import Connection

from app.ledger.accounts.account_records import AccountRecord, Block
from app.ledger.accounts.calendar import BlockSchedule, ScheduleStatus, due_blocks
from app.ledger.admission.composition import MAX_PARTITIONS
from app.ledger.audit import AuditAction, canonical, utc_text
from app.ledger.errors import InvalidInputError, LedgerError, NotFoundError
from app.ledger.permissions import Permission
from app.persistence.clock import Moment
from app.persistence.database import Database
from app.persistence.repositories import accounts, alerts, block_schedules, organisations, partitions
from app.service.accounts.create import block_terms, check_budget, open_budget
from app.service.accounts.lookup import find_parent
from app.service.alerts.alert_factory import schedule_failed_alert
from app.service.auth.request_context import RequestContext, service_context
from app.service.change_control import require_if_match
from app.service.idempotency import run_effect
from app.service.periodic_work import find_due, isolated

RETRY: Final = timedelta(minutes=5)
"""Interval between attempts to open a block that could not be opened."""

_logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class AccountSchedule:
    """The block schedule of an account, if it has one.

    Args:
        account_id: the population or budget under which the blocks are opened.
        path: of the account.
        status: None: it has no schedule.
        next_opening: when the next period begins; None: it has no schedule, or the calendar ends before.
    """

    account_id: str
    path: str
    status: ScheduleStatus | None
    next_opening: datetime | None

    @property
    def schedule(self) -> BlockSchedule | None:
        """The template of its blocks."""
        return None if self.status is None else self.status.schedule

    @property
    def failure(self) -> str | None:
        """Why its oldest missing block was not opened; None: none is missing."""
        return None if self.status is None else self.status.failure

    @property
    def tag(self) -> str:
        """Entity tag of everything that is shown."""
        opening = None if self.next_opening is None else utc_text(self.next_opening)
        shown = canonical([self.account_id, schedule_payload(self.schedule), self.failure, opening])
        return f'"{hashlib.sha256(shown.encode()).hexdigest()[:32]}"'


def schedule_payload(schedule: BlockSchedule | None) -> dict[str, Any] | None:
    """Build the audit payload of a schedule."""
    if schedule is None:
        return None
    template = {"period": str(schedule.period), "start": schedule.start.isoformat(), "prefix": schedule.prefix}
    return template | {"limit": asdict(schedule.limit)}


def get_schedule(context: RequestContext, account: str) -> AccountSchedule:
    """Get the block schedule of a population or budget; needs LEDGER_READ."""
    with context.read() as tx:
        return find_schedule(tx, context, find_parent(tx, context, account))


def find_schedule(tx: Connection, context: RequestContext, above: AccountRecord) -> AccountSchedule:
    """Get the block schedule of an account."""
    status = block_schedules.find(tx, context.organisation_id, above.account.id)
    opening = None if status is None else status.schedule.next_opening(context.lapsed_by)
    return AccountSchedule(above.account.id, above.account.path, status, opening)


def replace_schedule(
    context: RequestContext, account: str, schedule: BlockSchedule, reason: str, tag: str | None
) -> AccountSchedule:
    """Replace the block schedule of an account, and open the blocks whose period has begun; needs ACCOUNT_MANAGE.

    `tag` is the value of If-Match. An equal schedule is neither written nor recorded, but its missing blocks are
    opened.

    Raises:
        PreconditionRequiredError: If-Match is missing.
        PreconditionFailedError: the schedule has changed.
        InvalidInputError: more periods have begun than an account may have parts.
        Also those of `create_budget`, for the first block that cannot be created; nothing is changed.
    """
    context.require_permission(Permission.ACCOUNT_MANAGE)

    def change(tx: Connection) -> AccountSchedule:
        above = find_parent(tx, context, account)
        before = find_schedule(tx, context, above)
        require_if_match("block schedule", before.tag, tag)
        _require_few(schedule, above.account.path, context.lapsed_by)
        if before.schedule != schedule:
            _write(tx, context, before, schedule, reason)
        _open_all(tx, context, above, schedule)
        return find_schedule(tx, context, above)

    return run_effect(context, change)


def remove_schedule(context: RequestContext, account: str, reason: str, tag: str | None) -> None:
    """Remove the block schedule of an account; its blocks stay. Needs ACCOUNT_MANAGE.

    Raises:
        PreconditionRequiredError: If-Match is missing.
        PreconditionFailedError: the schedule has changed.
        NotFoundError: the account has none.
    """
    context.require_permission(Permission.ACCOUNT_MANAGE)

    def change(tx: Connection) -> None:
        above = find_parent(tx, context, account)
        before = find_schedule(tx, context, above)
        require_if_match("block schedule", before.tag, tag)
        if before.schedule is None:
            raise NotFoundError(f"{before.path} has no block schedule.")
        block_schedules.remove(tx, context.organisation_id, before.account_id)
        facts = schedule_payload(before.schedule)
        context.record(tx, AuditAction.BLOCK_SCHEDULE_REMOVED, before.account_id, facts, None, reason)

    run_effect(context, change)


def open_due_blocks(db: Database, moment: Moment) -> int:
    """Open the blocks of every organisation whose period has begun by the earliest time; return their number."""
    opened = 0
    for organisation_id, account_id in find_due(
        db, lambda tx, among: block_schedules.list_due(tx, moment.earliest, among)
    ):
        context = service_context(db, organisation_id, moment)
        with isolated("The block schedule of %s is not processed", account_id):
            opened += context.transact(partial(_open_due, context=context, account_id=account_id))
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


def _write(
    tx: Connection, context: RequestContext, before: AccountSchedule, schedule: BlockSchedule, reason: str
) -> None:
    block_schedules.put(tx, context.organisation_id, before.account_id, schedule)
    facts = schedule_payload(before.schedule), schedule_payload(schedule)
    context.record(tx, AuditAction.BLOCK_SCHEDULE_REPLACED, before.account_id, *facts, reason)


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


def _open_due(tx: Connection, context: RequestContext, account_id: str) -> int:
    """Open the missing blocks of a schedule, each that can be opened; return their number.

    The reason that the oldest other one was not opened is stored, and logged and alerted once.
    """
    whose, now = context.organisation_id, context.lapsed_by
    organisations.lock(tx, whose)
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
