"""Exchange of workloads' tokens for keys, without a key (RFC 8693)."""

import json
from http import HTTPStatus
from urllib.parse import parse_qsl

from fastapi import Request, Response
from starlette.concurrency import run_in_threadpool
from starlette.types import Message

from app.api.problems import responses
from app.api.route import AuthenticatedRoute, LedgerRouter, address_of, operation_id, rates_of, store_of
from app.api.schemas.api_keys import ApiKey
from app.api.schemas.tokens import ExchangedToken, ExchangeToken
from app.api.strict_json import StrictJsonRequest
from app.ledger.errors import InvalidInputError, NotFoundError
from app.logging_config import request_id
from app.service.auth.credential_cache import Authenticator
from app.service.auth.rate_limit import UNAUTHENTICATED
from app.service.keys.api_keys import IssuedKey
from app.service.keys.workload_keys import exchange_token as exchange

FORM = "application/x-www-form-urlencoded"

MAX_FIELDS = 10


class TokenRoute(AuthenticatedRoute):
    """Route of callers who have a token of somebody else; it also takes a form, as RFC 8693 describes."""

    async def admit(self, request: Request) -> None:
        """Let everybody in: the body has the credential."""

    async def readmit(self, request: Request) -> None:
        """Let everybody in, as `admit`."""

    async def strict_request(self, request: Request) -> StrictJsonRequest:
        """Read the request, a form as the JSON object of its fields."""
        strict = await super().strict_request(request)
        if request.headers.get("content-type", "").partition(";")[0].strip().lower() != FORM:
            return strict
        return _as_json(request, await strict.body())


def _as_json(request: Request, form: bytes) -> StrictJsonRequest:
    try:
        fields = parse_qsl(form.decode("ascii"), keep_blank_values=True, strict_parsing=True, max_num_fields=MAX_FIELDS)
    except ValueError:
        raise InvalidInputError("The body is no form with a few fields.") from None
    if len(dict(fields)) < len(fields):
        raise InvalidInputError("A field of the form is given twice; send it once.")
    body = json.dumps(dict(fields)).encode()
    headers = [(name, value) for name, value in request.scope["headers"] if name != b"content-type"]

    async def receive() -> Message:
        return {"type": "http.request", "body": body, "more_body": False}

    return StrictJsonRequest({**request.scope, "headers": [*headers, (b"content-type", b"application/json")]}, receive)


routes = LedgerRouter(prefix="/v1", tags=["api-keys"], route_class=TokenRoute, generate_unique_id_function=operation_id)

_PROBLEMS = (
    *("unauthenticated", "permission_denied", "not_found", "invalid_request", "request_too_large"),
    *("unsupported_media_type", "rate_limited", "ledger_unavailable"),
)


@routes.post(
    "/token",
    summary="Exchange a workload's token for an API key",
    response_model=ExchangedToken,
    responses=responses(*_PROBLEMS),
    openapi_extra={
        "security": [],
        "requestBody": {"content": {FORM: {"schema": {"$ref": "#/components/schemas/ExchangeToken"}}}},
    },
)
async def exchange_token(body: ExchangeToken, request: Request) -> Response:
    """Exchange the token of a workload, such as a Kubernetes service account or a CI job, for a key.

    The service's operator configures the issuers of such tokens, and the rules that say which claims get which key. The
    body is JSON, or a form as in RFC 8693.
    """
    keys: Authenticator = request.app.state.keys
    workloads, rates, name = keys.workloads, rates_of(request), request_id.get()
    if workloads is None:
        raise NotFoundError("This service exchanges no tokens. Use an API key.")
    with rates.anonymous.refund_unless(UNAUTHENTICATED, address_of(request)):
        identity = await run_in_threadpool(workloads.authenticate, body.subject_token, name)
        rates.exchanges.take(identity.actor)
        db = store_of(request).database
        issued = await run_in_threadpool(exchange, workloads, db, identity, body.run_id, name)
    return _response(issued)


def _response(issued: IssuedKey) -> Response:
    record = issued.record
    assert record.expires_at is not None, "it ends with the token"
    lasting = int((record.expires_at - record.created_at).total_seconds())
    content = ExchangedToken(access_token=issued.key, expires_in=lasting, key=ApiKey.of(record))
    return Response(content.model_dump_json(), HTTPStatus.OK, media_type="application/json")
