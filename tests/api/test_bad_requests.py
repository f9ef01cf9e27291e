"""Queries, cursors, paths and methods that are not what they should be: problems, each by its name."""

import base64

import pytest

from tests.api.conftest import SeededLedger
from tests.api.operations import DOCUMENT, GUARDED, NOWHERE, READS, Operation, valid_body

CURSORS = ["!", "x", "é", "%C3%A9", "病", "_w", "-", "====", "a b", "%00", "x" * 201, "%FF", "/w==", "\u00a0"]
LIMITS = [f"limit={value}" for value in ("0", "-1", "201", "x", "", "1.5", "NaN", "9" * 40)]
AFTER = [f"after={value}" for value in CURSORS]
QUERIES: dict[str, list[str]] = {
    "populations": [*LIMITS, *AFTER],
    "budgets": [*LIMITS, *AFTER, f"parent={'x' * 2001}", f"path={'x' * 2001}"],
    "runs": [
        *LIMITS,
        *AFTER,
        *(f"status={value}" for value in ("", "ACTIVE", "running", "active,paused", "null")),
        f"budget={'x' * 2001}",
    ],
    "decisions": AFTER,
    "runs/{run_id}/history": [
        *AFTER,
        *(f"after={value}" for value in ("LTE", "YQ", "MS41", "KzE", "IDE")),
        *(f"max_points={value}" for value in ("0", "1", "-1", "2001", "x", "", "2.5", "true")),
    ],
}


@pytest.mark.parametrize("path", QUERIES)
def test_a_bad_query_is_an_invalid_request(shared: SeededLedger, path: str) -> None:
    before = shared.rows()
    for query in QUERIES[path]:
        reply = shared.ledger.get(f"/v1/{path.format(**shared.ids())}?{query}")
        assert (reply.status_code, reply.json().get("code")) == (422, "invalid_request"), query
        assert reply.headers["content-type"] == "application/problem+json"
    assert shared.rows() == before


@pytest.mark.parametrize("value", ["", "2", "maybe", "TRUEE", "null", "1.0"])
def test_a_preview_is_asked_for_by_a_boolean(shared: SeededLedger, value: str) -> None:
    before = shared.rows()
    reply = shared.ledger.post(f"/v1/runs/{shared.run}/steps?dry_run={value}", {})
    assert (reply.status_code, reply.json().get("code")) == (422, "invalid_request")
    assert shared.rows() == before


@pytest.mark.parametrize("query", ["dryrun=true", "dry-run=true", "Dry_Run=true", "dry_run=true&dry_run=false", "x=1"])
def test_a_preview_that_is_misspelled_charges_nothing(shared: SeededLedger, query: str) -> None:
    before = shared.rows()
    reply = shared.ledger.post(f"/v1/runs/{shared.run}/steps?{query}", {})
    assert (reply.status_code, reply.json().get("code")) == (422, "invalid_request")
    assert shared.rows() == before


@pytest.mark.parametrize("operation", READS, ids=lambda operation: operation.id)
def test_a_query_that_is_not_known_is_refused(shared: SeededLedger, operation: Operation) -> None:
    reply = shared.ledger.get(f"{operation.at(**shared.ids())}?stauts=active")
    assert (reply.status_code, reply.json().get("code")) == (422, "invalid_request")


@pytest.mark.parametrize("target", ["budgets?parent=nowhere", "budgets?parent=mimic/", "runs?budget=mimic/nobody"])
def test_a_filter_for_what_is_not_there_is_404(shared: SeededLedger, target: str) -> None:
    reply = shared.ledger.get(f"/v1/{target}")
    assert (reply.status_code, reply.json()["code"]) == (404, "not_found")


@pytest.mark.parametrize("target", ["budgets?parent=%00", "budgets?path=a%00b", "runs?budget=%00"])
def test_a_filter_with_a_nul_is_refused(shared: SeededLedger, target: str) -> None:
    reply = shared.ledger.get(f"/v1/{target}")
    assert (reply.status_code, reply.json()["code"]) == (422, "invalid_request")


@pytest.mark.parametrize("position", ["1000000", "10000000000", "9" * 60])
def test_a_cursor_beyond_a_history_shows_nothing_more(shared: SeededLedger, position: str) -> None:
    cursor = base64.urlsafe_b64encode(position.encode()).decode().rstrip("=")
    reply = shared.ledger.get(f"/v1/runs/{shared.run}/history?after={cursor}")
    assert (reply.status_code, reply.json()["points"]) == (200, [])


STRANGE_IDS = ["x", "%00", "%FF", "%ED%A0%80", "é", "x" * 5000, "' OR 1=1 --", "%25", "*"]


