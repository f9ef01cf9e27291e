"""Sign-in with OpenID Connect: authorization request and callback."""

from dataclasses import replace
from datetime import timedelta
from functools import partial
from http import HTTPStatus
from typing import Final

from fastapi import APIRouter, Request, Response
from fastapi.responses import RedirectResponse
from starlette.concurrency import run_in_threadpool

from app.api.middleware import request_id_of
from app.api.problems import EXPECTED_ERRORS
from app.api.route import address_of, placement_of, rates_of
from app.api.session_cookies import COOKIE, FLOW_COOKIE, RENEWED_COOKIE, cookie_of, keep_cookie
from app.dashboard.login import Next, own_path
from app.dashboard.page_context import error_page, login_page
from app.ledger.errors import AuthenticationError, NotFoundError
from app.service.auth import sessions
from app.service.auth.oidc.authorization_code import (
    MOST_CHARACTERS,
    LoginState,
    OidcClient,
    new_login_state,
    read_login_state,
)

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

routes = APIRouter(include_in_schema=False)


@routes.get("/sign-in/openid")
async def begin(request: Request, next: Next = "/", silent: bool = False) -> Response:  # noqa: A002, FBT001, FBT002 - the fields' names in the address
    """Redirect the browser to the provider."""
    try:
        way = _way(request)
        flow = new_login_state(own_path(next), silent=silent)
        address = await run_in_threadpool(way.address, flow, _return_to(request))
    except EXPECTED_ERRORS as error:
        return await error_page(request, error)
    reply = RedirectResponse(address, HTTPStatus.SEE_OTHER)
    keep_cookie(request, reply, FLOW_COOKIE, flow.written(), seconds=FLOW_SECONDS)
    return reply


@routes.get(RETURN)
async def callback(request: Request) -> Response:
    """Redeem the provider's answer, once, and set the session cookie."""
    flow = read_login_state(cookie_of(request, FLOW_COOKIE))
    try:
        reply = await _signed_in(request, flow)
    except AuthenticationError as error:
        reply = login_page(request, flow.target if flow else "/", error.detail)
    except EXPECTED_ERRORS as error:
        reply = await error_page(request, error)
    keep_cookie(request, reply, FLOW_COOKIE, "", seconds=0)  # an answer is taken once
    return reply


async def _signed_in(request: Request, flow: LoginState | None) -> Response:
    way = _way(request)
    answer = {name: value[:MOST_CHARACTERS] for name, value in request.query_params.items()}
    address, rates = address_of(request), rates_of(request)
    rates.sign_ins_tried.take(address)
    with rates.anonymous.spent_on(AuthenticationError, address):
        flow = await run_in_threadpool(way.require_ours, flow, answer)
        if "error" in answer:
            return _refused(request, flow, answer)
        token = await run_in_threadpool(way.redeem, answer.get("code", ""), flow, _return_to(request))
        sign_in = partial(request.app.state.keys.sign_in, token, way.client_id, flow.nonce)
        person = await run_in_threadpool(sign_in, request_id_of(request.scope))
    request.state.principal = person.caller
    rates.sign_ins.take(person.caller.actor)
    # The token itself is for the moment of the sign-in, and lives minutes: the session has an end of its own.
    open_session = partial(
        sessions.open_session,
        lasting=timedelta(minutes=request.app.state.oidc_session_minutes),
        request_id=request_id_of(request.scope),
        thumbprint=person.thumbprint,
    )
    caller = replace(person.caller, expires_at=None)
    db = placement_of(request).database
    cookie = await run_in_threadpool(lambda: open_session(db, caller, db.clock.now()))
    reply = RedirectResponse(own_path(flow.target), HTTPStatus.SEE_OTHER)
    keep_cookie(request, reply, COOKIE, cookie)
    keep_cookie(request, reply, RENEWED_COOKIE, "1")
    return reply


def _refused(request: Request, flow: LoginState, answer: dict[str, str]) -> Response:
    if flow.silent and answer["error"] in UNSEEN:
        reply = login_page(request, flow.target)
        keep_cookie(request, reply, RENEWED_COOKIE, "", seconds=0)
        return reply
    words = ERRORS.get(answer["error"], f"The identity provider answered {answer['error'][:100]!a}.")
    more = answer.get("error_description", "")[:300]
    return login_page(request, flow.target, f"{words} It says: {more}" if more.isprintable() and more else words)


def _way(request: Request) -> OidcClient:
    way: OidcClient | None = request.app.state.oidc_client
    if way is None:
        raise NotFoundError("People do not sign in at an identity provider here; sign in with a key.")
    return way


def _return_to(request: Request) -> str:
    """Get the registered redirect URI."""
    origin = request.app.state.public_url or f"{request.url.scheme}://{request.url.netloc}"
    return f"{origin}{RETURN}"
