"""Read model of an organisation's overview: account trees, active runs and refusals; and search of accounts."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from sqlalchemy import Connection

from app.ledger.accounts.account import AccountKind
from app.ledger.pages import PageRequest
from app.ledger.runs.decisions import DecisionFilter, DecisionOutcome, DecisionWithPath
from app.ledger.scheduling.account_status import AccountStatus, Severity
from app.persistence.repositories import account_metadata, decisions, overview_queries
from app.persistence.repositories.overview_queries import RunOutline
from app.service.auth.request_context import RequestContext
from app.service.queries.account_status import (
    ancestors,
    with_burn_rate,
    with_epsilons,
    with_metadata,
    with_waiting_reservations,
)
from app.service.queries.account_status_cache import AccountStatusCache

POPULATIONS: Final = 100
BUDGETS: Final = 150
"""Number of budgets shown, the most urgent ones; the others are counted."""

RUNS: Final = 10
REFUSALS: Final = 8


@dataclass(frozen=True, slots=True)
class AccountTree:
    """An account with its shown descendants, and the number of hidden ones."""

    status: AccountStatus
    children: tuple["AccountTree", ...]
    hidden: int


@dataclass(frozen=True, slots=True)
class Overview:
    """Overview of the accounts within the caller's scope, the most urgent first.

    Args:
        populations: total number, shown or not; likewise `budgets`.
        severities: number of accounts by severity.
        runs: active runs, the most recently used first.
        unfinished: number of active runs by status.
        quarantined: the newest runs that are quarantined themselves, ended or not.
        refusals: the latest refused decisions.
    """

    trees: tuple[AccountTree, ...]
    populations: int
    budgets: int
    severities: dict[Severity, int]
    runs: list[RunOutline]
    unfinished: dict[str, int]
    quarantined: list[RunOutline]
    refusals: Sequence[DecisionWithPath]

    @property
    def locks(self) -> bool:
        """Whether a part of the limit of a population that is shown is locked."""
        return any(each.status.locked is not None for each in self.trees)


def read_change_token(context: RequestContext) -> tuple[object, ...]:
    """Get a token that changes with the contents of an organisation's pages, time aside."""
    with context.read() as tx:
        return overview_queries.change_token(tx, context.organisation_id)


def read_overview(context: RequestContext, statuses: AccountStatusCache, *, wanted: str = "") -> Overview:
    """Get the most urgent accounts: at most POPULATIONS trees with BUDGETS budgets.

    `wanted` selects trees with an account whose path contains this text, ignoring case.
    """
    with context.read() as tx:
        found = _matching(_shown(tx, context, statuses), wanted)
        scope = context.principal.scope
        above = [] if scope is None else statuses.read_above(tx, context, scope)
        rated = with_burn_rate(tx, context, _chosen(found), above)
        described = with_epsilons(tx, context, with_metadata(tx, context, rated))
        chosen = with_waiting_reservations(tx, context, described)
        unfinished, numbers = overview_queries.unfinished_runs(tx, context.organisation_id, scope, RUNS)
        quarantined = overview_queries.quarantined_runs(tx, context.organisation_id, scope, RUNS)
        refused = DecisionFilter(outcome=DecisionOutcome.REFUSED, within=scope)
        refusals = decisions.page(tx, context.organisation_id, refused, PageRequest(REFUSALS)).items
    severities: dict[Severity, int] = {}
    for each in found:
        severities[each.severity] = severities.get(each.severity, 0) + 1
    return Overview(
        trees=trees_of(chosen, found),
        populations=sum(each.kind is AccountKind.POPULATION for each in found),
        budgets=sum(each.kind is AccountKind.BUDGET for each in found),
        severities=severities,
        runs=unfinished,
        unfinished=numbers,
        quarantined=quarantined,
        refusals=refusals,
    )


