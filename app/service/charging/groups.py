"""Decide a group of commands, and commit the decisions in one transaction.

Only `commit_group` charges steps. Its order guarantees that no budget is exceeded:

1. All accounts of all paths are locked in one global order before they are read.
2. A cached account is used only if the locked row has the same version and time of change.
3. Each command is decided on the state that the previous ones left.
4. Decisions and balances are written in the same transaction.

A group whose rows are all cached reads nothing. SQLite shows that no other transaction has written (ADR 0033). On
PostgreSQL it is decided first; the transaction takes one round trip, and fails if a locked row is another one
(ADR 0035).
"""

from collections.abc import Sequence

from sqlalchemy import Connection
from sqlalchemy.exc import DBAPIError

from app.accounting.errors import AccountingError
from app.ledger.errors import LedgerError
from app.persistence.database import ALL_TENANTS, Database
from app.persistence.pipeline import NOT_PREPARED
from app.persistence.postgresql import RACES_LOST
from app.persistence.repositories import idempotent_responses, locks
from app.service.charging.decision import decide
from app.service.charging.loading import LoadRequest, load, load_missing
from app.service.charging.recall import recall
from app.service.charging.requests import (
    NotLoadedError,
    PathNotLockedError,
    PlanRevokedError,
    StepCommand,
    StepResult,
)
from app.service.charging.saving import LedgerCache, raise_threshold_alerts, remember, save
from app.service.charging.unit_of_work import UnitOfWork
from app.service.costing import CostNotReadyError

NotReady = CostNotReadyError | PathNotLockedError | PlanRevokedError
"""Prerequisite to meet before a command is repeated."""

CommandResult = StepResult | LedgerError | AccountingError | NotReady
"""Decision, error or missing prerequisite of a command."""


def commit_group(
    db: Database, memory: LedgerCache, commands: Sequence[StepCommand], *, wait: bool = True
) -> list[CommandResult]:
    """Decide commands in order and commit the decisions in one transaction.

    Each command has its own result; a failed one changes nothing. Only on SQLite may a group mix organisations.

    Raises:
        WriteLockBusyError: another writer is active and `wait` is false; nothing was done.
        SQLAlchemyError: the database failed; the commit may have succeeded, and all commands can be repeated.
    """
    owners = [command.context.organisation_id for command in commands]
    wanted: dict[str, list[LoadRequest]] = {}
    for owner, command in zip(owners, commands, strict=True):
        request = LoadRequest(command.request.run_id, command.request, command.needs_path)
        wanted.setdefault(owner, []).append(request)
    whose = next(iter(wanted)) if len(wanted) == 1 else ALL_TENANTS
    if db.dialect == "postgresql" and len(wanted) == 1:
        recalled = _commit_recalled(db, memory, str(whose), wanted[str(whose)], commands)
        if recalled is not None:
            return recalled
    with db.write(whose, wait=wait) as tx:
        revision = db.revision(tx)
        memory.begin(revision)
        trusting = revision is not None
        works = {
            owner: (trusting and recall(memory, owner, wanted[owner]))
            or load(tx, memory, owner, wanted[owner], trusting=trusting)
            for owner in sorted(wanted)
        }
        outcomes = [
            decide_command(tx, memory, works[owner], command) for owner, command in zip(owners, commands, strict=True)
        ]
        save(tx, *works.values())
    for work in works.values():
        remember(memory, work)
    memory.revision = revision and (revision[0] + 1, revision[1])
    return outcomes


def _commit_recalled(
    db: Database, memory: LedgerCache, owner: str, wanted: Sequence[LoadRequest], commands: Sequence[StepCommand]
) -> list[CommandResult] | None:
    """Decide on cached rows, and commit in one round trip; None if nothing was done, since it takes more."""
    work = recall(memory, owner, wanted, keyed=True) if memory.trusts(owner) else None
    if work is None:
        return None
    keys = [key for command in commands if (key := command.request.idempotency_key) is not None]
    seen = [(each.record.account.id, each.version, each.updated_at) for each in work.accounts.values()]
    try:
        outcomes = [_decided(work, command) for command in commands]
    except NotLoadedError:
        return None
    raise_threshold_alerts(work)
    if not work.only_charges:
        return None
    try:
        with db.pipeline(owner) as tx:
            if tx is None:
                return None
            if keys:
                idempotent_responses.require_new(tx, owner, keys)
            locks.require(tx, owner, seen)
            save(tx, work)
    except DBAPIError as error:
        state = getattr(error.orig, "sqlstate", None)
        if state not in RACES_LOST | {NOT_PREPARED}:
            raise
        if state != NOT_PREPARED:
            memory.distrust(owner)
        return None
    remember(memory, work)
    return outcomes


def preview(db: Database, memory: LedgerCache, command: StepCommand) -> CommandResult:
    """Decide a command without writing."""
    owner, request = command.context.organisation_id, command.request
    with db.read(owner) as tx:
        work = load(tx, memory, owner, [LoadRequest(request.run_id, request, command.needs_path)])
        return decide_command(tx, memory, work, command)


def decide_command(tx: Connection, memory: LedgerCache, work: UnitOfWork, command: StepCommand) -> CommandResult:
    """Decide a command, after loading rows that few decisions need."""
    while True:
        try:
            return _decided(work, command)
        except NotLoadedError as missing:
            load_missing(tx, memory, work, missing)


def _decided(work: UnitOfWork, command: StepCommand) -> CommandResult:
    try:
        return decide(work, command)
    except (LedgerError, AccountingError, CostNotReadyError, PathNotLockedError, PlanRevokedError) as reason:
        return reason
