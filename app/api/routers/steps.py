"""Authorization of training steps, before every noisy release.

`app/http/step_path.py` answers plain requests to this route without the framework.
"""

from typing import Annotated

from fastapi import Query, Response
from pydantic_core import to_json

from app.api.problems import COSTING_ERRORS, PROBLEM_JSON, WRITE_ERRORS, problem_response, responses
from app.api.route import CommitQueueDep, ContextDep, IdempotencyKey, router
from app.api.schemas.refusals import REFUSED_EXAMPLE, refusal_members
from app.api.schemas.steps import AuthorizeSteps, StepAuthorization, admitted_members
from app.ledger.errors import AttemptSupersededError
from app.ledger.runs.decisions import Decision
from app.service.charging.requests import StepResult

routes = router("runs")

_STEP_RESPONSES = responses(
    *WRITE_ERRORS,
    *COSTING_ERRORS,
    "budget_exceeded",
    "account_closed",
    "not_found",
    "run_state_conflict",
    "sequence_conflict",
    "sequence_gap",
    "idempotency_key_reused",
    "attempt_superseded",
    "account_quarantined",
    "reservation_required",
    "policy_violation",
)
_STEP_RESPONSES[403]["content"][PROBLEM_JSON]["examples"]["budget_exceeded"] = {"value": REFUSED_EXAMPLE}


@routes.post(
    "/runs/{run_id}/steps",
    summary="Authorize training steps",
    response_model=StepAuthorization,
    responses=_STEP_RESPONSES,
)
async def authorize_steps(
    run_id: str,
    body: AuthorizeSteps,
    context: ContextDep,
    charges: CommitQueueDep,
    key: IdempotencyKey = None,
    *,
    dry_run: Annotated[bool, Query(description="Preview the decision without recording it.")] = False,
) -> Response:
    """Admit and charge the steps to the run and to everything above it, or refuse them and charge nothing.

    An answer of 200 means that the charge is durable: release the noisy result now. Any other answer means
    that nothing was charged: release nothing. Admitted steps are pinned by `first_step`, and they and a
    `budget_exceeded` by their `Idempotency-Key`; asking again gets the first answer, but for `request_id` and
    `url` of a refusal, with the header `Idempotent-Replayed: true`, and with the key of the first request, if it
    carried one, as `Idempotent-Replay-Of`: a trainer that did not send that key was not the one who was
    admitted, and must release nothing.
    """
    asked = body.request(run_id, key)
    try:
        answered = await (charges.preview(context, asked) if dry_run else charges.authorize_steps(context, asked))
    except AttemptSupersededError as error:
        raise error if "attempt" in body.model_fields_set else error.unnamed() from None
    return step_response(answered, dry_run=dry_run)


def step_response(answered: StepResult, *, dry_run: bool = False) -> Response:
    """Build the response to a decision."""
    headers = {}
    if answered.replayed:
        headers["Idempotent-Replayed"] = "true"
        if answered.decision.idempotency_key is not None:
            headers["Idempotent-Replay-Of"] = answered.decision.idempotency_key
    if answered.decision.admitted:
        return Response(admitted_content(answered.decision, dry_run=dry_run), 200, headers, "application/json")
    detail, members = refusal_members(answered.decision, dry_run=dry_run)
    return problem_response("budget_exceeded", detail, members, headers)


def admitted_content(decision: Decision, *, dry_run: bool = False) -> bytes:
    """Build the body of an admission; validation by StepAuthorization would take longer than parsing the request."""
    return to_json(admitted_members(decision, dry_run=dry_run), inf_nan_mode="strings")
