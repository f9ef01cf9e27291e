"""Who did something: pages name keys and people with their role, and have the id at hand."""

import re
from datetime import UTC, datetime, timedelta

import pytest
from sqlalchemy import event, update

from app.persistence.database import ALL_TENANTS
from app.persistence.tables import api_keys
from app.service.actors import ActorLabel, label_of, read_actors
from app.service.auth.authentication import authenticate
from app.service.auth.request_context import RequestContext
from app.service.governance.api_keys import SHOWN_AFTER_EXPIRY
from tests.conftest import Ledger
from tests.dashboard.html_reader import visit, words
from tests.dashboard.oidc_flow import OidcFlow
from tests.login_helpers import signed_in
from tests.service.test_queries import call_of

RAISED = {"limit": {"epsilon": 2.0, "delta": 1e-5}, "reason": "More is needed."}


def issue(ledger: Ledger, name: str, role: str) -> str:
    """A further key, by a name of its own; its id."""
    made = ledger.post("/v1/api-keys", {"name": name, "role": role})
    assert made.status_code == 201, made.text
    ledger.keys["hospital", name] = made.json()["key"]
    return str(made.json()["id"])


@pytest.fixture
def busy(ledger: Ledger) -> tuple[Ledger, dict[str, str]]:
    """Keys with names that have planned, trained and been refused; their ids by name."""
    ids = {name: issue(ledger, name, role) for name, role in (("Dana", "planner"), ("icu jobs", "trainer"))}
    ledger.population()
    budget = ledger.budget()
    run = ledger.post("/v1/runs", {"name": "model", "budget": "mimic/icu-team"}, "icu jobs").json()["id"]
    steps = {"event": {"type": "gaussian", "noise_multiplier": 0.5}}
    assert ledger.post(f"/v1/runs/{run}/steps", steps, "icu jobs").status_code == 403
    proposed = ledger.post(f"/v1/accounts/{budget['id']}/limit", RAISED, "Dana", If_Match="*")
    assert proposed.status_code in {201, 202}, proposed.text
    [refused] = ledger.get(f"/v1/decisions?run={run}").json()["items"]
    return ledger, ids | {"run": run, "position": str(refused["position"])}


def test_pages_name_keys_with_their_roles_and_have_the_id_on_hover(busy: tuple[Ledger, dict[str, str]]) -> None:
    ledger, ids = busy
    cookie = signed_in(ledger, "admin")
    for path, name, role in (
        ("/audit", "Dana", "planner"),
        ("/approvals", "Dana", "planner"),
        ("/decisions", "icu jobs", "trainer"),
        (f"/decisions/{ids['run']}/{ids['position']}", "icu jobs", "trainer"),
        (f"/runs/{ids['run']}", "icu jobs", "trainer"),
    ):
        page = visit(ledger, path, cookie)
        assert page.status_code == 200, path
        assert f"{name} ({role})" in words(page), path
        assert f'title="{ids[name]}"' in page.text, path


def test_a_revoked_key_keeps_its_name(busy: tuple[Ledger, dict[str, str]]) -> None:
    ledger, ids = busy
    assert ledger.post(f"/v1/api-keys/{ids['Dana']}/revoke", {}).status_code == 200
    audit = words(visit(ledger, "/audit", signed_in(ledger, "admin")))
    assert "Dana (planner)" in audit
    assert "revoked the key Dana" in audit


def test_a_refusal_names_who_changed_the_limit(busy: tuple[Ledger, dict[str, str]]) -> None:
    ledger, ids = busy
    officer = issue(ledger, "Olga", "privacy_officer")
    [budget] = ledger.get("/v1/budgets").json()["items"]
    lowered = {"limit": {"epsilon": 0.5, "delta": 1e-5}, "reason": "Less is enough."}
    assert ledger.post(f"/v1/accounts/{budget['id']}/limit", lowered, "Olga", If_Match="*").status_code in {200, 201}
    steps = {"event": {"type": "gaussian", "noise_multiplier": 0.5}}
    assert ledger.post(f"/v1/runs/{ids['run']}/steps", steps, "icu jobs").status_code == 403
    for path in ("/decisions", f"/runs/{ids['run']}"):
        text = words(visit(ledger, path, signed_in(ledger, "viewer")))
        assert "UTC by Olga (privacy officer)" in text, path
        assert officer not in text


def test_people_have_the_name_that_the_provider_told(flow: OidcFlow) -> None:
    flow.provider.said = {"name": "Marie Curie"}
    assert flow.come_back().status_code == 303
    assert "Marie Curie" in flow.browser.get("/").text
    audit = words(visit(flow.ledger, "/audit", signed_in(flow.ledger, "admin")))
    assert re.search(r"Marie Curie \(privacy officer\) signed in", audit), audit
    assert "oidc:marie" in flow.browser.get("/").text
    found = flow.ledger.post("/v1/verifications", {})
    assert found.json()["sound"] is True, found.text


def test_actors_without_a_name_are_short() -> None:
    assert label_of("cli") == ActorLabel("cli", "command line")
    assert label_of("unauthenticated").name == "not signed in"
    assert label_of("key_1a2124616d8dac9368af5f457a4").name == "key …f457a4"
    assert label_of("oidc:dana@hospital.example").name == "dana@hospital.example"


def test_all_actors_of_a_page_are_one_statement(ledger: Ledger) -> None:
    ids = [issue(ledger, f"key-{number}", "viewer") for number in range(5)]
    call = call_of(ledger)
    asked: list[str] = []
    event.listen(ledger.database.engine, "before_cursor_execute", lambda *given: asked.append(given[2]))
    found = read_actors(call, [*ids, "cli"])
    assert [found[each].name for each in ids] == [f"key-{number}" for number in range(5)]
    assert len([each for each in asked if "FROM api_keys" in each]) == 1
    assert len([each for each in asked if each.startswith("SELECT")]) <= 2


def test_keys_of_other_organisations_have_no_name(ledger: Ledger) -> None:
    key = issue(ledger, "secret project", "viewer")
    stranger = RequestContext(
        ledger.database,
        authenticate(ledger.database, ledger.headers("viewer", "clinic")["Authorization"], datetime.now(UTC)),
        datetime.now(UTC),
    )
    assert read_actors(call_of(ledger), [key])[key].name == "secret project"
    assert read_actors(stranger, [key])[key] == label_of(key)


def test_keys_of_past_jobs_are_listed_when_asked_for_and_name_who_did_something(
    busy: tuple[Ledger, dict[str, str]],
) -> None:
    ledger, ids = busy
    now = datetime.now(UTC)
    for name, age in (("icu jobs", SHOWN_AFTER_EXPIRY + timedelta(hours=1)), ("Dana", SHOWN_AFTER_EXPIRY / 2)):
        with ledger.database.write(ALL_TENANTS) as tx:
            tx.execute(
                update(api_keys)
                .where(api_keys.c.id == ids[name])
                .values(created_by="workload:ci:main", expires_at=now - age)
            )
    cookie = signed_in(ledger, "admin")
    shown, every = visit(ledger, "/keys", cookie).text, visit(ledger, "/keys?past=true", cookie).text
    assert ids["icu jobs"] not in shown
    assert ids["icu jobs"] in every
    assert ids["Dana"] in shown
    assert "icu jobs (trainer)" in words(visit(ledger, "/decisions", cookie))
    listed = [key["id"] for key in ledger.get("/v1/api-keys", "admin").json()["items"]]
    assert {ids["icu jobs"], ids["Dana"]} <= set(listed)
