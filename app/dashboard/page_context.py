"""Common parts of pages: authentication, rendering, partial updates, errors and GET forms."""

import hashlib
import json
from collections.abc import Iterable, Mapping
from functools import cache, cached_property
from http import HTTPStatus
from typing import TYPE_CHECKING, Annotated, Final
from urllib.parse import quote, urlsplit

from fastapi import APIRouter, Depends, FastAPI, Request, Response
from fastapi.responses import HTMLResponse, RedirectResponse
from fastapi.routing import APIRoute
from starlette.exceptions import HTTPException

from app.api.problems import EXPECTED_ERRORS, problem_from_exception
from app.api.route import Handler, authenticate_request, context_of, reject_nul
from app.api.session_cookies import RENEWED_COOKIE, cookie_of
from app.api.validation_errors import truncate_echo
from app.dashboard.assets import asset_url
from app.dashboard.formatting import FILTERS, RULES
from app.dashboard.navigation import NAV_ITEMS
from app.ledger.errors import AuthenticationError, NotFoundError
from app.ledger.permissions import PERMISSIONS, Permission
from app.logging_config import request_id
from app.service.actors import ActorLabel, label_of, read_actors
from app.service.auth import sessions
from app.service.auth.oidc.authorization_code import OidcClient
from app.service.auth.request_context import RequestContext
from app.service.governance.proposals import count_decidable
from app.service.queries.overview import list_shown_paths
from app.version import VERSION

if TYPE_CHECKING:
    from jinja2 import Environment

API: Final = "/v1"
"""Path prefix of the API, where errors are always JSON."""

PART_HEADER: Final = "X-Part"
"""Request header of the script that asks for the changing part of a page only."""

POLICY: Final = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; connect-src 'self'; "
    "form-action 'self'; base-uri 'none'; frame-ancestors 'none'"
)
"""Content-Security-Policy of pages: nothing inline, nothing from other hosts."""

MOST_OPTIONS: Final = 300
"""Accounts offered by a select field; with more, users type a path."""


