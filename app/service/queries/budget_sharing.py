"""Read model of how an account shares out its budget: its allocation, and the reservations that wait for it."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from sqlalchemy import Connection

from app.accounting.errors import UnsupportedEventError
from app.ledger.accounts.account_records import AccountRecord
from app.ledger.accounts.metadata import AccountMetadata, title_of
from app.ledger.errors import AccountClosedError, PolicyViolationError
from app.ledger.step_events import StepEvent
from app.persistence.repositories import account_metadata
from app.service.auth.request_context import RequestContext
from app.service.governance.allocations import AllocationRecord, find_allocation
from app.service.scheduling.requests import QueueEntry, read_queue
from app.service.scheduling.what_if import WaitPreview, preview_in
from app.service.scheduling.withholdings import read_withholdings

SHOWN: Final = 25
"""Number of waiting reservations that a page explains."""


@dataclass(frozen=True, slots=True)
class QueuedReservation:
    """A reservation that waits, with what people wrote about its run.

    Args:
        owner: of the run, or else of its budget or population.
    """

    entry: QueueEntry
    about: AccountMetadata
    owner: str | None

    @property
    def title(self) -> str:
        """What people see of the run: the display name or the name, with the number of one that is not the first."""
        return title_of(self.entry.run.name, self.about.number, self.about.metadata.display_name)


@dataclass(frozen=True, slots=True)
class BudgetSharing:
    """How an account shares out its budget.

    Args:
        record: its allocation.
        used: share of its capacity that is spent or reserved; more is locked beyond the unlocked part.
        taken: share that the reservations of budgets with a minimum have got in this window, by id.
        queue: the next reservation first.
        waiting: number of reservations that wait, shown or not.
    """

    record: AllocationRecord
    used: float
    taken: Mapping[str, float]
    queue: tuple[QueuedReservation, ...]
    waiting: int


def read_sharing(tx: Connection, context: RequestContext, path: Sequence[AccountRecord]) -> BudgetSharing:
    """Read how the last account of a path, a population or budget, shares out its budget."""
    account = path[-1].account
    queue = read_queue(tx, context, account, SHOWN)
    queue_of = {each.run.id: (each.run.id, each.run.parent_id, each.run.population_id) for each in queue.entries}
    named = {account_id for home in queue_of.values() for account_id in home if account_id is not None}
    about = account_metadata.find_many(tx, context.organisation_id, sorted(named))
    owners = {
        run_id: next(
            (about[each].metadata.owner for each in home if each in about and about[each].metadata.owner), None
        )
        for run_id, home in queue_of.items()
    }
    taken: dict[str, float] = {}
    if account.allocation is not None and account.allocation.shares:
        held = read_withholdings(tx, context.organisation_id, [account], context.lapsed_by)[account.id].taken
        taken = {budget: account.used(curve) for budget, curve in held.items()}
    return BudgetSharing(
        record=find_allocation(tx, context, path),
        used=max(account.used(), account.used(account.spent + account.held)),
        taken=taken,
        queue=tuple(QueuedReservation(each, about[each.run.id], owners[each.run.id]) for each in queue.entries),
        waiting=queue.waiting,
    )


def preview_or_reason(
    tx: Connection, context: RequestContext, path: list[AccountRecord], step: StepEvent
) -> WaitPreview | str | None:
    """Preview a reservation of one event, or say why it would be refused; None: runs do not charge the account itself.

    Raises:
        CostNotReadyError: handled by `RequestContext.run_with_costs`.
    """
    if path[-1].account.partitions_per_unit is not None:
        return None
    try:
        return preview_in(tx, context, path, [step])
    except UnsupportedEventError as refused:
        return str(refused)
    except (AccountClosedError, PolicyViolationError) as refused:
        return refused.detail
