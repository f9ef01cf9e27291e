"""What strangers may send to the service, or a provider may answer, is never a failure of the service."""

import base64
import itertools
import json
from collections.abc import Callable, Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any
from urllib.parse import quote, quote_plus, urlencode

import httpx2
import pytest

from app.api.session_cookies import COOKIE, FLOW_COOKIE, RENEWED_COOKIE
from app.service.auth.oidc.authorization_code import LoginState
from tests.conftest import open_ledger
from tests.dashboard.oidc_flow import OidcFlow, new_flow, settings_of
from tests.identity_provider import IdentityProvider, identity_provider, key_of, public
from tests.soak import thinned

HOSTILE = (
    "\ud800",
    "x\udfff",
    "\udc80\ud800",
    "\0",
    "\x01\x7f\x85",
    "\r\nX-Header: x",
    "é",
    "\U0001d54f",
    "\u202e",
    "\ufeff",
    "%",
    "%ZZ%00%ff%ed%a0%80",
    "'\";--",
    "{{7*7}}<script>",
    "//evil.example/\\",
    "../../..",
    "9" * 5000,
    "[" * 5000,
    "=",
    "key_.",
    "key_\0.\0",
    "a.b.c",
    "ses_x.y",
)
"""Halves of surrogate pairs, and what else no honest client sends."""

PLACES = itertools.count()


def hostile(test: Callable[..., None]) -> Callable[..., None]:
    """Give a test all strings in `make soak`, and in `make test` a third: another one at each place."""
    begin = next(PLACES) % 3
    cases = HOSTILE[begin:] + HOSTILE[:begin]
    marked: Callable[..., None] = pytest.mark.parametrize("text", thinned(cases, 3), ids=map(HOSTILE.index, cases))(
        test
    )
    return marked


PATHS = ("/sign-in", "/sign-in/openid/return", "/v1/runs")
HEADERS = (
    *("Authorization", "X-CSRF-Token", "Accept", "Accept-Language", "Origin", "Referer", "Sec-Fetch-Site"),
    *("Idempotency-Key", "Content-Type", "Content-Encoding", "If-None-Match", "X-Request-ID", "traceparent", "X-Part"),
    *("X-Forwarded-For", "X-Forwarded-Proto", "Host"),
)


@pytest.fixture(scope="module")
def provider() -> Iterator[IdentityProvider]:
    with identity_provider() as provider:
        yield provider


@pytest.fixture(scope="module")
def flow(tmp_path_factory: pytest.TempPathFactory, provider: IdentityProvider) -> Iterator[OidcFlow]:
    with open_ledger(tmp_path_factory.mktemp("hostile"), **settings_of(provider)) as ledger:
        provider.wait_for(ledger)
        yield new_flow(ledger, provider)


def _bytes(text: str) -> bytes:
    """As whoever wants to would put it on the wire: halves of pairs are encoded like characters."""
    return text.encode("utf-8", "surrogatepass")


def _header(text: str) -> bytes:
    """As far as the server's parser lets a header pass."""
    return bytes(byte for byte in _bytes(text) if byte not in b"\0\r\n")


def _ask(flow: OidcFlow, method: str, path: str, **more: Any) -> httpx2.Response:  # noqa: ANN401 - as the client's own
    flow.browser.cookies.clear()
    reply: httpx2.Response = flow.browser.request(method, path, **more)
    assert reply.status_code < 500, (method, path, more, reply.text)
    return reply


def _cookie(kept: object) -> str:
    return base64.urlsafe_b64encode(json.dumps(kept).encode()).decode().rstrip("=")


@hostile
def test_in_a_cookie(flow: OidcFlow, text: str) -> None:
    values = [_header(text), _cookie(text).encode(), _cookie({text: [text]}).encode()]
    for name in (COOKIE, FLOW_COOKIE, RENEWED_COOKIE, text):
        for value in values:
            cookie = _header(name) + b"=" + value
            for path in PATHS:
                _ask(flow, "GET", path, headers={b"Cookie": cookie})
            _ask(flow, "POST", "/sign-out", headers={b"Cookie": cookie})


@hostile
def test_in_a_sign_in_under_way(flow: OidcFlow, text: str) -> None:
    state = LoginState.begin("/", silent=False)
    for name in ("state", "nonce", "verifier", "target", "silent"):
        kept = asdict(state) | {name: text}
        headers = {b"Cookie": f"{FLOW_COOKIE}={_cookie(kept)}".encode()}
        code = flow.provider.authorize(_asked(kept, flow))
        for query in (f"state={quote(_bytes(str(kept['state'])))}", code.partition("?")[2]):
            _ask(flow, "GET", f"/sign-in/openid/return?{query}", headers=headers)


