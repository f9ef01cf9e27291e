"""Fast path of the step route, which bypasses the framework for plain requests."""

import re
from typing import Final

from fastapi import Request
from pydantic import ValidationError
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from app.accounting.errors import AccountingError
from app.api.middleware import TEMPLATE
from app.api.problems import EXPECTED_ERRORS, problem_from_exception
from app.api.route import IDEMPOTENCY_KEY, build_context
from app.api.routers.steps import authorize_steps
from app.api.schemas.steps import AuthorizeSteps
from app.api.strict_json import MAX_BODY_BYTES, strict_loads
from app.ledger.errors import LedgerError
from app.service.auth.authentication import Principal
from app.service.auth.credential_cache import Authenticator
from app.service.auth.rate_limit import RequestLimits
from app.service.metrics import TRACES
from app.service.placements import Placements

_TEMPLATE: Final = "/v1/runs/{run_id}/steps"
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
            reply = await authorize_steps(run_id, body, build_context(placement, caller, scope), placement.charges, key)
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
            return path[1], caller, IDEMPOTENCY_KEY.validate_python(None if key is None else key.decode("latin-1"))
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
