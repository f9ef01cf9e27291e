"""Budgets."""

from collections.abc import Mapping
from datetime import date, datetime
from typing import Unpack

from epsilon_ledger._wire.coercion import whole
from epsilon_ledger._wire.events import PlannedEvents
from epsilon_ledger._wire.members import (
    wire_composition,
    wire_data_block,
    wire_date,
    wire_limit,
    wire_planned,
    wire_timestamp,
)
from epsilon_ledger._wire.metadata import Metadata, MetadataChanges, metadata_filters, wire_metadata
from epsilon_ledger._wire.models import Budget, CalendarPeriod, CreatedBlocks, DataBlock, Limit, ParallelComposition
from epsilon_ledger._wire.references import find_account_id, find_budget, find_budget_id
from epsilon_ledger._wire.requests import Call, Listing, RequestFlow, patch, path, post


def create_budget(  # noqa: PLR0913 - the members of the request, by name
    name: str,
    *,
    parent: str,
    limit: Limit,
    planned: PlannedEvents | None = None,
    composition: ParallelComposition | None = None,
    opens_at: datetime | None = None,
    closes_at: datetime | None = None,
    block: DataBlock | None = None,
    **metadata: Unpack[Metadata],
) -> Call[Budget]:
    """Create a budget under a population or another budget; needs an admin's key.

    Args:
        name: unique under its parent, without "/".
        parent: id or path, "mimic" or "mimic/icu-team" for instance.
        limit: of all runs under it together.
        planned: the plan: events in order, each with a count, such as `[(event, 1000)]`. The last one may be a bare
            event: as many as the limit allows. None: the filter is tuned for the first charged event.
        composition: declares the budgets under it as disjoint; None: their spending adds up.
        opens_at: timezone-aware; the budget is closed before.
        closes_at: timezone-aware; the budget is closed from then on.
        block: its data, if its parent has composition.
        metadata: for people, as in `Metadata`.

    Returns:
        The budget.

    Raises:
        LedgerError: it was not created, or no response arrived.
    """
    body = {
        "name": name,
        "parent": parent,
        "limit": wire_limit(limit),
        "planned": wire_planned(planned),
        "opens_at": wire_timestamp("opens_at", opens_at),
        "closes_at": wire_timestamp("closes_at", closes_at),
        "block": wire_data_block(block),
        **wire_composition(composition),
        **wire_metadata(metadata),
    }
    return Call(post("v1/budgets", body), Budget)


def create_blocks(
    account: str,
    period: CalendarPeriod,
    *,
    start: date,
    count: int,
    limit: Limit,
    prefix: str = "",
) -> RequestFlow[tuple[Budget, ...]]:
    """Create a budget for each calendar week, month or quarter of a range, all or none; needs an admin's key.

    Args:
        account: id or path of a population or budget with parallel composition.
        period: "week", "month" or "quarter", in UTC; weeks are those of ISO 8601.
        start: a day of the first period.
        count: number of budgets.
        limit: of each budget.
        prefix: begins their names, which end with the period: 2026-W01, 2026-01 or 2026-Q1.

    Returns:
        The budgets, the earliest first.

    Raises:
        InvalidRequestError: a block overlaps another one of the account; none was created.
        LedgerError: none was created, or no response arrived.
    """
    body = {
        "period": period,
        "start": wire_date("start", start),
        "count": whole("count", count),
        "limit": wire_limit(limit),
        "prefix": prefix,
    }
    account_id = yield from find_account_id(account)
    return (yield post(f"{path('accounts', account_id)}/blocks", body)).read(CreatedBlocks).items


def get_budget(budget: str) -> RequestFlow[Budget]:
    """Get a budget.

    Args:
        budget: its id or path, such as "mimic/icu-team".

    Returns:
        The budget.

    Raises:
        NotFoundError: it does not exist.
        LedgerError: no response arrived.
    """
    return (yield from find_budget(budget))


def update_budget(budget: str, **changes: Unpack[MetadataChanges]) -> RequestFlow[Budget]:
    """Update the metadata of a budget.

    Args:
        budget: its id or path.
        changes: of its metadata, as in `MetadataChanges`. What is left out stays, None removes.
            Labels are merged by key, links are replaced.

    Returns:
        The budget.

    Raises:
        LedgerError: it does not exist, or no response arrived.
        TypeError: there is no such argument.
    """
    members = wire_metadata(changes)
    budget_id = yield from find_budget_id(budget)
    return (yield patch(path("budgets", budget_id), members)).read(Budget)


def list_budgets(  # noqa: PLR0913 - the filters of the list, by name
    *,
    parent: str | None = None,
    path: str | None = None,
    name: str | None = None,
    q: str | None = None,
    owner: str | None = None,
    labels: Mapping[str, str | None] | None = None,
    archived: bool = False,
    page_size: int = 100,
) -> Listing[Budget]:
    """List budgets, newest first.

    Args:
        parent: only those directly under this account, an id or a path.
        path: only the budget at this path.
        name: only those of this name.
        q: only those with this text in path, display name or owner, ignoring case, or with this id.
        owner: only those of this owner.
        labels: only those with all of these labels; a value of None means any value.
        archived: only what is archived, and what is under it.
        page_size: items of one request, in [1, 200].

    Returns:
        An iterator, which requests a page when it is needed.

    Raises:
        LedgerError: while iterating: no response arrived.
    """
    query = {"parent": parent, "path": path, "name": name, **metadata_filters(q, owner, labels, archived=archived)}
    return Listing("v1/budgets", query, Budget, page_size)
