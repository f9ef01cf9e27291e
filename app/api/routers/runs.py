"""Runs and their history."""

from typing import Annotated

from fastapi import Query, Request, Response

from app.api.idempotency import IdempotencyDep
from app.api.lists import Csv, ListEndpoint, add_list
from app.api.pagination import After, decode_cursor
from app.api.problems import CHARGING, OPENING, READ_ERRORS, WRITE_ERRORS
from app.api.route import ContextDep, etag_response, router
from app.api.routers.exports import RUN_COLUMNS, run_cells
from app.api.schemas.histories import RunHistory
from app.api.schemas.metadata import UpdateMetadata
from app.api.schemas.reservations import reservation_refused
from app.api.schemas.runs import CreateRun, Run
from app.ledger.accounts.account import AccountKind
from app.ledger.admission.admission import Refusal
from app.ledger.errors import InvalidInputError
from app.ledger.runs.list_filters import RunFilter
from app.service.accounts.metadata import change_metadata
from app.service.idempotency import StoredResponse
from app.service.queries import runs
from app.service.queries.runs import RunRecord
from app.service.runs import register

routes = router("runs")


@routes.create("/runs", "Create a run", Run, *OPENING, *CHARGING)
def create_run(body: CreateRun, context: ContextDep, idempotency: IdempotencyDep) -> Response:
    """Register a run; its steps are charged to it, its budgets and all accounts above, or to none."""

    def render(result: RunRecord | Refusal) -> Run | StoredResponse:
        return reservation_refused(result, body.reserve) if isinstance(result, Refusal) else Run.of(result)

    return idempotency.respond(register.register_run.effect(context, body.registration()), render, body)


RUNS = add_list(
    routes,
    ListEndpoint(
        "runs",
        RunFilter,
        runs.list_runs,
        Run,
        "List the organisation's runs, newest first unless `sort` is given. Filters narrow each other down.",
        csv=Csv(RUN_COLUMNS, runs.list_run_rows, run_cells),
    ),
)


@routes.read("/runs/{run_id}", "Get a run", Run, *READ_ERRORS)
def get_run(run_id: str, request: Request, context: ContextDep) -> Response:
    """Get a run: its status, its epsilon, and the number of further steps that fit."""
    return etag_response(request, Run.of(runs.get_run(context, run_id)))


@routes.change("/runs/{run_id}", "Update the metadata of a run", *WRITE_ERRORS, "not_found", method="PATCH")
def update_run(run_id: str, body: UpdateMetadata, context: ContextDep) -> Run:
    """Change what people see of a run, by a JSON merge patch: null removes, labels are merged by key."""
    change_metadata(context, AccountKind.RUN, run_id, body.changes())
    return Run.of(runs.get_run(context, run_id))


@routes.read("/runs/{run_id}/history", "Get the epsilon history of a run", RunHistory, *READ_ERRORS)
def get_run_history(
    run_id: str,
    request: Request,
    context: ContextDep,
    max_points: Annotated[int, Query(ge=2, le=2000, description="Maximum number of decisions.")] = 500,
    after: After = None,
) -> Response:
    """Get the run's decisions, evenly thinned out; the latest is always included."""
    known = decode_cursor(after) or "-1"
    if after and not known.isdecimal():
        raise InvalidInputError(f"{after!a} is not a cursor of a history; send the `next` of an earlier one.")
    found = runs.read_history(context, run_id, after=int(known), max_points=max_points)
    return etag_response(request, RunHistory.of(found, after))
