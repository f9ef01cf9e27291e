"""The way of every page: who is signed in, then what it shows, as a whole or only what has changed."""

import hashlib
import json
from collections.abc import Callable, Coroutine
from http import HTTPStatus
from importlib.metadata import version
from typing import Annotated, Any, Final
from urllib.parse import quote, urlsplit

from fastapi import APIRouter, Depends, FastAPI, Request, Response
from fastapi.responses import HTMLResponse, RedirectResponse
from fastapi.routing import APIRoute
from jinja2 import Environment, PackageLoader, StrictUndefined
from starlette.exceptions import HTTPException

from app.api.problems import EXPECTED_ERRORS, problem_from_exception
from app.api.request_ids import request_id_of
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

API: Final = "/v1"
"""Beneath it programs ask, whatever they say that they take."""

PART_HEADER: Final = "X-Part"
"""With it, a page sends only what may have changed: a script puts it in its place."""

POLICY: Final = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; connect-src 'self'; "
    "form-action 'self'; base-uri 'none'; frame-ancestors 'none'"
)
"""Content-Security-Policy of pages: nothing inline, and nothing from other hosts."""

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
"""Name, address, and what one must be allowed to, for each page that everybody may turn to."""

TEMPLATES: Final = Environment(
    loader=PackageLoader("app.dashboard"),
    autoescape=True,
    undefined=StrictUndefined,
    trim_blocks=True,
    lstrip_blocks=True,
)
TEMPLATES.filters.update(FILTERS)
TEMPLATES.globals.update(asset=asset_url, version=version("epsilon-ledger"), Permission=Permission)


class PageContext:
    """Somebody who is signed in looks at a page.

    Args:
        request: for the page.
    """

    def __init__(self, request: Request) -> None:
        self._request = request
        self.call: RequestContext = build_context(placement_of(request), request.state.principal, request.scope)
        self._part = PART_HEADER in request.headers

    @property
    def nav_items(self) -> list[tuple[str, str, Permission]]:
        """The pages that are for the role of whoever is signed in."""
        return [item for item in NAV_ITEMS if self.has_permission(item[2])]

    @property
    def nav_path(self) -> str:
        """The address of the page without what stands behind its first part."""
        return "/" + self._request.url.path.split("/")[1]

    @property
    def display_name(self) -> str:
        """Who is signed in, short."""
        actor = self.call.principal.actor
        return actor if actor.startswith("oidc:") else f"{actor[:4]}…{actor[-6:]}"

    @property
    def minute(self) -> str:
        """The minute in which the page is looked at: what follows from the time alone is at most so old."""
        return f"{self.call.now:%Y-%m-%dT%H:%M}"

    @property
    def path(self) -> str:
        """The page's address, with its query."""
        query = self._request.url.query
        return self._request.url.path + (f"?{query}" if query else "")

    def has_permission(self, needed: Permission) -> bool:
        """Whether the role of whoever is signed in has a permission."""
        return needed in PERMISSIONS[self.call.principal.role]

    def etag(self, *facts: object) -> str:
        """An entity tag of a page that shows no more than what follows from some facts.

        Args:
            *facts: what the page's content depends on, besides who looks at it and this version of the service.
        """
        caller = self.call.principal
        known = [version("epsilon-ledger"), caller.actor, caller.role, caller.scope, self.path, *facts]
        return f'"{hashlib.sha256(repr(known).encode()).hexdigest()[:32]}"'

    def not_modified(self, tag: str) -> Response | None:
        """The answer to a script that has a page's content already; None: it has not."""
        if self._part and self._request.headers.get("if-none-match") == tag:
            return Response(status_code=304, headers={"ETag": tag, "Cache-Control": "private, no-cache"})
        return None

    def render(self, template: str, *, tag: str | None = None, status_code: int = 200, **facts: object) -> Response:
        """A page, or its changing part for a script that asks for that.

        Args:
            template: its name.
            tag: of the content; None: it is taken from the content itself.
            status_code: of the response.
            **facts: what the template tells.
        """
        cookie = cookie_of(self._request)
        context = {"page": self, "csrf": sessions.csrf_token(cookie) if cookie else "", "tag": tag or ""}
        content = TEMPLATES.get_template(template).render(facts | context, part=self._part)
        if not self._part:
            return html(content, status_code)
        tag = tag or self.etag(content)
        return self.not_modified(tag) or html(content, status_code, {"ETag": tag, "Cache-Control": "private, no-cache"})


