"""Sign-in with an API key, a one-time link or OpenID Connect, and sign-out."""

from contextlib import suppress
from datetime import timedelta
from functools import partial
from http import HTTPStatus
from typing import TYPE_CHECKING, Final
from urllib.parse import parse_qs

from fastapi import APIRouter, Request, Response
from fastapi.responses import RedirectResponse
from starlette.concurrency import run_in_threadpool

from app.api.problems import EXPECTED_ERRORS
from app.api.route import address_of, authenticate_request, context_of, rates_of, store_of
from app.api.session_cookies import (
    COOKIE,
    FLOW_COOKIE,
    RENEWED_COOKIE,
    cookie_of,
    keep_cookie,
    require_own_page,
    require_token,
)
from app.api.strict_json import StrictJsonRequest
from app.dashboard.page_context import PublicPageRoute, error_page, html, login_page, templates
from app.ledger.errors import AuthenticationError, InvalidInputError, NotFoundError
from app.logging_config import request_id
from app.service.auth import sessions, sign_in_links
from app.service.auth.authentication import Principal, token_in
from app.service.auth.oidc.authorization_code import FIRST_PAGE, MOST_CHARACTERS, LoginState, OidcClient
from app.service.auth.rate_limit import UNAUTHENTICATED
from app.service.auth.request_context import RequestContext

if TYPE_CHECKING:
    from app.service.auth.oidc.identities import OidcIdentity

NO_KEY: Final = "An API key has the form key_….…."

FLOW_SECONDS: Final = 600
"""Time limit of a login at the provider."""

RETURN: Final = "/sign-in/openid/return"

ERRORS: Final = {
    "access_denied": "The sign-in was declined, by you or by the identity provider.",
    "temporarily_unavailable": "The identity provider cannot let anybody sign in at this moment.",
    "server_error": "The identity provider has failed.",
    "invalid_scope": "The identity provider rejected the request as unknown; ask its administrator.",
    "unauthorized_client": "The identity provider does not allow this client; ask its administrator.",
}
"""Messages for the provider's error codes."""

UNSEEN: Final = frozenset({"login_required", "interaction_required", "consent_required", "account_selection_required"})
"""Errors of a provider that may not show a page (`prompt=none`)."""

_MOST_FIELDS: Final = 10

routes = APIRouter(route_class=PublicPageRoute, include_in_schema=False)


@routes.get("/sign-in")
async def show_sign_in(request: Request, next: str = "/") -> Response:  # noqa: A002 - the field's name in the address
    """Show the sign-in form."""
    return login_page(request, own_path(next))


@routes.post("/sign-in")
async def sign_in(request: Request) -> Response:
    """Exchange a key for a session cookie."""
    require_own_page(request, alone=True)
    rates_of(request).sign_ins_tried.take(address_of(request))
    fields = await form_of(request)
    target = own_path(fields.get("next", "/"))
    key = f"Bearer {fields.get('key', '').strip()}"
    if token_in(key) is not None:
        return login_page(request, target, "This is an access token. Sign in with an API key.")
    try:
        caller = await authenticate_request(request, key)
    except AuthenticationError as error:
        return login_page(request, target, error.detail if "." in key else NO_KEY)
    if caller.single_use:
        return login_page(request, target, "This key is for one run of a trainer. Sign in with another key.")
    return await _open_session(request, caller, target, timedelta(hours=request.app.state.session_hours))


@routes.get("/sign-in/link")
async def show_link() -> Response:
    """Show a button for a one-time sign-in link, which a preview of the link does not press."""
    return _link_page()


@routes.post("/sign-in/link")
async def redeem_link(request: Request) -> Response:
    """Exchange the token of a one-time sign-in link for a session cookie."""
    require_own_page(request, alone=True)
    address, rates = address_of(request), rates_of(request)
    rates.sign_ins_tried.take(address)
    token = (await form_of(request)).get("token", "").strip().rpartition("#")[2]
    lasting = timedelta(hours=request.app.state.session_hours)
    db = store_of(request).database
    try:
        with rates.anonymous.refund_unless(UNAUTHENTICATED, address):
            opened = await run_in_threadpool(sign_in_links.redeem, db, token, lasting, request_id.get())
    except AuthenticationError as error:
        return _link_page(error.detail)
    return _signed_in(request, opened.cookie, "/")


@routes.post("/sign-out")
async def sign_out(request: Request) -> Response:
    """End this session, or with the field `everywhere` all sessions of the principal."""
    cookie = cookie_of(request)
    with suppress(AuthenticationError):  # it has ended already
        require_own_page(request)
        if cookie is not None:
            credential = sessions.SessionCookie(cookie)
            fields = await form_of(request)
            require_token(cookie, fields.get("csrf", ""))
            request.state.principal = await authenticate_request(request, credential)
            context = context_of(request)
            await run_in_threadpool(sessions.end_sessions, context, None if "everywhere" in fields else cookie)
            request.app.state.keys.evict(credential)
    reply = RedirectResponse("/sign-in", HTTPStatus.SEE_OTHER)
    for cookie in (COOKIE, RENEWED_COOKIE):
        keep_cookie(request, reply, cookie, "", seconds=0)
    return reply


