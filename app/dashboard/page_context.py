"""Common parts of pages: authentication, rendering, partial updates, errors."""

import hashlib
import json
from collections.abc import Callable, Coroutine
from http import HTTPStatus
from typing import Annotated, Any, Final
from urllib.parse import quote, urlsplit

from fastapi import APIRouter, Depends, FastAPI, Request, Response
from fastapi.responses import HTMLResponse, RedirectResponse
from fastapi.routing import APIRoute
from jinja2 import Environment, PackageLoader, StrictUndefined
from starlette.exceptions import HTTPException

from app.api.middleware import request_id_of
from app.api.problems import EXPECTED_ERRORS, problem_from_exception
from app.api.route import authenticate_request, build_context, placement_of, reject_nul
from app.api.session_cookies import RENEWED_COOKIE, cookie_of
from app.api.validation_errors import truncate_echo
from app.dashboard.assets import asset_url
from app.dashboard.formatting import FILTERS
from app.ledger.errors import AuthenticationError, NotFoundError
from app.ledger.permissions import PERMISSIONS, Permission
from app.service.auth import sessions
from app.service.auth.oidc.authorization_code import OidcClient
from app.service.auth.request_context import RequestContext
from app.version import VERSION

API: Final = "/v1"
"""Path prefix of the API, where errors are always JSON."""

PART_HEADER: Final = "X-Part"
"""Request header of the script that asks for the changing part of a page only."""

POLICY: Final = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; connect-src 'self'; "
    "form-action 'self'; base-uri 'none'; frame-ancestors 'none'"
)
"""Content-Security-Policy of pages: nothing inline, nothing from other hosts."""

NAV_ITEMS: Final = (
    ("Overview", "/", Permission.LEDGER_READ),
    ("Planner", "/planner", Permission.LEDGER_READ),
    ("Decisions", "/decisions", Permission.LEDGER_READ),
    ("Audit", "/audit", Permission.AUDIT_READ),
    ("Approvals", "/approvals", Permission.LEDGER_READ),
    ("Policies", "/policies", Permission.LEDGER_READ),
    ("Keys", "/keys", Permission.KEY_MANAGE),
    ("Webhooks", "/webhooks", Permission.WEBHOOK_MANAGE),
)
"""Name, path and needed permission of each page in the navigation."""

MOST_OPTIONS: Final = 300
"""Accounts offered by a select field; with more, users type a path."""

Handler = Callable[[Request], Coroutine[Any, Any, Response]]

TEMPLATES: Final = Environment(
    loader=PackageLoader("app.dashboard"),
    autoescape=True,
    undefined=StrictUndefined,
    trim_blocks=True,
    lstrip_blocks=True,
)
TEMPLATES.filters.update(FILTERS)
TEMPLATES.globals.update(asset=asset_url, version=VERSION, Permission=Permission)

_PUBLIC: Final = {"page": None, "csrf": "", "tag": "", "part": False}
"""Variables of a page without a signed-in principal."""


