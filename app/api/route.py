"""The way of every request: who asks, then strict JSON, then the endpoint."""

import email.message
import hashlib
import json
from collections.abc import Callable, Coroutine
from datetime import UTC, datetime
from typing import Annotated, Any

from fastapi import APIRouter, Depends, Header, Request, Response, Security
from fastapi.routing import APIRoute
from fastapi.security import HTTPBearer
from pydantic import BaseModel
from starlette.concurrency import run_in_threadpool

from app.api.problems import problem
from app.api.strict import MAX_BODY_BYTES, strict_loads
from app.ledger.errors import InvalidInputError, RequestTooLargeError
from app.persistence.engine import Database
from app.persistence.tables import KEY_LENGTH
from app.service.access import authenticate
from app.service.call import Call
from app.service.idempotency import Answer, Identity


class StrictRequest(Request):
    """A request whose body is bounded, and whose JSON is parsed strictly, before the endpoint asks for it."""

    async def body(self) -> bytes:
        """The body.

        Raises:
            RequestTooLargeError: it is over 1 MiB; the rest of it is not read.
        """
        if not hasattr(self, "_content"):
            content = bytearray()
            async for chunk in self.stream():
                content += chunk
                if len(content) > MAX_BODY_BYTES:
                    raise RequestTooLargeError(f"A request's body holds at most {MAX_BODY_BYTES} bytes.")
            self._content = bytes(content)
        return self._content

    async def json(self) -> Any:  # noqa: ANN401 - JSON is anything
        """The body, parsed strictly.

        Raises:
            InvalidInputError: the body is not strict JSON.
        """
        if not hasattr(self, "_strict"):
            self._strict = strict_loads(await self.body())
        return self._strict


class LedgerRoute(APIRoute):
    """A route that finds out who asks before it reads what is asked."""

    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        """Wrap FastAPI's handler."""
        handle = super().get_route_handler()
        known = {field.alias for field in self.dependant.query_params}

        async def ask(request: Request) -> Response:
            database: Database = request.app.state.database
            authorization = request.headers.get("authorization")
            request.state.caller = await run_in_threadpool(authenticate, database, authorization)
            _check_query(request, known)
            strict = StrictRequest(request.scope, request.receive)
            if await strict.body():
                if not _is_json(request.headers.get("content-type")):
                    return problem(
                        "unsupported_media_type",
                        "Send the body as JSON, with Content-Type: application/json.",
                    )
                await strict.json()
            return await handle(strict)

        return ask


def _check_query(request: Request, known: set[str]) -> None:
    """Refuse a misspelled or doubled parameter: `?dryrun=true` must not charge.

    Raises:
        InvalidInputError: a parameter is unknown, or stands twice.
    """
    given = [name for name, _ in request.query_params.multi_items()]
    for name in given:
        if name not in known or given.count(name) > 1:
            taken = ", ".join(sorted(known)) or "none"
            raise InvalidInputError(
                f"The query parameter {name[:100]!a} is unknown here, or stands twice; known: {taken}."
            )


def router() -> APIRouter:
    """A router under /v1 all of whose routes need an API key."""
    bearer = HTTPBearer(scheme_name="ApiKey", description="A key from `epsilon-ledger keys create`.", auto_error=False)
    return APIRouter(prefix="/v1", route_class=LedgerRoute, dependencies=[Security(bearer)])


def _database(request: Request) -> Database:
    database: Database = request.app.state.database
    return database


def _call(request: Request) -> Call:
    return Call(_database(request), request.state.caller, datetime.now(UTC))


Db = Annotated[Database, Depends(_database)]
Asked = Annotated[Call, Depends(_call)]
IdempotencyKey = Annotated[
    str | None,
    Header(
        alias="Idempotency-Key",
        min_length=1,
        max_length=KEY_LENGTH,
        pattern=r"^[\x21-\x7e]+$",
        description="Makes the request safe to repeat: the same key and body get the first answer.",
    ),
]


def identity(request: Request, body: BaseModel, key: str | None) -> Identity:
    """What makes a creating request the same as an earlier one."""
    content = [request.method, request.url.path, body.model_dump(mode="json")]
    return Identity(key, hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest())


def created(answer: Answer) -> Response:
    """The reply to a request that created something, now or the first time."""
    headers = {"Idempotent-Replayed": "true"} if answer.replayed else {}
    return Response(answer.body, 201, headers, "application/json")


def tagged(request: Request, body: BaseModel) -> Response:
    """A reply with an entity tag, or 304 if the asker has it already."""
    content = body.model_dump_json().encode()
    tag = f'"{hashlib.sha256(content).hexdigest()[:32]}"'
    known = {item.strip().removeprefix("W/") for item in request.headers.get("if-none-match", "").split(",")}
    headers = {"ETag": tag, "Cache-Control": "private, no-cache"}
    if tag in known or "*" in known:
        return Response(status_code=304, headers=headers)
    return Response(content, 200, headers, "application/json")


def _is_json(content_type: str | None) -> bool:
    message = email.message.Message()
    message["content-type"] = content_type or ""
    subtype = message.get_content_subtype()
    return message.get_content_maintype() == "application" and (subtype == "json" or subtype.endswith("+json"))