@cache
def templates() -> "Environment":
    """Build the environment of the templates."""
    from jinja2 import Environment, PackageLoader, StrictUndefined  # noqa: PLC0415 - 0.02 s, with the first page

    environment = Environment(
        loader=PackageLoader("app.dashboard"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters.update(FILTERS)
    environment.globals.update(asset=asset_url, version=VERSION, Permission=Permission, nav_items=NAV_ITEMS)
    environment.globals.update(scheduling_rules=RULES)
    environment.globals.update(page=None, part=False)  # of pages without a PageContext, and of errors
    return environment


class PageContext:
    """A page request of a signed-in principal.

    Args:
        path: path and query of the page; `section` is the first segment.
        query: the query parameters.
        state: of the application.
        part: whether a script asks for the changing part only.
        tag: entity tag; empty: not computed yet.
    """

    def __init__(self, request: Request) -> None:
        self.context: RequestContext = context_of(request)
        self.path = _path_of(request)
        self.section = "/" + request.url.path.split("/")[1]
        self.query = dict(request.query_params)
        self.state = request.app.state
        self.part = PART_HEADER in request.headers
        self.tag = ""
        self._request = request
        self._actors: Mapping[str, ActorLabel] = {}

    @property
    def csrf(self) -> str:
        """CSRF token of the session."""
        return sessions.csrf_token(cookie_of(self._request) or "")

    @property
    def origin(self) -> str:
        """Origin under which programs reach the service: as configured, or that of the request."""
        url = self._request.url
        return self.state.public_url or f"{url.scheme}://{url.netloc}"

    @property
    def minute(self) -> str:
        """The current minute, part of the entity tag of pages that depend on the time."""
        return f"{self.context.now:%Y-%m-%dT%H:%M}"

    def repeated(self, name: str) -> list[str]:
        """List the values of a query parameter that may be repeated, without empty ones."""
        given = (text.strip() for text in self._request.query_params.getlist(name))
        return list(dict.fromkeys(text for text in given if text))

    @cached_property
    def decidable(self) -> int:
        """Number of open proposals that wait for this person."""
        return count_decidable(self.context)

    def has_permission(self, needed: Permission) -> bool:
        """Check whether the principal's role has a permission."""
        return needed in PERMISSIONS[self.context.principal.role]

    def check_etag(self, *facts: object) -> None:
        """Compute the entity tag from the principal, the version and what the page depends on.

        Raises:
            PageUnchangedError: a script has this content already.
        """
        caller = self.context.principal
        known = [VERSION, caller.actor, caller.role, caller.scope, self.path, *facts]
        self.tag = f'"{hashlib.sha256(repr(known).encode()).hexdigest()[:32]}"'
        if self.part and self._request.headers.get("if-none-match") == self.tag:
            raise PageUnchangedError(self.tag)

    def account_paths(self) -> list[str]:
        """List paths of visible accounts in order, those at the top first, for a select field."""
        return list_shown_paths(self.context, self.state.account_statuses, MOST_OPTIONS)

    def actor(self, actor_id: str) -> ActorLabel:
        """Get the label of an actor, with its name and role if they were given to `render`."""
        return self._actors.get(actor_id) or label_of(actor_id)

    def named(self, text: str) -> str:
        """Replace the ids of the page's actors in a text by their names and roles."""
        for actor_id, label in self._actors.items():
            if actor_id in text:
                role = f" ({label.role.replace('_', ' ')})" if label.role else ""
                text = text.replace(actor_id, f"{label.name}{role}")
        return text

    def read_actors(self, actor_ids: Iterable[str | None]) -> None:
        """Read the labels of all actors that the page shows, at once."""
        header = () if self.part else (self.context.principal.actor,)
        self._actors = read_actors(self.context, {*header, *(each for each in actor_ids if each)})

    def render(self, template: str, *, actors: Iterable[str | None] = (), **facts: object) -> Response:
        """Render a page with the variables `facts`, or its changing part for a script.

        Names of `actors` are read unless that was done. Without a tag so far, the entity tag is computed from the
        content.
        """
        if not self._actors:
            self.read_actors(actors)
        content = templates().get_template(template).render(facts, page=self, part=self.part)
        if not self.part:
            return html(content)
        if not self.tag:
            self.check_etag(content)
        return html(content, headers=_validators(self.tag))


class PageUnchangedError(Exception):
    """A script has the content already; the argument is its entity tag."""


class PublicPageRoute(APIRoute):
    """Route that shows errors as pages."""

    def get_route_handler(self) -> Handler:
        """Wrap FastAPI's handler."""
        handle = super().get_route_handler()

        async def page(request: Request) -> Response:
            try:
                return await handle(request)
            except EXPECTED_ERRORS as error:
                return await error_page(request, error)

        return page


class PageRoute(PublicPageRoute):
    """Route that also authenticates by cookie."""

    def get_route_handler(self) -> Handler:
        """Wrap FastAPI's handler."""
        handle = APIRoute.get_route_handler(self)

        async def page(request: Request) -> Response:
            cookie = cookie_of(request)
            if cookie is None:
                return _redirect_to_login(request)
            try:
                request.state.principal = await authenticate_request(request, sessions.SessionCookie(cookie))
                reject_nul(request)
                return await handle(request)
            except PageUnchangedError as unchanged:
                return Response(status_code=HTTPStatus.NOT_MODIFIED, headers=_validators(str(unchanged)))
            except AuthenticationError:
                return _redirect_to_login(request)
            except EXPECTED_ERRORS as error:
                return await error_page(request, error)

        return page


def html(content: str, status: int = 200, headers: dict[str, str] | None = None) -> Response:
    """Build an HTML response with the security policy of pages."""
    always = {"Content-Security-Policy": POLICY, "Vary": f"Cookie, {PART_HEADER}"}
    return HTMLResponse(content, status, always | (headers or {}))


async def error_page(request: Request, error: Exception) -> Response:
    """Show a problem of the API as a page; `error` is one of EXPECTED_ERRORS."""
    reply = problem_from_exception(request, error)
    content = (
        templates()
        .get_template("error.html")
        .render(
            page=PageContext(request) if hasattr(request.state, "principal") else None,
            problem=json.loads(bytes(reply.body)),
            request_id=request_id.get(),
        )
    )
    kept = {name: value for name, value in reply.headers.items() if name == "retry-after"}
    return html(content, reply.status_code, kept)


def login_page(request: Request, target: str, fault: str = "") -> Response:
    """Build the sign-in page, which leads to the path `target`; with an error, its status is 401."""
    client: OidcClient | None = request.app.state.oidc_client
    provider = None if client is None else urlsplit(client.issuer).netloc
    content = templates().get_template("login.html").render(next=target, fault=fault, provider=provider)
    return html(content, HTTPStatus.UNAUTHORIZED if fault else HTTPStatus.OK)


def install_error_pages(app: FastAPI) -> None:
    """Show a page for unknown addresses to browsers; API clients get a problem."""

    async def explain(request: Request, error: Exception) -> Response:
        assert isinstance(error, HTTPException)
        path = request.url.path
        mistyped = error.status_code == HTTPStatus.NOT_FOUND and path != API and not path.startswith(f"{API}/")
        if mistyped and "text/html" in request.headers.get("accept", ""):
            return await error_page(request, NotFoundError(f"There is no page at {truncate_echo(path)}."))
        return problem_from_exception(request, error)

    app.add_exception_handler(HTTPException, explain)


def router() -> APIRouter:
    """Create a router of authenticated pages."""
    return APIRouter(route_class=PageRoute, include_in_schema=False)


def _path_of(request: Request) -> str:
    return request.url.path + (f"?{request.url.query}" if request.url.query else "")


def _validators(tag: str) -> dict[str, str]:
    return {"ETag": tag, "Cache-Control": "private, no-cache"}


def _redirect_to_login(request: Request) -> Response:
    if PART_HEADER in request.headers or request.method != "GET":
        return Response(status_code=HTTPStatus.UNAUTHORIZED)
    wanted = _path_of(request)
    if request.app.state.oidc_client is not None and cookie_of(request, RENEWED_COOKIE) is not None:
        target = f"/sign-in/openid?silent=true&next={quote(wanted, safe='')}"
    else:
        target = "/sign-in" if wanted == "/" else f"/sign-in?next={quote(wanted, safe='')}"
    return RedirectResponse(target, HTTPStatus.SEE_OTHER)


async def _page_context(request: Request) -> PageContext:
    return PageContext(request)


PageDep = Annotated[PageContext, Depends(_page_context)]