class PageContext:
    """A page request of a signed-in principal."""

    def __init__(self, request: Request) -> None:
        self._request = request
        self.context: RequestContext = build_context(placement_of(request), request.state.principal, request.scope)
        self._part = PART_HEADER in request.headers

    @property
    def nav_items(self) -> list[tuple[str, str, Permission]]:
        """Navigation items that the role may open."""
        return [item for item in NAV_ITEMS if self.has_permission(item[2])]

    @property
    def nav_path(self) -> str:
        """First segment of the page's path."""
        return "/" + self._request.url.path.split("/")[1]

    @property
    def display_name(self) -> str:
        """Abbreviated id of the principal."""
        actor = self.context.principal.actor
        return actor if actor.startswith("oidc:") else f"{actor[:4]}…{actor[-6:]}"

    @property
    def minute(self) -> str:
        """The current minute, part of the entity tag of pages that depend on the time."""
        return f"{self.context.now:%Y-%m-%dT%H:%M}"

    @property
    def path(self) -> str:
        """Path and query of the page."""
        return _path_of(self._request)

    def has_permission(self, needed: Permission) -> bool:
        """Check whether the principal's role has a permission."""
        return needed in PERMISSIONS[self.context.principal.role]

    def etag(self, *facts: object) -> str:
        """Compute an entity tag from the principal, the version and what the page depends on."""
        caller = self.context.principal
        known = [VERSION, caller.actor, caller.role, caller.scope, self.path, *facts]
        return f'"{hashlib.sha256(repr(known).encode()).hexdigest()[:32]}"'

    def check_etag(self, *facts: object) -> str:
        """Compute an entity tag; raise PageUnchangedError if a script has this content already."""
        tag = self.etag(*facts)
        if self._part and self._request.headers.get("if-none-match") == tag:
            raise PageUnchangedError(tag)
        return tag

    def account_paths(self) -> list[str]:
        """List paths of visible accounts in order, those at the top first, for a select field."""
        with self.context.db.read(self.context.organisation_id) as tx:
            found = self._request.app.state.account_statuses.read(tx, self.context)
        return sorted(each.path for each in found[:MOST_OPTIONS])

    def render(self, template: str, *, tag: str | None = None, status_code: int = 200, **facts: object) -> Response:
        """Render a page with the variables `facts`, or its changing part for a script.

        Without a `tag`, the entity tag is computed from the content.
        """
        cookie = cookie_of(self._request)
        context = {"page": self, "csrf": sessions.csrf_token(cookie) if cookie else "", "tag": tag or ""}
        content = TEMPLATES.get_template(template).render(facts | context, part=self._part)
        if not self._part:
            return html(content, status_code)
        return html(content, status_code, _validators(tag or self.check_etag(content)))


class PageUnchangedError(Exception):
    """A script has the content with this entity tag already."""

    def __init__(self, tag: str) -> None:
        super().__init__(tag)
        self.tag = tag


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
                request.state.principal = await authenticate_request(request, f"{sessions.SCHEME} {cookie}")
                reject_nul(request)
                return await handle(request)
            except PageUnchangedError as unchanged:
                return Response(status_code=HTTPStatus.NOT_MODIFIED, headers=_validators(unchanged.tag))
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
    reply = await problem_from_exception(request, error)
    told = json.loads(bytes(reply.body))
    signed_in = hasattr(request.state, "principal")
    content = TEMPLATES.get_template("error.html").render(
        _PUBLIC,
        page=PageContext(request) if signed_in else None,
        csrf=sessions.csrf_token(cookie_of(request) or "") if signed_in else "",
        problem=told,
        request_id=request_id_of(request.scope),
    )
    kept = {name: value for name, value in reply.headers.items() if name == "retry-after"}
    return html(content, reply.status_code, kept)


def login_page(request: Request, target: str, fault: str = "") -> Response:
    """Build the sign-in page, which leads to the path `target`; with an error, its status is 401."""
    client: OidcClient | None = request.app.state.oidc_client
    provider = None if client is None else urlsplit(client.issuer).netloc
    content = TEMPLATES.get_template("login.html").render(_PUBLIC, next=target, fault=fault, provider=provider)
    return html(content, HTTPStatus.UNAUTHORIZED if fault else HTTPStatus.OK)


def install_error_pages(app: FastAPI) -> None:
    """Show a page for unknown addresses to browsers; API clients get a problem."""

    async def explain(request: Request, error: Exception) -> Response:
        assert isinstance(error, HTTPException)
        path = request.url.path
        mistyped = error.status_code == HTTPStatus.NOT_FOUND and path != API and not path.startswith(f"{API}/")
        if mistyped and "text/html" in request.headers.get("accept", ""):
            return await error_page(request, NotFoundError(f"There is no page at {truncate_echo(path)}."))
        return await problem_from_exception(request, error)

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
