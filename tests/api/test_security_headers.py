"""What every reply tells browsers and caches, whichever way it was answered."""

import re
from pathlib import Path

import httpx2
import pytest

from app.api.middleware import PUBLIC
from app.service.queries import runs
from tests.api.conftest import SeededLedger
from tests.api.operations import OPERATIONS, Operation
from tests.conftest import LiveServer, open_ledger

API_POLICY = "default-src 'none'; frame-ancestors 'none'"
FOR_EVER = "public, max-age=31536000, immutable"
each_operation = pytest.mark.parametrize("operation", OPERATIONS, ids=lambda operation: operation.id)


def _check(reply: httpx2.Response, *, policy: str = API_POLICY, cached: str | None = "no-store") -> None:
    assert {
        name: reply.headers.get(name)
        for name in (
            *("x-content-type-options", "referrer-policy", "x-frame-options"),
            *("content-security-policy", "cache-control", "strict-transport-security", "server"),
        )
    } == {
        "x-content-type-options": "nosniff",
        "referrer-policy": "same-origin",
        "x-frame-options": "DENY",
        "content-security-policy": policy,
        "cache-control": cached,
        "strict-transport-security": None,
        "server": None,
    }
    assert len(reply.headers.multi_items()) == len(reply.headers)


@each_operation
@pytest.mark.parametrize("headers", [{}, {"Content-Type": "application/json"}], ids=["a stranger", "an admin"])
def test_every_operation(shared: SeededLedger, operation: Operation, headers: dict[str, str]) -> None:
    sent = headers and headers | shared.ledger.headers()
    reply = shared.ledger.http.request(operation.method, operation.at(**shared.ids()), content=b"{", headers=sent)
    _check(reply, cached=reply.headers["cache-control"])
    assert reply.headers["cache-control"] == ("private, no-cache" if "etag" in reply.headers else "no-store")


def test_steps(shared: SeededLedger) -> None:
    """As they are answered on their connection, too: tests/api/test_fast_path.py compares the bytes."""
    for body in ({}, {"count": 1_000_000_000}):
        _check(shared.ledger.post(f"/v1/runs/{shared.run}/steps", body, "trainer"))


def test_what_the_asker_has_already(shared: SeededLedger) -> None:
    tag = shared.ledger.get("/v1/runs").headers["etag"]
    reply = shared.ledger.get("/v1/runs", If_None_Match=tag)
    assert reply.status_code == 304
    _check(reply, cached="private, no-cache")


@pytest.mark.parametrize(("method", "path", "status"), [("GET", "/nowhere", 404), ("PUT", "/v1/runs", 405)])
def test_where_there_is_nothing(shared: SeededLedger, method: str, path: str, status: int) -> None:
    reply = shared.ledger.http.request(method, path)
    assert reply.status_code == status
    _check(reply)


def test_an_error_that_nobody_foresaw(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: object) -> None:
        raise AssertionError("a bug")

    monkeypatch.setattr(runs, "read_history", broken)
    with open_ledger(tmp_path) as ledger:  # the document knows no such answer
        reply = ledger.get("/v1/runs/run_1/history")
    assert reply.status_code == 500
    _check(reply)


def test_the_description_may_be_kept_by_caches(shared: SeededLedger) -> None:
    _check(shared.ledger.http.get("/openapi.json"), cached=None)
    assert {path for path in PUBLIC if shared.ledger.http.get(path).status_code == 200} == PUBLIC


def test_the_page_loads_from_this_service_and_nothing_else(shared: SeededLedger) -> None:
    reply = shared.ledger.http.get("/docs")
    policy = reply.headers["content-security-policy"]
    _check(reply, policy=policy, cached=None)
    rules = {name: sources for name, *sources in (rule.split() for rule in policy.split("; "))}
    assert rules["default-src"] == rules["base-uri"] == rules["form-action"] == rules["frame-ancestors"] == ["'none'"]
    assert rules["script-src"] == rules["connect-src"] == ["'self'"]
    assert rules["style-src"] == ["'self'", "'unsafe-inline'"]
    loaded = re.findall(r'(?:src|href)="([^"]+)"', reply.text)
    loaded.remove("/")  # a link to the pages
    assert len(loaded) == 7
    for path in loaded:
        assert path.startswith("/")
        found = shared.ledger.http.get(path)
        assert found.status_code == 200
        assert found.headers.get("cache-control") == (None if path in PUBLIC else FOR_EVER)
    assert re.findall(r"<script(?![^>]* src=)", reply.text) == []
    assert 'data-description="/openapi.json"' in reply.text


@pytest.mark.parametrize("path", ["/docs", "/openapi.json", "/healthz", "/v1/runs", "/nowhere"])
def test_by_https_the_browser_is_told_to_stay_there(live_server: LiveServer, path: str) -> None:
    """The proxy before the service says how it was asked; nobody else on this machine listens for lies."""
    with live_server.client("viewer") as http:
        assert "server" not in http.get(path).headers
        assert "strict-transport-security" not in http.get(path).headers
        by_tls = http.get(path, headers={"X-Forwarded-Proto": "https"})
        assert by_tls.headers["strict-transport-security"] == "max-age=31536000"
