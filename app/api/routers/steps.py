"""Authorization of training steps, before every noisy release: the route, and a fast path for plain requests."""

import re
from typing import Annotated, Final

from fastapi import Query, Request, Response
from pydantic import TypeAdapter, ValidationError
from pydantic_core import to_json
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from app.accounting.errors import AccountingError
from app.api.middleware import TEMPLATE
from app.api.problems import (
    COSTING_ERRORS,
    EXPECTED_ERRORS,
    PROBLEM_JSON,
    WRITE_ERRORS,
    problem_from_exception,
    problem_response,
    responses,
)
from app.api.route import CommitQueueDep, ContextDep, IdempotencyKey, router
from app.api.schemas.steps import REFUSED_EXAMPLE, AuthorizeSteps, StepAuthorization, admitted_members, refusal_members
from app.api.strict_json import MAX_BODY_BYTES, strict_loads
from app.ledger.errors import AttemptSupersededError, LedgerError
from app.logging_config import request_id
from app.service.auth.authentication import Principal
from app.service.auth.credential_cache import Authenticator
from app.service.auth.rate_limit import RequestLimits
from app.service.metrics import TRACES
from app.service.placements import Placements

routes = router("runs")

_STEP_RESPONSES = responses(
    *WRITE_ERRORS,
    *COSTING_ERRORS,
    "budget_exceeded",
    "budget_closed",
    "not_found",
    "run_state_conflict",
    "sequence_conflict",
    "sequence_gap",
    "idempotency_key_reused",
    "attempt_superseded",
    "account_quarantined",
    "policy_violation",
)
_STEP_RESPONSES[403]["content"][PROBLEM_JSON]["examples"]["budget_exceeded"]["value"] = REFUSED_EXAMPLE


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
    that nothing was charged: release nothing. Admitted steps are pinned by `first_step`, any answer by its
    `Idempotency-Key`; asking again gets the first answer with the header `Idempotent-Replayed: true`, and with
    the key of the first request, if it carried one, as `Idempotent-Replay-Of`: a trainer that did not send that
    key was not the one who was admitted, and must release nothing.
    """
    asked = body.request(run_id, key)
    try:
        answered = await (charges.preview(context, asked) if dry_run else charges.authorize_steps(context, asked))
    except AttemptSupersededError as error:
        raise error if "attempt" in body.model_fields_set else error.unnamed() from None
    headers = {}
    if answered.replayed:
        headers["Idempotent-Replayed"] = "true"
        if answered.decision.idempotency_key is not None:
            headers["Idempotent-Replay-Of"] = answered.decision.idempotency_key
    if answered.decision.admitted:
        # Not through StepAuthorization: its validation would take longer than parsing the request.
        content = to_json(admitted_members(answered.decision, dry_run=dry_run), inf_nan_mode="strings")
        return Response(content, 200, headers, "application/json")
    detail, members = refusal_members(answered.decision, dry_run=dry_run)
    return problem_response("budget_exceeded", detail, members, headers)


_TEMPLATE: Final = "/v1/runs/{run_id}/steps"
_IDEMPOTENCY_KEY: Final[TypeAdapter[str | None]] = TypeAdapter(IdempotencyKey)
_PATH: Final = re.compile(r"/v1/runs/([^/\0]+)/steps")


class StepFastPathMiddleware:
    """Middleware that answers plain requests to `POST /v1/runs/{run_id}/steps` itself.

    Requests with an unknown caller, a query, a repeated header, a chunked or encoded body, or any error take the
    regular route unchanged, which alone decides about them. FastAPI documents the endpoint, and tests check that both
    paths agree.

    Args:
        app: the regular application.
        keys: recently authenticated callers.
        rates: request limits.
        placements: of the ledgers.
    """

    def __init__(self, app: ASGIApp, keys: Authenticator, rates: RequestLimits, placements: Placements) -> None:
        self._app = app
        self._keys = keys
        self._rates = rates
        self._placements = placements

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer the request, or pass it on."""
        head = self._head(scope)
        if head is None:
            await self._app(scope, receive, send)
            return
        message = await receive()
        body = _body(message)
        if body is None:
            await self._app(scope, _again(message, receive), send)
            return
        run_id, caller, key = head
        scope[TEMPLATE] = _TEMPLATE
        TRACES.name_route("POST", _TEMPLATE)
        try:
            self._rates.keys.take(caller.actor)
            placement = self._placements.named(caller.placement)
            reply = await authorize_steps(
                run_id, body, placement.context(caller, request_id.get()), placement.charges, key
            )
        except EXPECTED_ERRORS as error:
            reply = await problem_from_exception(Request(scope), error)
        await reply(scope, receive, send)

    def _head(self, scope: Scope) -> tuple[str, Principal, str | None] | None:
        """Return run id, principal and idempotency key, or None for the regular route."""
        path = _PATH.fullmatch(scope["path"]) if scope["type"] == "http" else None
        if path is None or scope["method"] != "POST" or scope["query_string"]:
            return None
        headers = dict(scope["headers"])
        twice = len(headers) < len(scope["headers"])
        caller = self._keys.find(headers.get(b"authorization", b"").decode("latin-1"))
        plain = headers.get(b"content-type") == b"application/json" and b"content-encoding" not in headers
        if twice or caller is None or not plain:
            return None
        key = headers.get(b"idempotency-key")
        try:
            return path[1], caller, _IDEMPOTENCY_KEY.validate_python(None if key is None else key.decode("latin-1"))
        except ValidationError:
            return None


def _body(message: Message) -> AuthorizeSteps | None:
    """Parse the request body, or return None for the regular route."""
    if message["type"] != "http.request" or message.get("more_body", False):
        return None
    content = message.get("body", b"")
    if len(content) > MAX_BODY_BYTES:
        return None
    try:
        return AuthorizeSteps.model_validate(strict_loads(content))
    except (LedgerError, AccountingError, ValidationError):
        return None


def _again(message: Message, receive: Receive) -> Receive:
    """Replay the consumed message before the following ones."""
    taken = [message]

    async def receive_again() -> Message:
        return taken.pop() if taken else await receive()

    return receive_again
