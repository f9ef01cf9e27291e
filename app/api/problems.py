"""Errors as problem+json (RFC 9457), and the table from codes to statuses."""

import json
import logging
from collections.abc import Callable, Mapping
from http import HTTPStatus
from typing import Any, Final

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import Response
from fastapi.routing import APIRoute
from sqlalchemy.exc import InterfaceError, OperationalError, SQLAlchemyError, TimeoutError  # noqa: A004 - of its pool
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect

from app.accounting.errors import AccountingError
from app.api.schemas.common import EXAMPLE_REQUEST_ID
from app.api.validation_errors import refusal_of, truncate_echo
from app.ledger.errors import LedgerError
from app.logging_config import request_id
from app.persistence.database import error_summary
from app.service import metrics

PROBLEM_JSON: Final = "application/problem+json"

TYPES: Final = "urn:problem-type:epsilon-ledger:"
"""Prefix of a problem's type, before its code; installations share no URL."""

STATUSES: Final[Mapping[str, tuple[int, str]]] = {
    "bad_request": (400, "Bad Request"),
    "unauthenticated": (401, "Unauthorized"),
    "account_closed": (403, "Account closed"),
    "budget_exceeded": (403, "Budget exceeded"),
    "csrf_failed": (403, "CSRF check failed"),
    "permission_denied": (403, "Permission denied"),
    "reservation_required": (403, "Reservation required"),
    "policy_violation": (403, "Policy violation"),
    "not_found": (404, "Not Found"),
    "method_not_allowed": (405, "Method Not Allowed"),
    "request_timeout": (408, "Request Timeout"),
    "proposal_closed": (409, "Proposal closed"),
    "account_archived": (409, "Account archived"),
    "account_state_conflict": (409, "Account state conflict"),
    "account_quarantined": (409, "Account quarantined"),
    "name_taken": (409, "Name taken"),
    "reservations_waiting": (409, "Reservations waiting"),
    "reservation_state_conflict": (409, "Reservation state conflict"),
    "reservation_closed": (409, "Reservation closed"),
    "signing_not_configured": (409, "Signing not configured"),
    "run_state_conflict": (409, "Run state conflict"),
    "sequence_conflict": (409, "Step sequence conflict"),
    "sequence_gap": (409, "Step sequence gap"),
    "receiver_state_conflict": (409, "Receiver state conflict"),
    "attempt_superseded": (412, "Attempt superseded"),
    "precondition_failed": (412, "Precondition Failed"),
    "request_too_large": (413, "Content Too Large"),
    "unsupported_media_type": (415, "Unsupported Media Type"),
    "delta_too_large": (422, "Delta too large"),
    "idempotency_key_reused": (422, "Idempotency key reused"),
    "invalid_event": (422, "Invalid event"),
    "invalid_request": (422, "Invalid request"),
    "limit_too_small": (422, "Limit too small"),
    "neighboring_relation_mismatch": (422, "Neighboring relation mismatch"),
    "computation_limit_exceeded": (422, "Computation limit exceeded"),
    "privacy_unit_mismatch": (422, "Privacy unit mismatch"),
    "unsupported_event": (422, "Unsupported event"),
    "precondition_required": (428, "Precondition Required"),
    "rate_limited": (429, "Too Many Requests"),
    "headers_too_large": (431, "Request Header Fields Too Large"),
    "internal_error": (500, "Internal Server Error"),
    "ledger_unavailable": (503, "Ledger unavailable"),
    "too_many_connections": (503, "Too many connections"),
    "unsupported_order_grid": (503, "Unsupported order grid"),
}

AUTH_ERRORS: Final = ("unauthenticated", "rate_limited", "ledger_unavailable")
"""Problems of every authenticated operation."""

LIST_ERRORS: Final = (*AUTH_ERRORS, "permission_denied", "invalid_request")
READ_ERRORS: Final = (*LIST_ERRORS, "not_found")
SENDING: Final = (*AUTH_ERRORS, "csrf_failed", "request_too_large", "unsupported_media_type", "invalid_request")
WRITE_ERRORS: Final = (*SENDING, "permission_denied")
COSTING_ERRORS: Final = ("invalid_event", "computation_limit_exceeded", "unsupported_event")
OPENING: Final = (
    *WRITE_ERRORS,
    *COSTING_ERRORS,
    *("account_archived", "delta_too_large", "idempotency_key_reused", "limit_too_small", "policy_violation"),
)
"""Problems of operations that create an account."""