def _asked(kept: dict[str, Any], flow: OidcFlow) -> dict[str, str]:
    """What the provider is asked in a flow; it takes any challenge."""
    return flow.begin() | {"nonce": kept["nonce"]}


@hostile
def test_in_an_address(flow: OidcFlow, text: str) -> None:
    quoted = quote_plus(_bytes(text))
    for path in ("/sign-in", "/sign-in/openid"):
        _ask(flow, "GET", f"{path}?next={quoted}")
        _ask(flow, "GET", f"{path}?next=/{quoted}&silent={quoted}&{quoted}={quoted}")
    for name in ("state", "code", "iss", "error", "error_description"):
        _ask(flow, "GET", f"/sign-in/openid/return?{name}={quoted}")
        state = LoginState.begin("/", silent=True)
        cookie = {b"Cookie": f"{FLOW_COOKIE}={state.to_cookie()}".encode()}
        query = urlencode({"state": state.state, "code": "x", "iss": flow.provider.issuer} | {name: _bytes(text)})
        _ask(flow, "GET", f"/sign-in/openid/return?{query}", headers=cookie)
    for path in ("", "/v1/runs", "/accounts", "/static"):
        _ask(flow, "GET", f"{path}/{quote(_bytes(text), safe='')}")
        _ask(flow, "GET", f"{path}?{quoted}={quoted}&after={quoted}")


@hostile
def test_in_a_form(flow: OidcFlow, text: str) -> None:
    quoted = quote_plus(_bytes(text))
    for fields in (f"key={quoted}&next={quoted}", f"key=key_{quoted}.{quoted}", f"csrf={quoted}&everywhere={quoted}"):
        for path in ("/sign-in", "/sign-out"):
            for cookie in ("", f"{COOKIE}=ses_x.y"):
                headers = {"Cookie": cookie, "Content-Type": "application/x-www-form-urlencoded"}
                _ask(flow, "POST", path, content=fields, headers=headers)
                _ask(flow, "POST", path, content=_bytes(text), headers=headers)


@hostile
def test_in_a_header(flow: OidcFlow, text: str) -> None:
    for name in HEADERS:
        for before in ("", "Bearer key_"):
            headers = {name.encode(): before.encode() + _header(text)}
            for method, path in (("GET", "/sign-in"), ("POST", "/v1/runs")):
                _ask(flow, method, path, headers=headers)


@hostile
def test_in_a_token(flow: OidcFlow, text: str) -> None:
    tokens = [flow.provider.token(header={name: text}) for name in ("typ", "kid", "cty", text)]
    claims: tuple[dict[str, Any], ...] = (
        *({name: text} for name in ("sub", "iss", "aud", "azp", "exp", "nbf", "iat", "groups", "_claim_names")),
        *({name: [text]} for name in ("sub", "aud", "groups")),
        {"groups": ["officers", text]},
        {text: text},
        {"sub": f"marie{text}"},
    )
    for token in [*tokens, *(flow.provider.token(**body) for body in claims)]:
        _ask(flow, "GET", "/v1/runs", headers={"Authorization": f"Bearer {token}"})
        _ask(flow, "POST", "/sign-in", data={"key": token})


@hostile
def test_in_what_the_provider_vouches_for(flow: OidcFlow, text: str) -> None:
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


@hostile
def test_in_what_the_provider_publishes(tmp_path: Path, provider: IdentityProvider, text: str) -> None:
    """Who configures it has to mend it: it is told to people as an answer that cannot be had, without a traceback."""
    answers: list[dict[str, Any]] = [
        *({"configured": {name: text}} for name in ("authorization_endpoint", "token_endpoint", "issuer", "jwks_uri")),
        {"configured": {"token_endpoint_auth_methods_supported": [text], text: text}},
        {"published": [public(key_of("RS256"), kid="RS256-0", alg=text), public(key_of("ES256"), kid=text)]},
        {"content": json.dumps(text).encode()},
        {"content": _bytes(text)},
    ]
    with open_ledger(tmp_path, **settings_of(provider)) as ledger:
        for answer in answers:
            kept = {name: getattr(provider, name) for name in answer}
            for name, value in answer.items():
                setattr(provider, name, value)
            try:
                fresh = new_flow(ledger, provider)
                sign_in = ledger.http.app.state.oidc_client
                sign_in._endpoints = None
                reply = fresh.browser.get("/sign-in/openid")
                assert reply.status_code in {303, 503}, (answer, reply.text)
                token = provider.token(header={"kid": text or "x"})
                reply = fresh.browser.get("/v1/runs", headers={"Authorization": f"Bearer {token}"})
                assert reply.status_code in {401, 503, 200}, (answer, reply.text)
            finally:
                for name, value in kept.items():
                    setattr(provider, name, value)
