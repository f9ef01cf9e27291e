"""Runs, and their history."""

from typing import Annotated

from fastapi import Query, Request, Response

from app.api.paging import After, PageLimit, cut, decode_cursor
from app.api.problems import OPENING, READING, reads, responses
from app.api.route import Asked, IdempotencyKey, created, identity, router, tagged
from app.api.schemas.history import HistoryOut
from app.api.schemas.reservations import plan_refused
from app.api.schemas.runs import RunIn, RunOut, RunPage
from app.ledger.errors import InvalidInputError
from app.ledger.runs import RunStatus
from app.service.queries import run_history, runs
from app.service.runs import register

routes = router()


@routes.post(
    "/runs",
    operation_id="registerRun",
    summary="Register a training run beneath a budget, or beneath several",
    tags=["runs"],
    status_code=201,
    response_model=RunOut,
    responses=responses(
        *OPENING,
        *("account_quarantined", "budget_exceeded", "budget_window", "not_found"),
        *("neighboring_relation_mismatch", "privacy_unit_mismatch"),
    ),
)
def register_run(body: RunIn, request: Request, call: Asked, key: IdempotencyKey = None) -> Response:
    """Register a run; its steps will be charged to it, to its budgets and to everything above: to all, or to none."""
    return created(
        register.register_run(
            call,
            body.registration(),
            identity(request, body, key),
            lambda record: RunOut.of(record).model_dump_json(),
            lambda refusal: plan_refused(refusal, sum(step.count for step in body.plan)),
        )
    )


@routes.get(
    "/runs",
    operation_id="listRuns",
    summary="List runs",
    tags=["runs"],
    response_model=RunPage,
    responses=reads(*READING),
)
def list_runs(
    request: Request,
    call: Asked,
    budget: Annotated[
        str | None,
        Query(max_length=2000, description="Only those that charge this budget (id or path) directly."),
    ] = None,
    status: Annotated[RunStatus | None, Query(description="Only those in this state.")] = None,
    limit: PageLimit = 50,
    after: After = None,
) -> Response:
    """Runs of the caller's organisation in the order of their registration."""
    found = runs.list_runs(call, budget=budget, status=status, after=decode_cursor(after), limit=limit + 1)
    shown, following = cut(found, limit, lambda record: record.run.account_id)
    return tagged(request, RunPage(items=[RunOut.of(record) for record in shown], next=following))


@routes.get(
    "/runs/{run_id}",
    operation_id="getRun",
    summary="Read a run",
    tags=["runs"],
    response_model=RunOut,
    responses=reads(*READING),
)
def get_run(run_id: str, request: Request, call: Asked) -> Response:
    """A run: its state, its epsilon, and how many further steps would fit."""
    return tagged(request, RunOut.of(runs.get_run(call, run_id)))


@routes.get(
    "/runs/{run_id}/history",
    operation_id="getRunHistory",
    summary="Read a run's epsilon over its steps",
    tags=["runs"],
    response_model=HistoryOut,
    responses=reads(*READING),
)
def get_run_history(
    run_id: str,
    request: Request,
    call: Asked,
    max_points: Annotated[int, Query(ge=2, le=2000, description="How many decisions at the most.")] = 500,
    after: After = None,
) -> Response:
    """Every admitted and refused request of the run, evenly thinned out; the latest is always there."""
    known = decode_cursor(after) or "-1"
    if after and not known.isdecimal():
        raise InvalidInputError(f"{after!a} is not a cursor of a history; send the `next` of an earlier one.")
    found = run_history.read_history(call, run_id, after=int(known), max_points=max_points)
    return tagged(request, HistoryOut.of(found, after))
