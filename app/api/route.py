"""Common processing of requests: authentication, then strict JSON, then the endpoint."""

import email.message
import hashlib
from collections.abc import Callable, Coroutine, Mapping
from enum import Enum
from time import monotonic
from typing import Annotated, Any, Final, TypeVar, get_args, get_origin

from fastapi import APIRouter, Depends, Header, Request, Response, Security
from fastapi.routing import APIRoute
from fastapi.security import HTTPBearer
from pydantic import BaseModel
from starlette.concurrency import run_in_threadpool

from app.api.links import remember_origin
from app.api.problems import cacheable_responses, problem_response, responses
from app.api.session_cookies import credential_of
from app.api.strict_json import StrictJsonRequest
from app.ledger.errors import InvalidInputError, NotFoundError
from app.ledger.names import KEY_LENGTH
from app.logging_config import request_id
from app.service.auth.authentication import Principal
from app.service.auth.credential_cache import BODY_SECONDS, Authenticator
from app.service.auth.rate_limit import UNAUTHENTICATED, RequestLimits, TokenBuckets
from app.service.auth.request_context import RequestContext
from app.service.auth.sessions import Credential
from app.service.charging.commit_queue import CommitQueue
from app.service.ledger_store import LedgerStore
from app.service.signing.signatures import Signer, require_signer

BEARER: Final = "ApiKey"
"""Name of the security scheme in the OpenAPI document."""

Handler = Callable[[Request], Coroutine[Any, Any, Response]]
Endpoint = TypeVar("Endpoint", bound=Callable[..., Any])


class AuthenticatedRoute(APIRoute):
    """Route that authenticates the caller before it reads the body, and again after a body that took long."""

    def get_route_handler(self) -> Handler:
        """Wrap FastAPI's handler."""
        handle = super().get_route_handler()
        known: dict[str, bool] = {}
        parts = [self.dependant]
        for part in parts:  # which grows meanwhile
            known |= {field.alias: _is_list(field.field_info.annotation) for field in part.query_params}
            parts += part.dependencies

        async def ask(request: Request) -> Response:
            await self.admit(request)
            admitted_at = monotonic()
            _check_once(request, "content-type", "idempotency-key")
            reject_nul(request)
            _check_query(request, known)
            remember_origin(request, request.app.state.public_url)
            strict = await self.strict_request(request)
            content = await strict.body()
            if monotonic() - admitted_at > BODY_SECONDS:
                await self.readmit(request)
            if content:
                if not _is_json(strict.headers.get("content-type")):
                    return _not_taken("Send the body as JSON, with Content-Type: application/json.")
                if not _is_plain(request):
                    return _not_taken("Compressed bodies are not taken; send the JSON as it is.")
            return await self.answer(strict, handle)

        return ask

    async def admit(self, request: Request) -> None:
        """Authenticate the caller of a request."""
        _check_once(request, "authorization")
        request.state.principal = await authenticate_request(request, credential_of(request))

    async def readmit(self, request: Request) -> None:
        """Authenticate the caller as of now: the key may have been revoked while the body arrived."""
        request.state.principal = await _known(request, credential_of(request))

    async def strict_request(self, request: Request) -> StrictJsonRequest:
        """Read a request's body as strict JSON."""
        return StrictJsonRequest(request.scope, request.receive)

    async def answer(self, request: StrictJsonRequest, handle: Handler) -> Response:
        """Answer an authenticated request with FastAPI's handler."""
        if await request.body():
            await request.json()
        return await handle(request)


async def authenticate_request(request: Request, credential: Credential) -> Principal:
    """Authenticate a request, and apply the rate limits.

    Raises:
        AuthenticationError: the credential is missing or invalid.
        RateLimitedError: the caller, or anonymous requests from the address, exceed the limit.
        LedgerUnavailableError: the database does not answer.
    """
    caller = await _known(request, credential)
    rates_of(request).keys.take(caller.actor)
    return caller


async def _known(request: Request, credential: Credential) -> Principal:
    keys: Authenticator = request.app.state.keys
    known = keys.find(credential)
    if known is not None:
        return known
    if keys.was_known(credential):  # not limited by anonymous requests from the same address
        return await run_in_threadpool(keys.authenticate, credential, request_id.get())
    with anonymous_limiter(request).refund_unless(UNAUTHENTICATED, address_of(request)):
        return await run_in_threadpool(keys.authenticate, credential, request_id.get())


def rates_of(request: Request) -> RequestLimits:
    """Return the request limits of this process."""
    rates: RequestLimits = request.app.state.rates
    return rates


def anonymous_limiter(request: Request) -> TokenBuckets:
    """Return the rate limits of unauthenticated requests by address."""
    return rates_of(request).anonymous


def address_of(request: Request) -> str:
    """Return the address for rate limits: the client's, or as given by a trusted proxy."""
    return request.client.host if request.client else ""


def _not_taken(why: str) -> Response:
    return problem_response("unsupported_media_type", why)


def _check_once(request: Request, *names: str) -> None:
    """Refuse a repeated header as ambiguous.

    Raises:
        InvalidInputError: a header is repeated.
    """
    for name in names:
        if len(request.headers.getlist(name)) > 1:
            raise InvalidInputError(f"The header {name.title()} is given twice; send it once.")


def _is_list(annotation: object) -> bool:
    return any(get_origin(part) is list for part in (annotation, *get_args(annotation)))


