"""What strangers may send to the service, or a provider may answer, is never a failure of the service."""

import base64
import json
from collections.abc import Callable, Iterator
from dataclasses import asdict
from typing import Any
from urllib.parse import quote, quote_plus, urlencode

import pytest

from app.api.session_cookies import COOKIE, FLOW_COOKIE, RENEWED_COOKIE
from app.service.auth.oidc.authorization_code import LoginState
from tests.dashboard.oidc_flow import OidcFlow, open_flow
from tests.identity_provider import identity_provider
from tests.soak import thinned

HOSTILE = (
    *("\ud800", "x\udfff", "\udc80\ud800", "\0", "\x01\x7f\x85", "\r\nX-Header: x", "é", "\U0001d54f", "\u202e"),
    *("\ufeff", "%", "%ZZ%00%ff%ed%a0%80", "'\";--", "{{7*7}}<script>", "//evil.example/\\", "../../..", "9" * 5000),
    *("[" * 5000, "=", "key_.", "key_\0.\0", "a.b.c", "ses_x.y"),
)
"""Halves of surrogate pairs, and what else no honest client sends."""

HEADERS = (
    *("Authorization", "X-CSRF-Token", "Accept", "Accept-Language", "Origin", "Referer", "Sec-Fetch-Site"),
    *("Idempotency-Key", "Content-Type", "Content-Encoding", "If-None-Match", "X-Request-ID", "traceparent", "X-Part"),
    *("X-Forwarded-For", "X-Forwarded-Proto", "Host"),
)
FORM = "application/x-www-form-urlencoded"

Requests = Iterator[tuple[str, str, dict[str, Any]]]
"""Method, path, and what else a client sends."""


@pytest.fixture(scope="module")
def flow(tmp_path_factory: pytest.TempPathFactory) -> Iterator[OidcFlow]:
    with identity_provider() as provider, open_flow(tmp_path_factory.mktemp("hostile"), provider) as flow:
        yield flow


def _bytes(text: str) -> bytes:
    """As a client would put it on the wire: halves of pairs are encoded like characters."""
    return text.encode("utf-8", "surrogatepass")


def _header(text: str) -> bytes:
    """As far as the server's parser lets a header pass."""
    return bytes(byte for byte in _bytes(text) if byte not in b"\0\r\n")


def _cookie(kept: object) -> str:
    return base64.urlsafe_b64encode(json.dumps(kept).encode()).decode().rstrip("=")


def cookies(_: OidcFlow, text: str) -> Requests:
    values = [_header(text), _cookie(text).encode(), _cookie({text: [text]}).encode()]
    for name in (COOKIE, FLOW_COOKIE, RENEWED_COOKIE, text):
        for value in values:
            headers = {"headers": {b"Cookie": _header(name) + b"=" + value}}
            yield from (("GET", path, headers) for path in ("/sign-in", "/sign-in/openid/return", "/v1/runs"))
            yield "POST", "/sign-out", headers


def states(flow: OidcFlow, text: str) -> Requests:
    state = LoginState.begin("/", silent=False)
    for name in ("state", "nonce", "verifier", "target", "silent"):
        kept = asdict(state) | {name: text}
        headers = {b"Cookie": f"{FLOW_COOKIE}={_cookie(kept)}".encode()}
        code = flow.provider.authorize(flow.begin() | {"nonce": kept["nonce"]})
        for query in (f"state={quote(_bytes(str(kept['state'])))}", code.partition("?")[2]):
            yield "GET", f"/sign-in/openid/return?{query}", {"headers": headers}


def addresses(flow: OidcFlow, text: str) -> Requests:
    quoted = quote_plus(_bytes(text))
    for path in ("/sign-in", "/sign-in/openid"):
        yield "GET", f"{path}?next={quoted}", {}
        yield "GET", f"{path}?next=/{quoted}&silent={quoted}&{quoted}={quoted}", {}
    for name in ("state", "code", "iss", "error", "error_description"):
        yield "GET", f"/sign-in/openid/return?{name}={quoted}", {}
        state = LoginState.begin("/", silent=True)
        query = urlencode({"state": state.state, "code": "x", "iss": flow.provider.issuer} | {name: _bytes(text)})
        headers = {b"Cookie": f"{FLOW_COOKIE}={state.to_cookie()}".encode()}
        yield "GET", f"/sign-in/openid/return?{query}", {"headers": headers}
    for path in ("", "/v1/runs", "/accounts", "/static"):
        yield "GET", f"{path}/{quote(_bytes(text), safe='')}", {}
        yield "GET", f"{path}?{quoted}={quoted}&after={quoted}", {}


def forms(_: OidcFlow, text: str) -> Requests:
    quoted = quote_plus(_bytes(text))
    for fields in (f"key={quoted}&next={quoted}", f"key=key_{quoted}.{quoted}", f"csrf={quoted}&everywhere={quoted}"):
        for content in (fields.encode(), _bytes(text)):
            for cookie in ("", f"{COOKIE}=ses_x.y"):
                sent = {"content": content, "headers": {"Cookie": cookie, "Content-Type": FORM}}
                yield from (("POST", path, sent) for path in ("/sign-in", "/sign-out"))


def headers(_: OidcFlow, text: str) -> Requests:
    for name in HEADERS:
        for before in ("", "Bearer key_"):
            sent = {"headers": {name.encode(): before.encode() + _header(text)}}
            yield from (("GET", "/sign-in", sent), ("POST", "/v1/runs", sent))


def tokens(flow: OidcFlow, text: str) -> Requests:
    made = [flow.provider.token(header={name: text}) for name in ("typ", "kid", text)]
    claims: list[dict[str, Any]] = [
        {name: text} for name in ("sub", "iss", "aud", "exp", "groups", "_claim_names", text)
    ]
    for token in [*made, *(flow.provider.token(**claim) for claim in [*claims, {"groups": ["officers", text]}])]:
        yield "GET", "/v1/runs", {"headers": {"Authorization": f"Bearer {token}"}}
        yield "POST", "/sign-in", {"data": {"key": token}}


PLACES: tuple[Callable[[OidcFlow, str], Requests], ...] = (cookies, states, addresses, forms, headers, tokens)
CASES = [
    (place, HOSTILE[(turn + at) % len(HOSTILE)]) for at, place in enumerate(PLACES) for turn in range(len(HOSTILE))
]


def _words(value: object) -> str:
    return str(HOSTILE.index(value)) if isinstance(value, str) else getattr(value, "__name__", "")


@pytest.mark.parametrize(("place", "text"), thinned(CASES, 12), ids=_words)
def test_hostile_request_is_no_failure(flow: OidcFlow, place: Callable[[OidcFlow, str], Requests], text: str) -> None:
    for method, path, more in place(flow, text):
        flow.browser.cookies.clear()
        reply = flow.browser.request(method, path, **more)
        assert reply.status_code < 500, (method, path, more, reply.text)


@pytest.mark.parametrize("text", thinned(HOSTILE, 12), ids=_words)
def test_hostile_claim_of_provider_is_no_failure(flow: OidcFlow, text: str) -> None:
    answers: tuple[dict[str, Any], ...] = (
        *({name: text} for name in ("nonce", "sub", "iss", "aud", "azp", "exp", "iat", "nbf", "groups")),
        *({name: [text]} for name in ("nonce", "sub", "aud", "groups", "_claim_names")),
        {"groups": ["officers", text], text: text},
    )
    for said in answers:
        flow.provider.said = said
        try:
            assert flow.come_back().status_code < 500, said
        finally:
            flow.provider.said = {}
