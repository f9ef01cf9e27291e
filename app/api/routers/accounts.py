"""Populations and budgets."""

from functools import partial
from http import HTTPStatus
from typing import Annotated, Final

from anyio import CapacityLimiter, to_thread
from fastapi import Query, Request, Response

from app.api.idempotency import IdempotencyDep
from app.api.lists import ListEndpoint, add_list
from app.api.problems import OPENING, READ_ERRORS, WRITE_ERRORS
from app.api.route import ContextDep, etag_response, router
from app.api.schemas.account_creation import CreateBlocks, CreateBudget, CreatePopulation
from app.api.schemas.accounts import Budget, CreatedBlocks, Population
from app.api.schemas.histories import AccountHistory
from app.api.schemas.metadata import ArchivedAccount, ChangeArchive, UpdateMetadata
from app.api.setting_responses import changed_or_proposed, proposed
from app.ledger.accounts.account import AccountKind
from app.ledger.runs.list_filters import BudgetFilter, PopulationFilter
from app.service.accounts import create, metadata
from app.service.accounts.lookup import AccountView
from app.service.queries.account_history import AccountHistoryCache

routes = router()

HISTORIANS: Final = CapacityLimiter(2)
"""Limits concurrent histories, which take up to half a second, so that other requests get threads."""


@routes.post(
    "/populations",
    summary="Create a population",
    tags=["populations"],
    status_code=201,
    response_model=Population,
    responses=proposed(
        "Proposed: it is opened when another person approves it", *OPENING, "name_taken", status=HTTPStatus.ACCEPTED
    ),
)
def create_population(body: CreatePopulation, context: ContextDep, idempotency: IdempotencyDep) -> Response:
    """Create a population: the root of a tree of budgets, with a limit that is never exceeded (201).

    With `approvers_to_create_population: 2` in the organisation's policy, it is proposed instead (202).
    """
    effect = create.create_population.effect(context, body.terms(), body.population())
    accepted = partial(changed_or_proposed, render=Population.of, done=HTTPStatus.CREATED, status=HTTPStatus.ACCEPTED)
    return idempotency.respond(effect, accepted, body)


add_list(routes, ListEndpoint("populations", PopulationFilter, create.list_accounts, Population))


@routes.read("/populations/{population_id}", "Get a population", Population, *READ_ERRORS, tag="populations")
def get_population(population_id: str, request: Request, context: ContextDep) -> Response:
    """Get a population, its limit, and the total spent on it."""
    return etag_response(request, Population.of(create.get_account(context, AccountKind.POPULATION, population_id)))


@routes.change(
    "/populations/{population_id}",
    "Update the metadata of a population",
    *WRITE_ERRORS,
    "name_taken",
    "not_found",
    tag="populations",
    method="PATCH",
)
def update_population(population_id: str, body: UpdateMetadata, context: ContextDep) -> Population:
    """Change what people see of a population, by a JSON merge patch: null removes, labels are merged by key."""
    metadata.change_metadata(context, AccountKind.POPULATION, population_id, body.changes())
    return Population.of(create.get_account(context, AccountKind.POPULATION, population_id))


@routes.create("/budgets", "Create a budget", Budget, *OPENING, "name_taken", "not_found", tag="budgets")
def create_budget(body: CreateBudget, context: ContextDep, idempotency: IdempotencyDep) -> Response:
    """Create a budget. Its limit may exceed its parent's: every ancestor decides about every charge.

    Outside of its window, if any, nothing is charged to it. A block is a population's data from a time range: a
    partition of an account composed in parallel.
    """
    return idempotency.respond(create.create_budget.effect(context, body.parent, body.terms()), Budget.of, body)


@routes.create(
    "/accounts/{account_id}/blocks",
    "Create data blocks",
    CreatedBlocks,
    *OPENING,
    "name_taken",
    "not_found",
    tag="budgets",
)
def create_blocks(account_id: str, body: CreateBlocks, context: ContextDep, idempotency: IdempotencyDep) -> Response:
    """Create a budget for each calendar week, month or quarter of a range, all or none.

    The account must be composed in parallel: one record is in one block, by its date, and the largest loss counts.
    """
    effect = create.create_blocks.effect(context, account_id, body.domain(), body.count)
    return idempotency.respond(effect, _blocks, body)


def _blocks(created: list[AccountView]) -> CreatedBlocks:
    return CreatedBlocks(items=[Budget.of(each) for each in created])


add_list(
    routes,
    ListEndpoint("budgets", BudgetFilter, create.list_accounts, Budget),
)


@routes.read("/budgets/{budget_id}", "Get a budget", Budget, *READ_ERRORS, tag="budgets")
def get_budget(budget_id: str, request: Request, context: ContextDep) -> Response:
    """Get a budget, its limit, and the total spent by all runs under it."""
    return etag_response(request, Budget.of(create.get_account(context, AccountKind.BUDGET, budget_id)))


@routes.change(
    "/budgets/{budget_id}",
    "Update the metadata of a budget",
    *WRITE_ERRORS,
    "name_taken",
    "not_found",
    tag="budgets",
    method="PATCH",
)
def update_budget(budget_id: str, body: UpdateMetadata, context: ContextDep) -> Budget:
    """Change what people see of a budget, by a JSON merge patch: null removes, labels are merged by key."""
    metadata.change_metadata(context, AccountKind.BUDGET, budget_id, body.changes())
    return Budget.of(create.get_account(context, AccountKind.BUDGET, budget_id))


@routes.change(
    "/accounts/{account_id}/archive",
    "Archive an account",
    *WRITE_ERRORS,
    *("not_found", "account_state_conflict"),
    tag="accounts",
)
def archive_account(account_id: str, context: ContextDep, body: ChangeArchive | None = None) -> ArchivedAccount:
    """Archive a population, a budget or a run: it and everything under it is hidden from lists and read-only.

    Its runs must have ended: 409 `account_state_conflict` otherwise. Its charges remain.
    """
    return ArchivedAccount.of(metadata.archive_account(context, account_id, body.reason if body else None))


@routes.post(
    "/accounts/{account_id}/unarchive",
    summary="Unarchive an account",
    tags=["accounts"],
    response_model=ArchivedAccount,
    responses=proposed(
        "Proposed: it is unarchived when another person approves it",
        *(*WRITE_ERRORS, "not_found"),
        status=HTTPStatus.ACCEPTED,
    ),
)
def unarchive_account(account_id: str, context: ContextDep, body: ChangeArchive | None = None) -> Response:
    """Show an archived account in lists again, and allow what archiving it prevented.

    Where two persons raise a limit, two unarchive a population or budget: it is proposed (202).
    """
    result = metadata.unarchive_account(context, account_id, body.reason if body else None)
    response = changed_or_proposed(result, ArchivedAccount.of, status=HTTPStatus.ACCEPTED)
    return Response(response.body, response.status, media_type="application/json")


@routes.read(
    "/accounts/{account_id}/history",
    "Get the epsilon history of an account",
    AccountHistory,
    *READ_ERRORS,
    tag="accounts",
)
async def get_account_history(
    account_id: str,
    request: Request,
    context: ContextDep,
    max_points: Annotated[int, Query(ge=2, le=500, description="Maximum number of points.")] = 200,
) -> Response:
    """Get the epsilon of a population or a budget over time, with the shares of its children."""
    histories: AccountHistoryCache = request.app.state.account_histories
    found = await to_thread.run_sync(histories.read, context, account_id, max_points, limiter=HISTORIANS)
    return etag_response(request, AccountHistory.of(found))
