"""One transaction for a group of commands: lock, replay, decide, write, commit.

Only this module charges steps. Its order guarantees that no budget is exceeded:

1. All accounts of all paths are locked in one global order before they are read.
2. A cached account is used only if the locked row has the same version and time of change.
3. Each command is decided on the state that the previous ones left.
4. Decisions and balances are written in the same transaction, and responses are sent after its commit.
"""

from collections.abc import Sequence

from app.accounting.errors import AccountingError
from app.ledger.errors import LedgerError
from app.persistence.database import ALL_TENANTS, Database, Whose
from app.service.charging.cache import LedgerCache
from app.service.charging.decision import decide
from app.service.charging.loading import load
from app.service.charging.requests import PathNotLockedError, PlanWithdrawnError, StepCommand, StepResult
from app.service.charging.saving import remember, save
from app.service.charging.unit_of_work import UnitOfWork
from app.service.costing import CostNotReadyError

NotReady = CostNotReadyError | PathNotLockedError | PlanWithdrawnError
"""Prerequisite to meet before a command is repeated."""

CommandResult = StepResult | LedgerError | AccountingError | NotReady
"""Decision, error or missing prerequisite of a command."""


def commit_group(
    db: Database, memory: LedgerCache, commands: Sequence[StepCommand], *, wait: bool = True
) -> list[CommandResult]:
    """Decide commands in order and commit the decisions in one transaction.

    Each command has its own result; a failed one changes nothing.

    Raises:
        WriteLockBusyError: another writer is active and `wait` is false; nothing was done.
        SQLAlchemyError: the database failed; the commit may have succeeded, and all commands can be repeated.
    """
    with db.write(_whose(commands), wait=wait) as tx:
        work = load(tx, memory, [command.wanted for command in commands])
        outcomes = [_outcome(work, command) for command in commands]
        save(work)
    remember(memory, work)
    return outcomes


def preview(db: Database, memory: LedgerCache, command: StepCommand) -> CommandResult:
    """Decide a command without writing."""
    with db.read(command.organisation_id) as tx:
        return _outcome(load(tx, memory, [command.wanted]), command)


def _whose(commands: Sequence[StepCommand]) -> Whose:
    """Get the tenant of a group; only on SQLite may groups mix organisations."""
    organisations = {command.organisation_id for command in commands}
    return organisations.pop() if len(organisations) == 1 else ALL_TENANTS


def _outcome(work: UnitOfWork, command: StepCommand) -> CommandResult:
    try:
        return decide(work, command)
    except (LedgerError, AccountingError, CostNotReadyError, PathNotLockedError, PlanWithdrawnError) as reason:
        return reason
