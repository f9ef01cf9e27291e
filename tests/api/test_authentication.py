"""Who asks: every endpoint but health and the documentation needs a key of this ledger."""

import pytest
from fastapi.routing import iter_route_contexts

from app.main import DASHBOARD_ROUTERS
from tests.api.answer_validation import without_request_id
from tests.api.conftest import SeededLedger
from tests.api.operations import APP, DOCUMENT, GUARDED, NOWHERE, OPERATIONS, PUBLIC, Operation
from tests.each import for_each
from tests.persistence.dump import changed

by_operation = pytest.mark.parametrize("operation", GUARDED, ids=lambda operation: operation.id)


def _strangers(shared: SeededLedger) -> dict[str, str | None]:
    """Values of the header Authorization that open nothing."""
    key_id, _, secret = shared.ledger.keys["hospital", "admin"].partition(".")
    other_id = shared.ledger.keys["clinic", "admin"].partition(".")[0]
    return {
        "none": None,
        "empty": "",
        "scheme alone": "Bearer",
        "scheme and space": "Bearer ",
        "no key": "Bearer nonsense",
        "unknown key": f"Bearer key_0123456789abcdef.{secret}",
        "id without secret": f"Bearer {key_id}",
        "id and dot": f"Bearer {key_id}.",
        "secret without id": f"Bearer .{secret}",
        "wrong secret": f"Bearer {key_id}.{secret[::-1]}",
        "shortened secret": f"Bearer {key_id}.{secret[:-1]}",
        "lengthened secret": f"Bearer {key_id}.{secret}x",
        "secret in capitals": f"Bearer {key_id}.{secret.swapcase()}",
        "another key's id": f"Bearer {other_id}.{secret}",
        "two keys": f"Bearer {key_id}.{secret}, {key_id}.{secret}",
        "another scheme": f"Basic {key_id}.{secret}",
        "no scheme": f"{key_id}.{secret}",
        "a wildcard": "Bearer %.%",
        "not ascii": "Bearer kéy.sécret",
    }


@by_operation
def test_an_operation_is_closed_to_whoever_has_no_key(shared: SeededLedger, operation: Operation) -> None:
    before = shared.rows()
    strangers = _strangers(shared)
    all_of_them = operation.path in {"/v1/runs", "/v1/runs/{run_id}/steps"}
    for name in strangers if all_of_them else ("none", "no key", "wrong secret", "another key's id"):
        value = strangers[name]
        headers = {} if value is None else {b"Authorization": value.encode("latin-1")}
        reply = shared.ledger.http.request(operation.method, operation.at(**shared.ids()), headers=headers)
        assert reply.status_code == 401, name
        assert reply.json()["code"] == "unauthenticated", name
        assert reply.headers["content-type"] == "application/problem+json", name
        assert reply.headers["www-authenticate"] == "Bearer", name
    assert changed(before, shared.rows()) <= {"audit_entries"}  # a key of ours that was tried and opened nothing


@by_operation
def test_a_stranger_learns_nothing_from_the_body_it_sends_nor_what_there_is(
    shared: SeededLedger, operation: Operation
) -> None:
    for body in (b"{", b'{"unknown": 1}', b"x" * (2 << 20)):
        reply = shared.ledger.http.request(operation.method, operation.at(**shared.ids()), content=body)
        assert (reply.status_code, reply.json()["code"]) == (401, "unauthenticated")
    nothing = operation.at(**NOWHERE)
    answers = [shared.ledger.http.request(operation.method, path) for path in (nothing, operation.at(**shared.ids()))]
    assert without_request_id(answers[0]) == without_request_id(answers[1])


@for_each(GUARDED, lambda operation: operation.id)
def test_an_operation_says_in_the_document_that_it_needs_a_key(operation: Operation) -> None:
    assert operation.described.get("security", DOCUMENT["security"]) == [{"ApiKey": []}]
    assert "401" in operation.described["responses"]


@pytest.mark.parametrize("scheme", ["Bearer", "bearer", "BEARER"])
def test_the_scheme_is_read_without_regard_to_case(shared: SeededLedger, scheme: str) -> None:
    headers = {"Authorization": f"{scheme} {shared.ledger.keys['hospital', 'viewer']}"}
    assert shared.ledger.http.get("/v1/runs", headers=headers).status_code == 200


@pytest.mark.parametrize("path", sorted(PUBLIC - {"/metrics"}))
def test_health_needs_no_key(shared: SeededLedger, path: str) -> None:
    reply = shared.ledger.http.get(path)
    assert (reply.status_code, reply.json()) == (200, {"status": "ok"})


def test_the_document_knows_every_route() -> None:
    documented = {(operation.method, operation.path) for operation in OPERATIONS}
    routed = {(method, route.path) for route in iter_route_contexts(APP.routes) for method in route.methods or ()}
    pages = {
        (method, route.path)
        for module in DASHBOARD_ROUTERS
        for route in iter_route_contexts(module.routes.routes)
        for method in route.methods or ()
    }
    assert not [path for _, path in pages if path is None or path.startswith("/v1")]
    assert {(method, path) for method, path in routed if method != "HEAD"} == documented | pages | {
        ("GET", path) for path in ("/docs", "/openapi.json")
    }
    assert {path for _, path in documented if not path.startswith("/v1/")} == PUBLIC


def test_a_key_of_one_organisation_does_not_open_the_other(shared: SeededLedger) -> None:
    for role in ("viewer", "trainer", "admin"):
        assert shared.ledger.get("/v1/runs", role, "clinic").json()["items"] == []
        assert len(shared.ledger.get("/v1/runs", role, "hospital").json()["items"]) == 1