def find_accounts(
    context: RequestContext, statuses: AccountStatusCache, *, wanted: str, most: int
) -> tuple[list[AccountStatus], int]:
    """Search undamaged accounts by a part of their path; return the first ones, and the number of others."""
    with context.read() as tx:
        everything = _shown(tx, context, statuses)
        found = sorted(
            (each for each in everything if each.limit is not None and wanted.casefold() in each.path.casefold()),
            key=lambda each: each.path,
        )
        return with_epsilons(tx, context, found[:most]), max(0, len(found) - most)


def list_shown_paths(context: RequestContext, statuses: AccountStatusCache, most: int) -> list[str]:
    """List in order the paths of at most `most` accounts, those at the top first, without archived ones."""
    with context.read() as tx:
        found = [each.path for each in _shown(tx, context, statuses)]
    return sorted(found[:most])


def account_titles_of(context: RequestContext, account_ids: Iterable[str | None]) -> Mapping[str, str]:
    """Get the paths of existing accounts by id, also outside the caller's scope, with numbers that tell runs apart."""
    wanted = {each for each in account_ids if each is not None}
    if not wanted:
        return {}
    with context.db.read(context.organisation_id) as tx:
        found = overview_queries.statuses_of(tx, context.organisation_id, sorted(wanted))
    return {account_id: each.path_title for account_id, each in found.items()}


def trees_of(shown: Sequence[AccountStatus], everything: Sequence[AccountStatus]) -> tuple[AccountTree, ...]:
    """Build trees of the shown accounts; a tree is as urgent as its most urgent account.

    `shown` has the parents of its accounts, as far as they are within the caller's scope.
    """
    ids = {each.id for each in shown}
    children_of: dict[str | None, list[AccountStatus]] = {}
    for each in shown:
        children_of.setdefault(each.parent_id if each.parent_id in ids else None, []).append(each)
    hidden: dict[str, int] = {}
    parents = {each.id: each.parent_id for each in everything}
    for each in everything:
        at = each.parent_id
        while each.id not in ids and at is not None:
            hidden[at] = hidden.get(at, 0) + 1
            at = None if at in ids else parents.get(at)

    def grow(status: AccountStatus) -> AccountTree:
        children = sorted(map(grow, children_of.get(status.id, [])), key=_sort_key)
        return AccountTree(status, tuple(children), hidden.get(status.id, 0))

    return tuple(sorted(map(grow, children_of.get(None, [])), key=_sort_key))


def _sort_key(tree: AccountTree) -> tuple[int, float, str]:
    return min([tree.status.sort_key, *map(_sort_key, tree.children)])


def _shown(tx: Connection, context: RequestContext, statuses: AccountStatusCache) -> list[AccountStatus]:
    """Get the accounts in the caller's scope, without archived ones."""
    hidden = account_metadata.archived_ids(tx, context.organisation_id)
    return [each for each in statuses.read(tx, context) if each.id not in hidden]


def _matching(everything: list[AccountStatus], wanted: str) -> list[AccountStatus]:
    if not wanted.strip():
        return everything
    roots = {each.population_id for each in everything if wanted.strip().casefold() in each.path.casefold()}
    return [each for each in everything if each.population_id in roots]


def _chosen(found: Sequence[AccountStatus]) -> list[AccountStatus]:
    """Select the most urgent accounts and their ancestors."""
    by_sort_key = sorted(found, key=lambda each: each.sort_key)
    roots = [each for each in by_sort_key if each.parent_id is None or each.kind is AccountKind.POPULATION]
    if not roots:  # the caller's scope is a budget
        roots = [each for each in by_sort_key if each.depth == min(other.depth for other in found)]
    first: dict[str, None] = {}
    for each in by_sort_key:  # a tree counts by its most urgent account, not by its root
        first.setdefault(each.population_id)
    kept = set(list(first)[:POPULATIONS])
    budgets = [each.id for each in by_sort_key if each.kind is AccountKind.BUDGET and each.population_id in kept]
    ids = ancestors(found, [*(each.id for each in roots if each.population_id in kept), *budgets[:BUDGETS]])
    return [each for each in found if each.id in ids]