CHARGING: Final = (
    *("account_quarantined", "budget_exceeded", "account_closed", "not_found", "reservations_waiting"),
    *("neighboring_relation_mismatch", "privacy_unit_mismatch"),
)
"""Further problems of operations that declare what is charged to a budget."""

_BY_STATUS: Final = {
    400: "bad_request",
    401: "unauthenticated",
    403: "permission_denied",
    404: "not_found",
    405: "method_not_allowed",
    413: "request_too_large",
    415: "unsupported_media_type",
    422: "invalid_request",
    429: "rate_limited",
    503: "ledger_unavailable",
}

HEADERS: Final = {
    "ETag": {
        "description": "The version of what is answered, for If-None-Match and If-Match.",
        "schema": {"type": "string"},
    },
    "Idempotent-Replayed": {
        "description": "`true`: the answer is the stored one of an earlier request with this key.",
        "schema": {"const": "true"},
    },
    "Retry-After": {"description": "Seconds to wait before the request is repeated.", "schema": {"type": "integer"}},
    "WWW-Authenticate": {"description": "How to authenticate.", "schema": {"const": "Bearer"}},
}
"""Response headers for the OpenAPI document."""

_PHRASES: Final = {413: "Content Too Large", 422: "Unprocessable Content"}
"""Names of statuses in RFC 9110, by which Python calls these since 3.13."""

_HEADER_OF: Final = {401: "WWW-Authenticate", 429: "Retry-After", 503: "Retry-After"}

metrics.init_problem_counters(STATUSES)

_logger = logging.getLogger(__name__)


def problem_response(
    code: str,
    detail: str,
    members: Mapping[str, object] | None = None,
    headers: Mapping[str, str] | None = None,
) -> Response:
    """Build a problem response; count the problem.

    Args:
        code: a key of STATUSES.
        detail: for display.
        members: further members for programs.
        headers: further headers.
    """
    metrics.count_problem(code)
    status, _ = STATUSES[code]
    sent = dict(headers or {})
    if status == HTTPStatus.UNAUTHORIZED:
        sent["WWW-Authenticate"] = "Bearer"
    if status == HTTPStatus.TOO_MANY_REQUESTS:
        sent["Retry-After"] = str((members or {}).get("retry_after", 1))
    if status == HTTPStatus.SERVICE_UNAVAILABLE:
        sent["Retry-After"] = "1"
    return Response(problem_body(code, detail, members), status, sent, PROBLEM_JSON)


def problem_body(code: str, detail: str, members: Mapping[str, object] | None = None) -> str:
    """Build a problem as JSON, of the same arguments as for `problem_response`."""
    status, title = STATUSES[code]
    content = {
        "type": f"{TYPES}{code}",
        "title": title,
        "status": status,
        "detail": detail,
        "code": code,
        "request_id": request_id.get(),
        **(members or {}),
    }
    return json.dumps(content, allow_nan=False, ensure_ascii=False)


def install(app: FastAPI) -> None:
    """Install the exception handlers."""
    for kind in (*_HANDLERS, Exception):
        app.add_exception_handler(kind, _handle)


def problem_from_exception(request: Request, error: Exception) -> Response:
    """Build the response to an error; one that is not of EXPECTED_ERRORS must be logged, too."""
    handle = next((_HANDLERS[kind] for kind in type(error).__mro__ if kind in _HANDLERS), _unexpected_error)
    return handle(request, error)


async def _handle(request: Request, error: Exception) -> Response:
    # A coroutine although it awaits nothing: Starlette runs plain functions in threads.
    return problem_from_exception(request, error)


