"""Decide a group of commands, and commit the decisions in one transaction, or two on PostgreSQL.

Only `commit_group` charges steps. Its order guarantees that no budget is exceeded:

1. All accounts of all paths are locked in one global order before they are read.
2. A cached account is used only if the locked row has the same version and time of change.
3. Each command is decided on the state that the previous ones left.
4. Decisions and balances are written in the same transaction.

Steps that fit by counting are charged to cached accounts in place (ADR 0049); the rule decides the others after them.
SQLite shows which rows no other transaction has written (ADR 0033). On PostgreSQL, `commit_counted` takes the cached
rows as they are: its transaction takes one round trip, and fails if a locked row is another one (ADR 0035).
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
from app.service.charging.counted_steps import CountedSteps
from app.service.charging.decision import decide
from app.service.charging.ledger_state import CurrentRows, Key, LedgerState
from app.service.charging.loading import LoadRequest, load, load_missing, refresh
from app.service.charging.requests import NotLoadedError, ReservationRevokedError, StepCommand, StepResult
from app.service.charging.saving import remember, save
from app.service.charging.unit_of_work import UnitOfWork
from app.service.costing import CostNotReadyError

NotReady = CostNotReadyError | ReservationRevokedError
"""Prerequisite to meet before a command is repeated."""

CommandResult = StepResult | LedgerError | AccountingError | NotReady
"""Decision, error or missing prerequisite of a command."""


def commit_counted(db: Database, state: LedgerState, commands: Sequence[StepCommand]) -> dict[int, CommandResult]:
    """Decide on cached rows what can be counted, and commit it on PostgreSQL in one round trip.

    Returns:
        Results by place in the group; none if the rows had changed. `commit_group` decides the others.

    Raises:
        SQLAlchemyError, LedgerUnavailableError: as `commit_group`, of the steps that are counted.
    """
    owner = commands[0].context.organisation_id
    if not state.trusts(owner):
        return {}
    state.find_current({(owner, command.request.run_id) for command in commands}, rows := CurrentRows())
    counted = CountedSteps(state, rows)
    committed = False
    try:
        outcomes: dict[int, CommandResult] = {**counted.charge_all(commands)}
        if not counted.decided:
            return outcomes
        with db.pipeline(owner) as tx:
            if tx is None:
                return {}
            if counted.keys:
                idempotent_responses.require_new(tx, owner, counted.keys)
            locks.require(tx, owner, counted.seen)
            if counted.above:
                locks.require_above(tx, owner, counted.above)
            counted.save(tx)
        committed = True
    except DBAPIError as error:
        lost = getattr(error.orig, "sqlstate", None)
        if lost not in RACES_LOST | {NOT_PREPARED}:
            raise
        if lost != NOT_PREPARED:
            state.distrust(owner)
        return {}
    finally:
        if not committed:
            counted.undo()
    counted.publish()
    return outcomes


def commit_group(
    db: Database, state: LedgerState, commands: Sequence[StepCommand], *, wait: bool = True
) -> list[CommandResult]:
    """Decide commands in order and commit the decisions in one transaction: first what can be counted.

    Each command has its own result; a failed one changes nothing. Those of a run behind one that lacks a prerequisite
    wait for it, too: they follow its steps. Only on SQLite may a group mix organisations.

    Raises:
        WriteLockBusyError: another writer is active and `wait` is false; nothing was done.
        SQLAlchemyError: the database failed; the commit may have succeeded, and all commands can be repeated.
    """
    owners = sorted({command.context.organisation_id for command in commands})
    run_keys = {(command.context.organisation_id, command.request.run_id) for command in commands}
    rows = CurrentRows()
    counted = CountedSteps(state, rows)
    try:
        with db.write(owners[0] if len(owners) == 1 else ALL_TENANTS, wait=wait) as tx:
            revision = db.revision(tx)
            trusting = revision is not None
            state.begin(revision, run_keys, rows)
            used_keys = _lock_keys(tx, commands)
            if missing := run_keys - rows.runs.keys():
                refresh(tx, state, rows, missing, trusting=trusting)
            outcomes: dict[int, CommandResult] = {**counted.charge_all(commands, used_keys)}
            if counted.decided:
                counted.save(tx)
                counted.publish()
            others = [place for place in range(len(commands)) if place not in outcomes]
            left = _wanted([commands[place] for place in others]) if others else {}
            works = {owner: load(tx, state, owner, left[owner], rows, trusting=trusting) for owner in sorted(left)}
            unready: dict[Key, NotReady] = {}
            for place in others:
                owner, run_id = commands[place].context.organisation_id, commands[place].request.run_id
                outcome = unready.get((owner, run_id)) or decide_command(tx, state, works[owner], commands[place])
                if isinstance(outcome, NotReady):
                    unready[owner, run_id] = outcome
                outcomes[place] = outcome
            if works:
                save(tx, *works.values())
    except BaseException:
        counted.undo()
        raise
    for work in works.values():
        remember(state, work)
    state.end(revision)
    return [outcomes[place] for place in range(len(commands))]


def _lock_keys(tx: Connection, commands: Sequence[StepCommand]) -> set[str]:
    """Lock the idempotency keys of commands, and list those that have an answer, in any organisation of the group."""
    sent: dict[str, list[str]] = {}
    for command in commands:
        if (key := command.request.idempotency_key) is not None:
            sent.setdefault(command.context.organisation_id, []).append(key)
    used: set[str] = set()
    for owner in sorted(sent):
        idempotent_responses.lock_keys(tx, owner, sent[owner])
        used.update(idempotent_responses.used(tx, owner, sent[owner]))
    return used


def _wanted(commands: Sequence[StepCommand]) -> dict[str, list[LoadRequest]]:
    """List what commands need, by organisation."""
    wanted: dict[str, list[LoadRequest]] = {}
    for command in commands:
        request = LoadRequest(command.request.run_id, command.request)
        wanted.setdefault(command.context.organisation_id, []).append(request)
    return wanted


def preview(db: Database, state: LedgerState, command: StepCommand) -> CommandResult:
    """Decide a command without writing; its accounts are not the cached ones, which may be ahead of the database."""
    owner, request = command.context.organisation_id, command.request
    apart = LedgerState(costs=state.costs)
    with db.read(owner) as tx:
        work = load(tx, apart, owner, [LoadRequest(request.run_id, request)])
        return decide_command(tx, apart, work, command)


def decide_command(tx: Connection, state: LedgerState, work: UnitOfWork, command: StepCommand) -> CommandResult:
    """Decide a command, after loading rows that few decisions need."""
    while True:
        try:
            return _decided(work, command)
        except NotLoadedError as missing:
            load_missing(tx, state, work, missing)


def _decided(work: UnitOfWork, command: StepCommand) -> CommandResult:
    try:
        return decide(work, command)
    except (LedgerError, AccountingError, CostNotReadyError, ReservationRevokedError) as reason:
        return reason
