"""Another organisation's objects do not exist: not by id, not by path, not as a reference, not in lists."""

import httpx2
import pytest

from tests.api.answer_validation import without_request_id
from tests.api.conftest import SeededLedger
from tests.api.operations import GUARDED, NOWHERE, POSTS, Operation, valid_body
from tests.conftest import SAMPLED

LIMIT = {"epsilon": 1.0, "delta": 1e-5}
WITH_ID = [operation for operation in GUARDED if "{" in operation.path]


def _clinic(shared: SeededLedger, method: str, path: str, body: object = None, **headers: str) -> httpx2.Response:
    sent = shared.ledger.headers("admin", "clinic") | headers
    return shared.ledger.http.request(method, path, json=body, headers=sent)


@pytest.mark.parametrize("operation", WITH_ID, ids=lambda operation: operation.id)
def test_another_organisations_object_is_404_and_looks_like_nothing(shared: SeededLedger, operation: Operation) -> None:
    body = valid_body(operation)
    before = shared.rows()
    reply = _clinic(shared, operation.method, operation.at(**shared.ids()), body)
    nothing = _clinic(shared, operation.method, operation.at(**NOWHERE), body)
    assert (reply.status_code, reply.json()["code"]) == (404, "not_found")
    own_ids = shared.ids().items()
    assert without_request_id(reply) | {"detail": ""} == without_request_id(nothing) | {"detail": ""}
    detail = nothing.json()["detail"]
    for name, value in own_ids:
        detail = detail.replace(NOWHERE[name], value)
    assert reply.json()["detail"] == detail
    assert shared.rows() == before


def _references(shared: SeededLedger) -> dict[str, tuple[str, str, object]]:
    """Requests that name the hospital's objects in a body or a filter."""
    budget = {"name": "b", "limit": LIMIT}
    return {
        "parent by id": ("POST", "/v1/budgets", budget | {"parent": shared.population}),
        "parent budget by id": ("POST", "/v1/budgets", budget | {"parent": shared.budget}),
        "parent by path": ("POST", "/v1/budgets", budget | {"parent": "mimic"}),
        "parent budget by path": ("POST", "/v1/budgets", budget | {"parent": "mimic/icu-team"}),
        "scope by id": ("POST", "/v1/api-keys", {"role": "viewer", "scope": shared.run}),
        "scope by path": ("POST", "/v1/api-keys", {"role": "viewer", "scope": "mimic/icu-team"}),
        "budget by id": ("POST", "/v1/runs", {"name": "r", "budget": shared.budget}),
        "budget by path": ("POST", "/v1/runs", {"name": "r", "budget": "mimic/icu-team"}),
        "population as budget": ("POST", "/v1/runs", {"name": "r", "budget": shared.population}),
        "account by id": ("POST", "/v1/receivers", {"url": "https://alerts.example", "account": shared.budget}),
        "account by path": ("POST", "/v1/receivers", {"url": "https://alerts.example", "account": "mimic/icu-team"}),
        "filter by parent id": ("GET", f"/v1/budgets?parent={shared.population}", None),
        "filter by parent path": ("GET", "/v1/budgets?parent=mimic", None),
        "filter by budget id": ("GET", f"/v1/runs?budget={shared.budget}", None),
        "filter by budget path": ("GET", "/v1/runs?budget=mimic/icu-team", None),
        "filter by run id": ("GET", f"/v1/decisions?run={shared.run}", None),
        "filter by account id": ("GET", f"/v1/decisions?account={shared.budget}", None),
        "filter by account path": ("GET", "/v1/decisions?account=mimic", None),
    }


@pytest.mark.parametrize(
    "what",
    [
        "parent by id",
        "parent budget by id",
        "parent by path",
        "parent budget by path",
        "scope by id",
        "scope by path",
        "budget by id",
        "budget by path",
        "population as budget",
        "account by id",
        "account by path",
        "filter by parent id",
        "filter by parent path",
        "filter by budget id",
        "filter by budget path",
        "filter by run id",
        "filter by account id",
        "filter by account path",
    ],
)
def test_another_organisations_object_cannot_be_referred_to(shared: SeededLedger, what: str) -> None:
    before = shared.rows()
    reply = _clinic(shared, *_references(shared)[what])
    assert (reply.status_code, reply.json()["code"]) == (404, "not_found")
    assert shared.rows() == before