class PageRoute(APIRoute):
    """A route that finds out who is signed in, and explains what goes wrong on a page of its own."""

    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        """Wrap FastAPI's handler."""
        handle = super().get_route_handler()

        async def page(request: Request) -> Response:
            cookie = cookie_of(request)
            if cookie is None:
                return _redirect_to_login(request)
            try:
                request.state.principal = await authenticate_request(request, f"{sessions.SCHEME} {cookie}")
                reject_nul(request)
                return await handle(request)
            except AuthenticationError:
                return _redirect_to_login(request)
            except EXPECTED_ERRORS as error:
                return await error_page(request, error)

        return page


def html(content: str, status: int = 200, headers: dict[str, str] | None = None) -> Response:
    """A page, or a part of it, that loads nothing from elsewhere."""
    always = {"Content-Security-Policy": POLICY, "Vary": f"Cookie, {PART_HEADER}"}
    return HTMLResponse(content, status, always | (headers or {}))


async def error_page(request: Request, error: Exception) -> Response:
    """What went wrong, for a person: the problem that the API would tell.

    Args:
        request: in which it was raised.
        error: one of FORESEEN.
    """
    reply = await problem_from_exception(request, error)
    told = json.loads(bytes(reply.body))
    signed_in = hasattr(request.state, "principal")
    content = TEMPLATES.get_template("error.html").render(
        page=PageContext(request) if signed_in else None,
        csrf=sessions.csrf_token(cookie_of(request) or "") if signed_in else "",
        tag="",
        part=False,
        problem=told,
        request_id=request_id_of(request.scope),
    )
    kept = {name: value for name, value in reply.headers.items() if name == "retry-after"}
    return html(content, reply.status_code, kept)


def login_page(request: Request, target: str, fault: str = "", status: int | None = None) -> Response:
    """The page where people sign in.

    Args:
        request: that is answered.
        target: the page of this service to which it leads.
        fault: why the try before has failed; empty: there was none.
        status: of the answer; None: as it follows from the fault.
    """
    way: OidcClient | None = request.app.state.oidc_client
    content = TEMPLATES.get_template("login.html").render(
        page=None,
        csrf="",
        tag="",
        part=False,
        next=target,
        fault=fault,
        provider=None if way is None else urlsplit(way.issuer).netloc,
    )
    return html(content, status or (HTTPStatus.UNAUTHORIZED if fault else HTTPStatus.OK))


def install_error_pages(app: FastAPI) -> None:
    """Let an application tell people on a page that there is nothing at an address; programs get the problem."""

    async def explain(request: Request, error: Exception) -> Response:
        assert isinstance(error, HTTPException)
        path = request.url.path
        mistyped = error.status_code == HTTPStatus.NOT_FOUND and path != API and not path.startswith(f"{API}/")
        if mistyped and "text/html" in request.headers.get("accept", ""):
            return await error_page(request, NotFoundError(f"There is no page at {truncate_echo(path)}."))
        return await problem_from_exception(request, error)

    app.add_exception_handler(HTTPException, explain)


def router() -> APIRouter:
    """A router of pages for people who are signed in."""
    return APIRouter(route_class=PageRoute, include_in_schema=False)


def _redirect_to_login(request: Request) -> Response:
    if PART_HEADER in request.headers or request.method != "GET":
        return Response(status_code=HTTPStatus.UNAUTHORIZED)
    wanted = request.url.path + (f"?{request.url.query}" if request.url.query else "")
    if request.app.state.oidc_client is not None and cookie_of(request, RENEWED_COOKIE) is not None:
        target = f"/sign-in/openid?silent=true&next={quote(wanted, safe='')}"
    else:
        target = "/sign-in" if wanted == "/" else f"/sign-in?next={quote(wanted, safe='')}"
    return RedirectResponse(target, HTTPStatus.SEE_OTHER)


async def _page_context(request: Request) -> PageContext:
    return PageContext(request)


PageDep = Annotated[PageContext, Depends(_page_context)]
