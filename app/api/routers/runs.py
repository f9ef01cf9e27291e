"""Runs, their steps, and their history."""

from typing import Annotated

from fastapi import Query, Request, Response

from app.api.paging import After, PageLimit, cut, decode_cursor
from app.api.problems import OPENING, PRICING, PROBLEM_JSON, READING, WRITING, problem, reads, responses
from app.api.route import Asked, IdempotencyKey, created, identity, router, tagged
from app.api.schemas.history import HistoryOut
from app.api.schemas.runs import RunIn, RunOut, RunPage
from app.api.schemas.steps import REFUSED_EXAMPLE, AdmittedOut, StepsIn, refusal_members
from app.ledger.errors import InvalidInputError
from app.ledger.runs import RunAction, RunStatus
from app.service import history, runs, steps

routes = router()

_STATE_PROBLEMS = (*WRITING, "not_found", "run_state_conflict")
_STEP_RESPONSES = responses(
    *WRITING,
    *PRICING,
    "budget_exceeded",
    "not_found",
    "run_state_conflict",
    "sequence_conflict",
    "sequence_gap",
    "idempotency_key_reused",
)
_STEP_RESPONSES[403]["content"][PROBLEM_JSON]["examples"]["budget_exceeded"]["value"] = REFUSED_EXAMPLE


@routes.post(
    "/runs",
    operation_id="registerRun",
    summary="Register a training run beneath a budget",
    tags=["runs"],
    status_code=201,
    response_model=RunOut,
    responses=responses(*OPENING, "not_found", "neighboring_relation_mismatch", "privacy_unit_mismatch"),
)
def register_run(body: RunIn, request: Request, call: Asked, key: IdempotencyKey = None) -> Response:
    """Register a run; its steps will be charged to it, to its budget and to everything above."""
    return created(
        runs.register_run(
            call,
            body.declaration(),
            body.terms(),
            identity(request, body, key),
            lambda record: RunOut.of(record).model_dump_json(),
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
        Query(max_length=2000, description="Only those directly beneath this budget (id or path)."),
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


@routes.post(
    "/runs/{run_id}/steps",
    operation_id="takeSteps",
    summary="Ask, before each noisy release: may this run take these steps?",
    tags=["runs"],
    response_model=AdmittedOut,
    responses=_STEP_RESPONSES,
)
def take_steps(
    run_id: str,
    body: StepsIn,
    call: Asked,
    key: IdempotencyKey = None,
    *,
    dry_run: Annotated[bool, Query(description="Preview: decide, and record nothing.")] = False,
) -> Response:
    """Admit and charge the steps to the run and to everything above it, or refuse them and charge nothing.

    An answer of 200 means that the charge is durable: release the noisy result now. Any other answer means
    that nothing was charged: release nothing. Admitted steps are pinned by `first_step`, any answer by its
    `Idempotency-Key`; asking again gets the first answer with the header `Idempotent-Replayed: true`, and with
    the key of the first request, if it carried one, as `Idempotent-Replay-Of`: a trainer that did not send that
    key was not the one who was admitted, and must release nothing.
    """
    answered = steps.take_steps(call, body.request(run_id, key), dry_run=dry_run)
    headers = {}
    if answered.replayed:
        headers["Idempotent-Replayed"] = "true"
        if answered.decision.idempotency_key is not None:
            headers["Idempotent-Replay-Of"] = answered.decision.idempotency_key
    if answered.decision.admitted:
        admitted = AdmittedOut.of(answered.decision, dry_run=dry_run)
        return Response(admitted.model_dump_json(), 200, headers, "application/json")
    detail, members = refusal_members(answered.decision, dry_run=dry_run)
    return problem("budget_exceeded", detail, members, headers)


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
    found = history.read_history(call, run_id, after=int(known), max_points=max_points)
    return tagged(request, HistoryOut.of(found, after))


def _change(call: Asked, run_id: str, action: RunAction) -> RunOut:
    return RunOut.of(runs.change_state(call, run_id, action))


@routes.post(
    "/runs/{run_id}/complete",
    operation_id="completeRun",
    summary="Complete a run",
    tags=["runs"],
    responses=responses(*_STATE_PROBLEMS),
)
def complete_run(run_id: str, call: Asked) -> RunOut:
    """The training is done; the run takes no more steps."""
    return _change(call, run_id, RunAction.COMPLETE)


@routes.post(
    "/runs/{run_id}/pause",
    operation_id="pauseRun",
    summary="Pause a run",
    tags=["runs"],
    responses=responses(*_STATE_PROBLEMS),
)
def pause_run(run_id: str, call: Asked) -> RunOut:
    """The run takes no steps until it is resumed."""
    return _change(call, run_id, RunAction.PAUSE)


@routes.post(
    "/runs/{run_id}/resume",
    operation_id="resumeRun",
    summary="Resume a paused run",
    tags=["runs"],
    responses=responses(*_STATE_PROBLEMS),
)
def resume_run(run_id: str, call: Asked) -> RunOut:
    """The run takes steps again."""
    return _change(call, run_id, RunAction.RESUME)


@routes.post(
    "/runs/{run_id}/abort",
    operation_id="abortRun",
    summary="Abort a run",
    tags=["runs"],
    responses=responses(*_STATE_PROBLEMS),
)
def abort_run(run_id: str, call: Asked) -> RunOut:
    """The training failed; what was spent stays spent, and the run takes no more steps."""
    return _change(call, run_id, RunAction.ABORT)