@pytest.mark.parametrize(
    "path",
    [
        *("/v1/populations", "/v1/budgets", "/v1/runs", "/v1/budgets?path=mimic/icu-team"),
        *("/v1/alerts", "/v1/receivers", "/v1/deliveries", "/v1/decisions"),
    ],
)
def test_lists_show_nothing_of_another_organisation(shared: SeededLedger, path: str) -> None:
    assert _clinic(shared, "GET", path).json() == {"items": [], "next": None}


def test_a_cursor_of_one_organisation_shows_nothing_to_another(shared: SeededLedger) -> None:
    shared.ledger.run(name="second")
    cursor = shared.ledger.get("/v1/runs?limit=1").json()["next"]
    assert cursor is not None
    assert _clinic(shared, "GET", f"/v1/runs?after={cursor}").json()["items"] == []


def test_two_organisations_may_use_the_same_names_and_keys(seeded: SeededLedger) -> None:
    population = {
        "name": "mimic",
        "privacy_unit": "patient",
        "neighboring_relation": "add_or_remove_one",
        "limit": LIMIT,
    }
    budget = {"name": "icu-team", "parent": "mimic", "limit": LIMIT}
    run = {"name": "model", "budget": "mimic/icu-team", "event": SAMPLED}
    key = {"Idempotency-Key": "the-same"}
    hospital = seeded.ledger.post("/v1/runs", run, Idempotency_Key="the-same")
    assert _clinic(seeded, "POST", "/v1/populations", population).status_code == 201
    assert _clinic(seeded, "POST", "/v1/budgets", budget).status_code == 201
    clinic = _clinic(seeded, "POST", "/v1/runs", run, **key)
    assert (hospital.status_code, clinic.status_code) == (201, 201)
    assert "idempotent-replayed" not in clinic.headers
    assert hospital.json()["id"] != clinic.json()["id"]
    steps = f"/v1/runs/{clinic.json()['id']}/steps"
    before = seeded.ledger.get(f"/v1/runs/{seeded.run}").content
    assert (
        seeded.ledger.post(f"/v1/runs/{seeded.run}/steps?dry_run=true", {}, Idempotency_Key="steps").status_code == 200
    )
    assert _clinic(seeded, "POST", steps, {}, **{"Idempotency-Key": "steps"}).json()["first_step"] == 0
    assert seeded.ledger.get(f"/v1/runs/{seeded.run}").content == before
    assert [item["name"] for item in _clinic(seeded, "GET", "/v1/budgets").json()["items"]] == ["icu-team"]


@pytest.mark.parametrize("kind", ["populations", "budgets", "runs"])
def test_an_id_opens_only_the_collection_of_its_kind(shared: SeededLedger, kind: str) -> None:
    own = {"populations": shared.population, "budgets": shared.budget, "runs": shared.run}
    for owner, account_id in own.items():
        reply = shared.ledger.get(f"/v1/{kind}/{account_id}")
        assert reply.status_code == (200 if owner == kind else 404), owner


def test_a_run_is_no_parent_and_no_budget(shared: SeededLedger) -> None:
    for parent in (shared.run, "mimic/icu-team/model"):
        budget = shared.ledger.post("/v1/budgets", {"name": "b", "parent": parent, "limit": LIMIT})
        run = shared.ledger.post("/v1/runs", {"name": "r", "budget": parent})
        assert (budget.status_code, run.status_code) == (404, 404)


def test_every_operation_that_writes_was_tried() -> None:
    tried = {"createBudget", "createRun", "createExperiment", "createApiKey", "createReceiver"} | {
        operation.id for operation in WITH_ID
    }
    stateless = {operation.id for operation in POSTS if operation.path.startswith("/v1/accounting/")}
    assert {operation.id for operation in POSTS} - tried - stateless == {
        *("createPopulation", "createCheckpoint", "createVerification"),
    }