def responses(*codes: str) -> dict[int | str, dict[str, Any]]:
    """Build the OpenAPI responses of problem codes: one for each status, an example for each code."""
    described: dict[int | str, dict[str, Any]] = {}
    for code in sorted(codes, key=lambda code: (STATUSES[code][0], code)):
        status, _ = STATUSES[code]
        response = described.setdefault(
            status,
            {
                "description": _PHRASES.get(status, HTTPStatus(status).phrase),
                "content": {PROBLEM_JSON: {"schema": {"$ref": "#/components/schemas/Problem"}, "examples": {}}},
            },
        )
        if name := _HEADER_OF.get(status):
            response["headers"] = {name: {"$ref": f"#/components/headers/{name}"}}
        examples = response["content"][PROBLEM_JSON]["examples"]
        examples[code] = {"$ref": f"#/components/examples/{code}"}
    return described


def problem_example(code: str) -> dict[str, Any]:
    """Build the OpenAPI example of a problem code."""
    status, title = STATUSES[code]
    return {
        "summary": title,
        "value": {
            "type": f"{TYPES}{code}",
            "title": title,
            "status": status,
            "detail": "…",
            "code": code,
            "request_id": EXAMPLE_REQUEST_ID,
        },
    }


def cacheable_responses(*codes: str) -> dict[int | str, dict[str, Any]]:
    """As `responses`, with 304 for an operation with an entity tag."""
    tag = {"ETag": {"$ref": "#/components/headers/ETag"}}
    return {304: {"description": "The caller has it already (If-None-Match)", "headers": tag}} | responses(*codes)


def _ledger_error(request: Request, error: Exception) -> Response:
    del request
    assert isinstance(error, LedgerError)
    return problem_response(error.code, error.detail, error.members)


def _accounting_error(request: Request, error: Exception) -> Response:
    del request
    assert isinstance(error, AccountingError)
    return problem_response(error.code, str(error))


def _validation_error(request: Request, error: Exception) -> Response:
    assert isinstance(error, RequestValidationError)
    return _ledger_error(request, refusal_of(error.errors(), _body_of(request)))


def _body_of(request: Request) -> object:
    """Return the body type of the request's route, or None."""
    field = request.scope["route"].body_field
    return field and field.field_info.annotation


def _http_error(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    code = _BY_STATUS.get(error.status_code, "bad_request")
    detail = f"{request.method} {truncate_echo(request.url.path)}: {error.detail}"
    headers = dict(error.headers or {})
    if error.status_code == HTTPStatus.METHOD_NOT_ALLOWED:
        if methods := _methods(request):
            headers["Allow"] = ", ".join(sorted(methods))
        detail += f"; this path takes {headers['Allow']}"
    return problem_response(code, detail, headers=headers)


def _methods(request: Request) -> set[str]:
    """Return all methods of API routes at the request's path."""
    described = [route for route in request.app.routes if isinstance(route, APIRoute) and route.include_in_schema]
    paths = [route.path_format for route in described if route.path_regex.match(request.url.path)]
    methods = {method for route in described if route.path_format in paths[:1] for method in route.methods or ()}
    return methods | ({"HEAD"} if "GET" in methods else set())


def _database_error(request: Request, error: Exception) -> Response:
    down = isinstance(error, OperationalError | InterfaceError | TimeoutError)
    _logger.error(
        "The database failed during %s %s: %s",
        *(request.method, request.url.path, error_summary(error)),
        exc_info=None if down else error,  # no tracebacks while the database is down
    )
    detail = "The database did not answer as it should; nothing was admitted. Repeat the request."
    return problem_response("ledger_unavailable", detail)


def _left(request: Request, error: Exception) -> Response:
    """Ignore that the client disconnected before the request was complete."""
    del request, error
    return problem_response("bad_request", "The connection was closed before the request was complete.")


def _unexpected_error(request: Request, error: Exception) -> Response:
    del request, error  # the server logs it with its traceback
    return problem_response("internal_error", "An unexpected error; the server's log has the details.")


_HANDLERS: Final[Mapping[type[Exception], Callable[[Request, Exception], Response]]] = {
    LedgerError: _ledger_error,
    AccountingError: _accounting_error,
    RequestValidationError: _validation_error,
    HTTPException: _http_error,
    SQLAlchemyError: _database_error,
    ClientDisconnect: _left,
}
EXPECTED_ERRORS: Final = tuple(_HANDLERS)
"""Errors with a handler; any other is a defect, which is logged and answered with 500."""
