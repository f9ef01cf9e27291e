"""Headers: entity tags, and what every answer tells browsers and caches."""

import re
from pathlib import Path

import httpx2
import pytest

from app.api.middleware import PUBLIC
from app.service.queries import runs
from tests.api.conftest import SeededLedger
from tests.api.operations import DOCUMENT, OPERATIONS, READS
from tests.conftest import open_ledger

API_POLICY = "default-src 'none'; frame-ancestors 'none'"
FOR_EVER = "public, max-age=31536000, immutable"


def _check(reply: httpx2.Response, *, policy: str = API_POLICY, cached: str | None = "no-store") -> None:
    shown = {"referrer-policy": "same-origin", "x-frame-options": "DENY", "content-security-policy": policy}
    expected = {"x-content-type-options": "nosniff"} | ({} if cached is None else {"cache-control": cached})
    silent = ["strict-transport-security", "server", *(() if cached else ("cache-control",))]
    is_json = reply.headers.get("content-type") in {"application/json", "application/problem+json"}
    if is_json and "authorization" in reply.request.headers:  # a program's, which no browser shows
        silent += shown
    else:
        expected |= shown
    assert {name: reply.headers.get(name) for name in (*expected, *silent)} == expected | dict.fromkeys(silent)
    assert len(reply.headers.multi_items()) == len(reply.headers)


def test_every_answer_has_security_headers(shared: SeededLedger) -> None:
    for operation in OPERATIONS:
        for headers in ({}, {"Content-Type": "application/json"} | shared.ledger.headers()):
            path = operation.at(**shared.ids())
            reply = shared.ledger.http.request(operation.method, path, content=b"{", headers=headers)
            kept = reply.headers["cache-control"]
            assert kept == ("private, no-cache" if "etag" in reply.headers else "no-store"), operation.id
            _check(reply, cached=kept)
    """As they are answered on the fast path, too: tests/api/test_fast_path.py compares the bytes."""
    for body in ({}, {"count": 1_000_000_000}):
        _check(shared.ledger.post(f"/v1/runs/{shared.run}/steps", body, "trainer"))
    tag = shared.ledger.get("/v1/runs").headers["etag"]
    reply = shared.ledger.get("/v1/runs", If_None_Match=tag)
    assert reply.status_code == 304
    _check(reply, cached="private, no-cache")
    for method, path, status in (("GET", "/nowhere", 404), ("PUT", "/v1/runs", 405)):
        reply = shared.ledger.http.request(method, path)
        assert reply.status_code == status
        _check(reply)


def test_unforeseen_error_answers_with_security_headers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: object) -> None:
        raise AssertionError("a bug")

    monkeypatch.setattr(runs, "read_history", broken)
    with open_ledger(tmp_path) as ledger:  # the document knows no such answer
        reply = ledger.get("/v1/runs/run_1/history")
    assert reply.status_code == 500
    _check(reply)


def test_description_may_be_kept_by_caches(shared: SeededLedger) -> None:
    described = shared.ledger.http.get("/openapi.json")
    _check(described, cached=None)
    assert described.json() == DOCUMENT
    assert {path for path in PUBLIC if shared.ledger.http.get(path).status_code == 200} == PUBLIC


def test_documentation_page_loads_from_this_service_only(shared: SeededLedger) -> None:
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


def test_https_answer_tells_the_browser_to_stay(shared: SeededLedger) -> None:
    """The proxy before the service says how it was asked; nobody else on this machine listens for lies."""
    for path in ("/docs", "/openapi.json", "/healthz", "/v1/runs", "/nowhere"):
        assert "strict-transport-security" not in shared.ledger.get(path).headers
        by_tls = shared.ledger.http.get(f"https://testserver{path}", headers=shared.ledger.headers())
        assert by_tls.headers["strict-transport-security"] == "max-age=31536000"


def test_read_carries_a_tag_and_is_answered_304_with_it(shared: SeededLedger) -> None:
    for operation in READS:
        path = operation.at(**shared.ids())
        first = shared.ledger.get(path, "admin")
        tag = first.headers["etag"]
        assert (first.status_code, tag[:1], tag[-1:]) == (200, '"', '"'), operation.id
        kept = first.headers.get("cache-control", "")
        assert "no-store" not in kept
        assert "public" not in kept
        ways = (tag, f"W/{tag}", f'"other", {tag}', f'{tag},"other"', "*", f"  {tag}  ")
        for known in ways if operation.id == "getRun" else ways[:1]:
            again = shared.ledger.get(path, "admin", If_None_Match=known)
            assert (again.status_code, again.content, again.headers["etag"]) == (304, b"", tag), (operation.id, known)


UNMOVED = {
    *("listApiKeys", "getApiKey", "listAuditEvents", "getAccountLimit", "getLimitEquivalents"),
    *("listProposals", "getProposal"),
    *("getReservation", "listAlerts", "getAlertSettings", "listReceivers", "getReceiver", "listDeliveries"),
    *("getSigningKey", "listCheckpoints", "listVerifications", "getVerification", "getOrganisationPolicy"),
    *("getAccountPolicy", "listExperiments", "getExperiment", "getQueue", "getAllocation", "getBlockSchedule"),
}
"""What a charge to the run of the seeded ledger does not change, unless it reaches a threshold."""


def test_tags_change_with_a_charge_and_only_then(seeded: SeededLedger) -> None:
    steps, some = f"/v1/runs/{seeded.run}/steps", [each for each in READS if not each.path.endswith(".svg")]

    def tags() -> dict[str, str]:
        return {each.id: seeded.ledger.get(each.at(**seeded.ids()), "admin").headers["etag"] for each in some}

    first = tags()
    seeded.ledger.post(f"{steps}?dry_run=true", {"count": 2}, "trainer")
    seeded.ledger.post(steps, {"first_step": 0}, "trainer")
    seeded.ledger.post("/v1/runs/run_nothing/steps", {}, "trainer")
    seeded.ledger.post(steps, {"count": 0}, "trainer")
    assert tags() == first
    assert len(set(first.values())) == len(first)
    assert seeded.ledger.post(steps, {"count": 10**6}, "trainer").status_code == 403
    refused = tags()
    assert {name for name in first if first[name] != refused[name]} == {"getRunHistory", "listDecisions"}
    assert seeded.ledger.post(steps, {}, "trainer").status_code == 200
    admitted = tags()
    assert {name for name in first if refused[name] != admitted[name]} == first.keys() - UNMOVED


def test_refused_read_carries_no_tag_and_head_answers_as_get_but_for_the_body(shared: SeededLedger) -> None:
    for path in ("/v1/runs/run_nothing", "/v1/runs?limit=0"):
        reply = shared.ledger.get(path, If_None_Match="*")
        assert reply.status_code in {404, 422}
        assert "etag" not in reply.headers
    for operation in READS[::6]:
        path, headers = operation.at(**shared.ids()), shared.ledger.headers("admin") | {"X-Request-Id": "mine"}
        whole, head = (shared.ledger.http.request(method, path, headers=headers) for method in ("GET", "HEAD"))
        assert (whole.status_code, head.status_code, head.content) == (200, 200, b""), operation.id
        assert head.headers == whole.headers
    reply = shared.ledger.http.head(f"/v1/runs/{shared.run}/steps", headers=shared.ledger.headers("admin"))
    assert (reply.status_code, reply.headers["allow"], reply.content) == (405, "POST", b"")
