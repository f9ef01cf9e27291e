"""Sign-in with an API key, and sign-out."""

from datetime import timedelta
from functools import partial
from http import HTTPStatus
from typing import Annotated, Final
from urllib.parse import parse_qs

from fastapi import APIRouter, Query, Request, Response
from fastapi.responses import RedirectResponse
from starlette.concurrency import run_in_threadpool

from app.api.middleware import request_id_of
from app.api.problems import EXPECTED_ERRORS
from app.api.route import StrictJsonRequest, address_of, authenticate_request, placement_of, rates_of
from app.api.session_cookies import COOKIE, RENEWED_COOKIE, cookie_of, keep_cookie, require_own_page, require_token
from app.dashboard.page_context import error_page, login_page
from app.ledger.errors import AuthenticationError, InvalidInputError
from app.service.auth import sessions
from app.service.auth.oidc.tokens import token_in

routes = APIRouter(include_in_schema=False)

Next = Annotated[str, Query(max_length=4000)]

_MOST_FIELDS: Final = 10

NO_KEY: Final = "An API key has the form key_….…."


@routes.get("/sign-in")
async def show_sign_in(request: Request, next: Next = "/") -> Response:  # noqa: A002 - the field's name in the address
    """Show the sign-in form."""
    return login_page(request, own_path(next))


@routes.post("/sign-in")
async def sign_in(request: Request) -> Response:
    """Exchange a key for a session cookie."""
    try:
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
        request.state.principal = caller
        rates_of(request).sign_ins.take(caller.actor)
        lasting = timedelta(hours=request.app.state.session_hours)
        db = placement_of(request).database
        opened = await run_in_threadpool(
            sessions.open_session,
            db,
            caller,
            db.clock.moment(wait=False).latest,
            lasting=lasting,
            request_id=request_id_of(request.scope),
        )
    except EXPECTED_ERRORS as error:
        return await error_page(request, error)
    reply = RedirectResponse(target, HTTPStatus.SEE_OTHER)
    keep_cookie(request, reply, COOKIE, opened)
    keep_cookie(request, reply, RENEWED_COOKIE, "", seconds=0)  # a session by key is not renewed at the provider
    return reply


@routes.post("/sign-out")
async def sign_out(request: Request) -> Response:
    """End this session, or with the field `everywhere` all sessions of the principal."""
    cookie = cookie_of(request)
    try:
        require_own_page(request)
        if cookie is not None:
            credential = f"{sessions.SCHEME} {cookie}"
            fields = await form_of(request)
            require_token(cookie, fields.get("csrf", ""))
            caller = request.state.principal = await authenticate_request(request, credential)
            db = placement_of(request).database
            now = db.clock.moment(wait=False).latest
            if "everywhere" in fields:
                end = partial(sessions.end_every_session, db, caller)
            else:
                end = partial(sessions.end_session, db, cookie, caller)
            await run_in_threadpool(end, now, request_id_of(request.scope))
            request.app.state.keys.evict(credential)
    except AuthenticationError:
        pass  # it has ended already
    except EXPECTED_ERRORS as error:
        return await error_page(request, error)
    reply = RedirectResponse("/sign-in", HTTPStatus.SEE_OTHER)
    for cookie in (COOKIE, RENEWED_COOKIE):
        keep_cookie(request, reply, cookie, "", seconds=0)
    return reply


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
    return wanted if plain else "/"
