"""A population or a budget at a glance: how it stands, what lies beneath it, and who spends."""

from dataclasses import dataclass
from datetime import datetime
from typing import Final

from sqlalchemy import Connection

from app.ledger.accounts import Account, AccountKind
from app.ledger.errors import LedgerUnavailableError, NotFoundError
from app.ledger.permissions import Permission
from app.persistence.repositories import decision_queries, overview_queries
from app.persistence.repositories.accounts import AccountRecord
from app.persistence.repositories.decision_queries import Decided
from app.persistence.repositories.decisions import DecisionOutcome
from app.persistence.repositories.overview_queries import RunOutline
from app.service.accounts.lookup import find_path_of
from app.service.accounts.partitions import AccountView, account_views
from app.service.auth.request_context import RequestContext
from app.service.queries.account_history import AccountHistory, AccountHistoryCache, ChildShare
from app.service.queries.account_status import AccountStatus, AccountStatusCache, ancestors, with_burn_rate
from app.service.queries.damaged_rows import read_tolerating_damage
from app.service.queries.overview import AccountTree, trees_of
from app.service.queries.proposal_detail import LimitNow, limit_now
from app.service.queries.whatif import HypotheticalRun, WhatIfResult, what_if

POINTS: Final = 200
BENEATH: Final = 60
"""Budgets beneath it that are shown, the most urgent ones."""

RUNS: Final = 25
REFUSALS: Final = 10


@dataclass(frozen=True, slots=True)
class Spender:
    """A child of an account that was charged.

    Args:
        child: with the part of the account's threshold that it took, at the order of its history.
        alone: epsilon of what it took, as if nothing else had been spent, by the account's own filter; None: its row
            is damaged.
        updated_at: when it was changed last, in UTC; None: likewise.
    """

    child: ChildShare
    alone: float | None
    updated_at: datetime | None


@dataclass(frozen=True, slots=True)
class AccountDetail:
    """What people look at of a population or a budget.

    Args:
        view: the account as it is read.
        above: the accounts above it, root first.
        standing: how it stands, with its pace.
        tree: what lies beneath it, the most urgent first.
        history: what was spent over time.
        spenders: who spent most of it.
        runs: those beneath it, the newest first.
        following: the id behind which there are more runs; None: there are none.
        refusals: the latest of these runs.
        limit: its limit, as a form changes it.
        answer: whether a further run would fit; None: none was asked about, or nothing is proven of such a one.
    """

    view: AccountView
    above: tuple[AccountRecord, ...]
    standing: AccountStatus
    tree: AccountTree
    history: AccountHistory
    spenders: tuple[Spender, ...]
    runs: list[RunOutline]
    following: str | None
    refusals: list[Decided]
    limit: LimitNow
    answer: WhatIfResult | None


def get_account_detail(
    call: RequestContext,
    standings: AccountStatusCache,
    histories: AccountHistoryCache,
    account_id: str,
    *,
    before: str | None,
    plan: HypotheticalRun | None,
) -> AccountDetail:
    """Read what people look at of a population or a budget, in one state of the ledger.

    Args:
        call: needs LEDGER_READ.
        standings: what is remembered of accounts.
        histories: what is remembered of their growth.
        account_id: its id.
        before: only runs that were registered before the one with this id are listed.
        plan: a further run that is asked about; None: none is.

    Raises:
        NotFoundError: the organisation has no population or budget with this id.
        InsufficientScopeError: it is out of the caller's reach.
        LedgerUnavailableError: its row is damaged, or that of an account above it.
    """
    call.require_permission(Permission.LEDGER_READ)
    with call.db.read(call.organisation_id) as tx:
        path = find_path_of(tx, call, account_id)
        record = path[-1]
        if record.account.kind is AccountKind.RUN:
            raise NotFoundError(f"{account_id} is a run, and no population or budget.")
        [view] = account_views(tx, call, [record])
        everything = standings.read(tx, call, beneath=record.account.id)
        shown = with_burn_rate(tx, call, _chosen(everything, record.account.id))
        [tree] = trees_of(shown, everything)
        if tree.standing.limit is None:
            raise LedgerUnavailableError(
                f"The row of {record.account.path} is damaged: its numbers mean nothing; run `epsilon-ledger verify`."
            )
        history = histories.read_in(tx, call, record, POINTS)
        found = overview_queries.newest_runs(tx, call.organisation_id, record.account.id, before=before, limit=RUNS + 1)
        refused = decision_queries.DecisionFilter(outcome=DecisionOutcome.REFUSED, beneath=record.account.id)
        return AccountDetail(
            view=view,
            above=tuple(path[:-1]),
            standing=tree.standing,
            tree=tree,
            history=history,
            spenders=_spenders(tx, call, record.account, history),
            runs=found[:RUNS],
            following=found[RUNS - 1].id if len(found) > RUNS else None,
            refusals=decision_queries.page(tx, call.organisation_id, refused, before=None, limit=REFUSALS),
            limit=limit_now(tx, call, path),
            answer=None if plan is None else what_if(tx, call, tuple(each.account for each in path), plan),
        )


def _chosen(everything: list[AccountStatus], account_id: str) -> list[AccountStatus]:
    """The account, and the most urgent ones beneath it with all between them."""
    urgent = sorted(everything, key=lambda each: each.urgency)[:BENEATH]
    ids = ancestors(everything, [account_id, *(each.id for each in urgent)])
    return [each for each in everything if each.id in ids]


def _spenders(tx: Connection, call: RequestContext, account: Account, history: AccountHistory) -> tuple[Spender, ...]:
    children = {each.account_id: each for each in history.children if each.account_id is not None}

    def spender(record: AccountRecord) -> Spender:
        return Spender(children[record.account.id], account.epsilon(record.account.spent), record.updated_at)

    found, _ = read_tolerating_damage(tx, call.organisation_id, list(children), spender)
    return tuple(found.get(child_id, Spender(child, None, None)) for child_id, child in children.items())