@pytest.mark.parametrize(
    "operation", [each for each in GUARDED if "{" in each.path], ids=lambda operation: operation.id
)
def test_an_id_that_means_nothing_is_404(shared: SeededLedger, operation: Operation) -> None:
    before, whole = shared.rows(), operation.path in {"/v1/runs/{run_id}", "/v1/runs/{run_id}/steps"}
    for account_id in STRANGE_IDS if whole else STRANGE_IDS[:4]:
        reply = shared.ledger.http.request(
            operation.method,
            operation.at(**dict.fromkeys(NOWHERE, account_id)),
            json=valid_body(operation),
            headers=shared.ledger.headers(),
        )
        assert (reply.status_code, reply.json()["code"]) == (404, "not_found"), account_id
        assert reply.headers["content-type"] == "application/problem+json"
    assert shared.rows() == before


@pytest.mark.parametrize("path", ["/v1", "/v1/", "/v2/runs", "/v1/run", "/v1/runs/a/b", "/v1/runs/a/steps/1", "/.env"])
@pytest.mark.parametrize("method", ["GET", "POST", "DELETE"])
def test_a_path_that_is_not_there_is_a_problem(shared: SeededLedger, method: str, path: str) -> None:
    reply = shared.ledger.http.request(method, path, headers=shared.ledger.headers())
    assert (reply.status_code, reply.json()["code"]) == (404, "not_found")
    assert reply.headers["content-type"] == "application/problem+json"


@pytest.mark.parametrize("path", DOCUMENT["paths"])
def test_a_method_that_a_path_does_not_take_is_a_problem(shared: SeededLedger, path: str) -> None:
    before = shared.rows()
    for method in ("PUT", "PATCH", "DELETE", "TRACE", "FROB", "GET", "POST"):
        if method.lower() not in DOCUMENT["paths"][path]:
            reply = shared.ledger.http.request(method, path.format(**shared.ids()), headers=shared.ledger.headers())
            assert (reply.status_code, reply.json()["code"]) == (405, "method_not_allowed"), method
            assert reply.headers["content-type"] == "application/problem+json"
    assert shared.rows() == before


@pytest.mark.parametrize("path", DOCUMENT["paths"])
def test_a_refused_method_is_answered_with_all_that_are_taken(shared: SeededLedger, path: str) -> None:
    reply = shared.ledger.http.request("TRACE", path.format(**shared.ids()), headers=shared.ledger.headers())
    taken = {name.strip() for name in reply.headers["allow"].split(",")}
    assert taken - {"HEAD"} == {name.upper() for name in DOCUMENT["paths"][path]}
    assert reply.json()["detail"].endswith(f": Method Not Allowed; this path takes {reply.headers['allow']}")


def test_a_method_that_a_page_does_not_take_is_answered_with_those_that_it_takes(shared: SeededLedger) -> None:
    reply = shared.ledger.http.delete("/docs")
    assert (reply.status_code, reply.json()["code"]) == (405, "method_not_allowed")
    assert "GET" in reply.headers["allow"]
    assert reply.json()["detail"].endswith(f"; this path takes {reply.headers['allow']}")


@pytest.mark.parametrize("path", ["/v1/runs/", "/v1/runs/{run_id}/", "/healthz/"])
@pytest.mark.parametrize("method", ["GET", "POST"])
def test_a_path_with_a_slash_too_many_is_not_there(shared: SeededLedger, method: str, path: str) -> None:
    # A redirect would be built from the request's Host header, and a client would send its key there.
    reply = shared.ledger.http.request(
        method, path.format(**shared.ids()), headers=shared.ledger.headers(), follow_redirects=False
    )
    assert (reply.status_code, reply.headers["content-type"]) == (404, "application/problem+json")


@pytest.mark.parametrize(
    ("path", "kind", "remedy"),
    [
        (
            "/v1/populations/eicu",
            "population",
            "GET /v1/populations?name= finds a population by its name, such as mimic",
        ),
        ("/v1/budgets/icu-team", "budget", "GET /v1/budgets?path= finds a budget by its path, such as mimic/icu-team"),
        ("/v1/runs/resnet", "run", "GET /v1/runs?path= finds runs by their path, such as mimic/icu-team/model"),
        ("/v1/runs/resnet/steps", "run", "GET /v1/runs?path= finds runs by their path, such as mimic/icu-team/model"),
    ],
)
def test_a_name_in_place_of_an_id_is_told_how_to_find_the_id(
    shared: SeededLedger, path: str, kind: str, remedy: str
) -> None:
    reply = shared.ledger.post(path, {}) if path.endswith("steps") else shared.ledger.get(path)
    name = path.split("/")[3]
    assert reply.status_code == 404
    assert reply.json()["detail"] == f"There is no {kind} with the id '{name}' in your organisation; {remedy}."


def test_an_unknown_id_is_only_told(shared: SeededLedger) -> None:
    detail = shared.ledger.get("/v1/populations/pop_0").json()["detail"]
    assert detail == "There is no population with the id 'pop_0' in your organisation."
