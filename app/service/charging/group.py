"""A group of commands in one transaction: lock, look for earlier answers, decide in order, write, commit.

This is the only place that charges. Its order is what keeps the promise "never past the budget":

1. every account of every path is locked, in one global order, before anything about it is believed;
2. what the process remembers of an account counts only if the locked row names the same version and time of change;
3. commands are decided one after the other, each on what the ones before it leave;
4. decisions and balances are written in the same transaction, and nobody is answered before it is durable.
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
"""What is to be done before a command may come again."""

CommandResult = StepResult | LedgerError | AccountingError | NotReady
"""An answer, a rule that says no, or what the command lacks."""


def commit_group(
    db: Database, memory: LedgerCache, commands: Sequence[StepCommand], *, wait: bool = True
) -> list[CommandResult]:
    """Decide about commands and make the decisions durable, all in one transaction.

    Args:
        db: the database of all their organisations.
        memory: of this process.
        commands: in the order in which they are decided.
        wait: whether to wait for other writers.

    Returns:
        An outcome for each command; one that fails leaves no trace and does not fail its neighbours.

    Raises:
        WriterBusyError: others are writing, and `wait` is false; nothing was done.
        SQLAlchemyError: the database failed; unless it failed at the commit itself, nothing was done, and in any
            case all of it may be asked again.
    """
    with db.write(_whose(commands), wait=wait) as tx:
        work = load(tx, memory, [command.wanted for command in commands])
        outcomes = [_outcome(work, command) for command in commands]
        save(work)
    remember(memory, work)
    return outcomes


def preview(db: Database, memory: LedgerCache, command: StepCommand) -> CommandResult:
    """Decide about a command as it would be decided now, and write nothing.

    Args:
        db: the database of its organisation.
        memory: of this process.
        command: what is asked.

    Returns:
        The outcome.
    """
    with db.read(command.organisation_id) as tx:
        return _outcome(load(tx, memory, [command.wanted]), command)


def _whose(commands: Sequence[StepCommand]) -> Whose:
    """Of one organisation where the database keeps them apart: a lane is (`CommitQueue`); SQLite's holds several."""
    organisations = {command.organisation_id for command in commands}
    return organisations.pop() if len(organisations) == 1 else ALL_TENANTS


def _outcome(work: UnitOfWork, command: StepCommand) -> CommandResult:
    try:
        return decide(work, command)
    except (LedgerError, AccountingError, CostNotReadyError, PathNotLockedError, PlanWithdrawnError) as reason:
        return reason