def _check_query(request: Request, known: Mapping[str, bool]) -> None:
    """Refuse unknown and repeated parameters: `?dryrun=true` must not charge.

    `known` says of each parameter whether it may be repeated.

    Raises:
        InvalidInputError: a parameter is unknown or repeated.
    """
    if not request.query_params:
        return
    given = [name for name, _ in request.query_params.multi_items()]
    for name in given:
        if name not in known or (given.count(name) > 1 and not known[name]):
            taken = ", ".join(sorted(known)) or "none"
            raise InvalidInputError(
                f"The query parameter {name[:100]!a} is unknown here, or given twice; known: {taken}."
            )


def reject_nul(request: Request) -> None:
    """Refuse URLs with NUL, which PostgreSQL does not store.

    Raises:
        NotFoundError: the path contains NUL.
        InvalidInputError: a query parameter contains NUL.
    """
    if "\0" in request.scope["path"]:
        raise NotFoundError("The path holds the character NUL, which no id does.")
    if any("\0" in value for value in request.query_params.values()):
        raise InvalidInputError("A query parameter holds the character NUL, which no text of a ledger does.")


def operation_id(route: APIRoute) -> str:
    """Name an operation after its function, in camel case."""
    first, *others = route.name.split("_")
    return first + "".join(word.capitalize() for word in others)


class LedgerRouter(APIRouter):
    """Router of authenticated routes with documented problems; `tag` is needed if the router has none."""

    def read(
        self, path: str, summary: str, schema: type[BaseModel], *problems: str, tag: str | None = None
    ) -> Callable[[Endpoint], Endpoint]:
        """Add a GET route with an entity tag."""
        described = cacheable_responses(*problems)
        return self.get(path, summary=summary, tags=tags_of(tag), response_model=schema, responses=described)

    def create(
        self, path: str, summary: str, schema: type[BaseModel], *problems: str, tag: str | None = None
    ) -> Callable[[Endpoint], Endpoint]:
        """Add a POST route that answers 201."""
        described = responses(*problems)
        return self.post(
            path, summary=summary, tags=tags_of(tag), status_code=201, response_model=schema, responses=described
        )

    def change(
        self, path: str, summary: str, *problems: str, tag: str | None = None, method: str = "POST"
    ) -> Callable[[Endpoint], Endpoint]:
        """Add a route that changes something; its endpoint's annotation is the response."""
        described = responses(*problems)
        return self.api_route(path, methods=[method], summary=summary, tags=tags_of(tag), responses=described)


def tags_of(tag: str | None) -> list[str | Enum] | None:
    """Make the tags of a route; None: those of its router."""
    return None if tag is None else [tag]


def router(tag: str | None = None, route: type[AuthenticatedRoute] = AuthenticatedRoute) -> LedgerRouter:
    """Create a router of authenticated routes under /v1; `tag` is that of all its operations."""
    described = (
        "A key from `epsilon-ledger keys create`; where the service knows an OpenID Connect provider, also one of its "
        "tokens."
    )
    bearer = HTTPBearer(scheme_name=BEARER, description=described, auto_error=False)
    return LedgerRouter(
        prefix="/v1",
        tags=[tag] if tag else None,
        route_class=route,
        dependencies=[Security(bearer)],
        generate_unique_id_function=operation_id,
    )


def store_of(request: Request) -> LedgerStore:
    """Return the ledger of this service."""
    store: LedgerStore = request.app.state.store
    return store


def context_of(request: Request) -> RequestContext:
    """Build the context of a use case for the authenticated caller."""
    return store_of(request).context(request.state.principal, request_id.get())


# Coroutines although they await nothing: FastAPI runs plain functions in threads, which takes 100 times as long.
async def _call(request: Request) -> RequestContext:
    return context_of(request)


async def _charges(request: Request) -> CommitQueue:
    return store_of(request).charges


async def _signer(request: Request) -> Signer:
    return require_signer(request.app.state.signer)


SignerDep = Annotated[Signer, Depends(_signer)]
ContextDep = Annotated[RequestContext, Depends(_call)]
CommitQueueDep = Annotated[CommitQueue, Depends(_charges)]
IdempotencyKey = Annotated[
    str | None,
    Header(
        alias="Idempotency-Key",
        min_length=1,
        max_length=KEY_LENGTH,
        pattern=r"^[\x21-\x7e]+$",
        description="Makes the request safe to repeat: the same key and body get the first response.",
    ),
]


IfMatch = Annotated[
    str | None, Header(alias="If-Match", max_length=500, description="Required: the ETag that was read.")
]


def etag_response(request: Request, body: BaseModel, tag: str | None = None) -> Response:
    """Build a response with an entity tag, by default of its content, or 304."""
    content = body.model_dump_json().encode()
    tag = tag or f'"{hashlib.sha256(content).hexdigest()[:32]}"'
    headers = {"ETag": tag, "Cache-Control": "private, no-cache"}
    return not_modified(request, tag) or Response(content, 200, headers, "application/json")


def not_modified(request: Request, tag: str) -> Response | None:
    """Return 304 if the client has this entity tag, or None."""
    known = {item.strip().removeprefix("W/") for item in request.headers.get("if-none-match", "").split(",")}
    if tag not in known and "*" not in known:
        return None
    return Response(status_code=304, headers={"ETag": tag, "Cache-Control": "private, no-cache"})


def _is_json(content_type: str | None) -> bool:
    if content_type == "application/json":
        return True
    message = email.message.Message()
    message["content-type"] = content_type or ""
    subtype = message.get_content_subtype()
    return message.get_content_maintype() == "application" and (subtype == "json" or subtype.endswith("+json"))


def _is_plain(request: Request) -> bool:
    return all(encoding.strip().lower() in {"", "identity"} for encoding in request.headers.getlist("content-encoding"))
