"""Read model of the page of a population or budget."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Final

from sqlalchemy import Connection

from app.ledger.account_records import AccountRecord
from app.ledger.accounts import Account, AccountKind
from app.ledger.decisions import DecisionFilter, DecisionOutcome, DecisionWithPath
from app.ledger.errors import LedgerUnavailableError, NotFoundError
from app.ledger.pages import Page, PageRequest
from app.persistence.repositories import decisions, overview_queries
from app.persistence.repositories.overview_queries import RunOutline
from app.service.accounts.lookup import find_path_of
from app.service.accounts.partitions import AccountView, account_views
from app.service.auth.request_context import RequestContext
from app.service.queries.account_history import AccountHistory, AccountHistoryCache, ChildShare
from app.service.queries.account_status import (
    AccountStatus,
    AccountStatusCache,
    ancestors,
    read_tolerating_damage,
    with_burn_rate,
)
from app.service.queries.governance import CurrentLimit, current_limit
from app.service.queries.overview import AccountTree, trees_of
from app.service.queries.whatif import HypotheticalRun, WhatIfResult, what_if

POINTS: Final = 200
BENEATH: Final = 60
"""Number of descendants shown, the most urgent ones."""

RUNS: Final = 25
REFUSALS: Final = 10


@dataclass(frozen=True, slots=True)
class Spender:
    """A child that was charged, and the epsilon of its spending `alone`; values are None if its row is damaged."""

    child: ChildShare
    alone: float | None
    updated_at: datetime | None


@dataclass(frozen=True, slots=True)
class AccountDetail:
    """Contents of the page of a population or budget.

    Args:
        above: its ancestors, root first.
        spenders: the largest share first.
        following: id after which there are more runs; None: no more.
        limit: its limit, for the form that changes it.
        answer: whether a hypothetical run fits; None: no such run was given, or its cost is unknown.
    """

    view: AccountView
    above: tuple[AccountRecord, ...]
    tree: AccountTree
    history: AccountHistory
    spenders: tuple[Spender, ...]
    runs: Page[RunOutline]
    refusals: Sequence[DecisionWithPath]
    limit: CurrentLimit
    answer: WhatIfResult | None


def get_account_detail(
    context: RequestContext,
    statuses: AccountStatusCache,
    histories: AccountHistoryCache,
    account_id: str,
    after: str | None,
    plan: HypotheticalRun | None,
) -> AccountDetail:
    """Get the page of a population or budget from one snapshot.

    Its runs are listed behind the place `after`.

    Raises:
        LedgerUnavailableError: the row of the account or of an ancestor is damaged.
    """
    with context.read() as tx:
        path = find_path_of(tx, context, account_id)
        record = path[-1]
        if record.account.kind is AccountKind.RUN:
            raise NotFoundError(f"{account_id} is a run, and no population or budget.")
        [view] = account_views(tx, context, [record])
        everything = statuses.read(tx, context, within=record.account.id)
        shown = with_burn_rate(tx, context, _chosen(everything, record.account.id))
        [tree] = trees_of(shown, everything)
        if tree.status.limit is None:
            raise LedgerUnavailableError(
                f"The row of {record.account.path} is damaged: its numbers mean nothing; run `epsilon-ledger verify`."
            )
        history = histories.read_in(tx, context, record, POINTS)
        refused = DecisionFilter(outcome=DecisionOutcome.REFUSED, within=record.account.id)
        return AccountDetail(
            view=view,
            above=tuple(path[:-1]),
            tree=tree,
            history=history,
            spenders=_spenders(tx, context, record.account, history),
            runs=overview_queries.newest_runs(tx, context.organisation_id, record.account.id, PageRequest(RUNS, after)),
            refusals=decisions.page(tx, context.organisation_id, refused, PageRequest(REFUSALS)).items,
            limit=current_limit(tx, context, path),
            answer=None if plan is None else what_if(tx, context, tuple(each.account for each in path), plan),
        )


def _chosen(everything: list[AccountStatus], account_id: str) -> list[AccountStatus]:
    """Select the account and its most urgent descendants, with all accounts between them."""
    urgent = sorted(everything, key=lambda each: each.sort_key)[:BENEATH]
    ids = ancestors(everything, [account_id, *(each.id for each in urgent)])
    return [each for each in everything if each.id in ids]


def _spenders(
    tx: Connection, context: RequestContext, account: Account, history: AccountHistory
) -> tuple[Spender, ...]:
    children = {each.account_id: each for each in history.children if each.account_id is not None}

    def spender(record: AccountRecord) -> Spender:
        return Spender(children[record.account.id], account.epsilon(record.account.spent), record.updated_at)

    found, _ = read_tolerating_damage(tx, context.organisation_id, list(children), spender)
    return tuple(found.get(child_id, Spender(child, None, None)) for child_id, child in children.items())