@routes.get("/sign-in/openid")
async def begin(request: Request, next: str = "/", silent: bool = False) -> Response:  # noqa: A002, FBT001, FBT002 - the fields' names in the address
    """Redirect the browser to the provider."""
    client = _oidc_client(request)
    flow = LoginState.begin(own_path(next), silent=silent)
    address = await run_in_threadpool(client.address, flow, _return_to(request))
    reply = RedirectResponse(address, HTTPStatus.SEE_OTHER)
    keep_cookie(request, reply, FLOW_COOKIE, flow.to_cookie(), seconds=FLOW_SECONDS)
    return reply


@routes.get(RETURN)
async def callback(request: Request) -> Response:
    """Redeem the provider's answer, once, and set the session cookie."""
    flow = LoginState.from_cookie(cookie_of(request, FLOW_COOKIE))
    try:
        reply = await _redeem(request, flow)
    except AuthenticationError as error:
        reply = login_page(request, flow.target if flow else "/", error.detail)
    except EXPECTED_ERRORS as error:
        reply = await error_page(request, error)
    keep_cookie(request, reply, FLOW_COOKIE, "", seconds=0)  # an answer is taken once
    return reply


async def _redeem(request: Request, flow: LoginState | None) -> Response:
    client = _oidc_client(request)
    answer = {name: value[:MOST_CHARACTERS] for name, value in request.query_params.items()}
    address, rates = address_of(request), rates_of(request)
    rates.sign_ins_tried.take(address)
    with rates.anonymous.refund_unless(UNAUTHENTICATED, address):
        flow = await run_in_threadpool(client.require_ours, flow, answer)
        if "error" in answer:
            return _refused(request, flow, answer)
        token = await run_in_threadpool(client.redeem, answer.get("code", ""), flow, _return_to(request))
        authenticate = partial(request.app.state.keys.oidc.authenticate, login=(client.client_id, flow.nonce))
        person = await run_in_threadpool(authenticate, token, request_id.get())
    lasting = timedelta(minutes=request.app.state.oidc_session_minutes)
    return await _open_session(request, person.caller, own_path(flow.target), lasting, person)


async def _open_session(
    request: Request, caller: Principal, target: str, lasting: timedelta, person: "OidcIdentity | None" = None
) -> Response:
    """Open the session of an authenticated caller, a key or a `person`, and redirect to a page."""
    request.state.principal = caller
    rates_of(request).sign_ins.take(caller.actor)
    db = store_of(request).database

    def open_session() -> str:
        context = RequestContext(db, caller, db.clock.now(), request_id.get())
        told = (None, None, None) if person is None else (person.thumbprint, person.name, person.nonce)
        return sessions.open_session(context, lasting, *told)

    return _signed_in(request, await run_in_threadpool(open_session), target, renewed=person is not None)


def _signed_in(request: Request, cookie: str, target: str, *, renewed: bool = False) -> Response:
    """Set the session cookie and redirect to a page; only a person's session is `renewed` at the provider."""
    reply = RedirectResponse(target, HTTPStatus.SEE_OTHER)
    keep_cookie(request, reply, COOKIE, cookie)
    keep_cookie(request, reply, RENEWED_COOKIE, "1" if renewed else "", seconds=None if renewed else 0)
    return reply


def _link_page(fault: str = "") -> Response:
    """Build the page of a one-time sign-in link; with an error, its status is 401."""
    content = templates().get_template("sign_in_link.html").render(fault=fault)
    return html(content, HTTPStatus.UNAUTHORIZED if fault else HTTPStatus.OK)


def _refused(request: Request, flow: LoginState, answer: dict[str, str]) -> Response:
    if flow.silent and answer["error"] in UNSEEN:
        reply = login_page(request, flow.target)
        keep_cookie(request, reply, RENEWED_COOKIE, "", seconds=0)
        return reply
    words = ERRORS.get(answer["error"], f"The identity provider answered {answer['error'][:100]!a}.")
    more = answer.get("error_description", "")[:300]
    return login_page(request, flow.target, f"{words} It says: {more}" if more.isprintable() and more else words)


def _oidc_client(request: Request) -> OidcClient:
    client: OidcClient | None = request.app.state.oidc_client
    if client is None:
        raise NotFoundError("People do not sign in at an identity provider here; sign in with a key.")
    return client


def _return_to(request: Request) -> str:
    """Get the registered redirect URI."""
    origin = request.app.state.public_url or f"{request.url.scheme}://{request.url.netloc}"
    return f"{origin}{RETURN}"


async def form_of(request: Request) -> dict[str, str]:
    """Read the fields of a form.

    Raises:
        InvalidInputError: the body is no form.
        RequestTooLargeError: it is over 1 MiB.
    """
    try:
        text = (await StrictJsonRequest(request.scope, request.receive).body()).decode("utf-8")
        return {name: values[0] for name, values in parse_qs(text, max_num_fields=_MOST_FIELDS).items()}
    except ValueError:
        raise InvalidInputError("The request's body is no form.") from None


def own_path(wanted: str) -> str:
    """Get a safe redirect target: a path of this service, whatever was requested."""
    plain = wanted.isprintable() and wanted.startswith("/") and not wanted.startswith(("//", "/\\"))
    return wanted if plain and len(wanted) <= MOST_CHARACTERS else FIRST_PAGE
