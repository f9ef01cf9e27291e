"""Who did something: pages name keys and people with their role, and have the id at hand."""

import re
from datetime import UTC, datetime, timedelta

from sqlalchemy import event, update

from app.persistence.database import ALL_TENANTS
from app.persistence.tables import api_keys
from app.service.actors import ActorLabel, label_of, read_actors
from app.service.auth.authentication import authenticate
from app.service.auth.request_context import RequestContext
from app.service.keys.api_keys import SHOWN_AFTER_EXPIRY
from tests.conftest import Ledger
from tests.dashboard.oidc_flow import OidcFlow
from tests.dashboard.page_visitor import visitor
from tests.service.test_queries import call_of

LOUD = {"event": {"type": "gaussian", "noise_multiplier": 0.5}}


def issue(ledger: Ledger, name: str, role: str) -> str:
    """A further key, by a name of its own; its id."""
    made = ledger.post("/v1/api-keys", {"name": name, "role": role})
    assert made.status_code == 201, made.text
    ledger.keys["hospital", name] = made.json()["key"]
    return str(made.json()["id"])


def set_limit(ledger: Ledger, epsilon: float, key: str) -> None:
    [budget] = ledger.get("/v1/budgets").json()["items"]
    assert ledger.set_limit(budget["id"], epsilon, key).is_success


def work(ledger: Ledger) -> dict[str, str]:
    """Keys with names that have planned, trained and been refused; their ids, and keys, by name."""
    ids = {name: issue(ledger, name, role) for name, role in (("Dana", "planner"), ("icu jobs", "trainer"))}
    ledger.population()
    ledger.budget()
    run = ledger.post("/v1/runs", {"name": "model", "budget": "mimic/icu-team"}, "icu jobs").json()["id"]
    assert ledger.post(f"/v1/runs/{run}/steps", LOUD, "icu jobs").status_code == 403
    set_limit(ledger, 2.0, "Dana")
    [refused] = ledger.get(f"/v1/decisions?run={run}").json()["items"]
    return ids | {"run": run, "position": str(refused["position"]), "key": ledger.keys["hospital", "icu jobs"]}


FURNISHED = {"ledger": work}


def test_pages_show_names_and_roles_of_keys_and_their_ids_on_hover(ledger: Ledger, made: dict[str, str]) -> None:
    ids, admin = made, visitor(ledger, "admin")
    for path, name, role in (
        ("/audit", "Dana", "planner"),
        ("/approvals", "Dana", "planner"),
        ("/decisions", "icu jobs", "trainer"),
        (f"/decisions/{ids['run']}/{ids['position']}", "icu jobs", "trainer"),
        (f"/runs/{ids['run']}", "icu jobs", "trainer"),
    ):
        page = admin.open(path)
        assert f"{name} ({role})" in page.words, path
        assert f'title="{ids[name]}"' in page.reply.text, path
    assert ledger.post(f"/v1/api-keys/{ids['Dana']}/revoke", {}).status_code == 200
    audit = admin.open("/audit").words
    assert "Dana (planner)" in audit, "a revoked key keeps its name"
    assert "revoked the key Dana" in audit


def test_refusal_names_the_key_that_changed_the_limit(ledger: Ledger, made: dict[str, str]) -> None:
    ids, officer = made, issue(ledger, "Olga", "privacy_officer")
    set_limit(ledger, 0.5, "Olga")
    headers = {"Authorization": f"Bearer {ids['key']}"}
    assert ledger.http.post(f"/v1/runs/{ids['run']}/steps", json=LOUD, headers=headers).status_code == 403
    for path in ("/decisions", f"/runs/{ids['run']}"):
        words = visitor(ledger).open(path).words
        assert "UTC by Olga (privacy officer)" in words, path
        assert officer not in words


def test_person_has_the_name_that_provider_says(flow: OidcFlow) -> None:
    flow.provider.said = {"name": "Marie Curie"}
    assert flow.come_back().status_code == 303
    assert "Marie Curie" in flow.browser.get("/").text
    audit = visitor(flow.ledger, "admin").open("/audit").words
    assert re.search(r"Marie Curie \(privacy officer\) signed in", audit), audit
    assert "oidc:marie" in flow.browser.get("/").text
    found = flow.ledger.post("/v1/verifications", {})
    assert found.json()["sound"] is True, found.text


def test_actor_without_a_name_is_shortened() -> None:
    assert label_of("cli") == ActorLabel("cli", "command line")
    assert label_of("unauthenticated").name == "not signed in"
    assert label_of("key_1a2124616d8dac9368af5f457a4").name == "key …f457a4"
    assert label_of("oidc:dana@hospital.example").name == "dana@hospital.example"


def test_actors_of_a_page_are_read_by_one_statement(ledger: Ledger) -> None:
    ids = [issue(ledger, f"key-{number}", "viewer") for number in range(3)]
    call, asked = call_of(ledger), list[str]()
    event.listen(ledger.database.engine, "before_cursor_execute", lambda *given: asked.append(given[2]))
    found = read_actors(call, [*ids, "cli"])
    assert [found[each].name for each in ids] == [f"key-{number}" for number in range(3)]
    assert len([each for each in asked if "FROM api_keys" in each]) == 1
    assert len([each for each in asked if each.startswith("SELECT")]) <= 2
    now = datetime.now(UTC)
    token = ledger.headers("viewer", "clinic")["Authorization"]
    stranger = RequestContext(ledger.database, authenticate(ledger.database, token, now), now)
    assert read_actors(stranger, ids[:1])[ids[0]] == label_of(ids[0]), "keys of others have no name"


def test_expired_workload_key_is_listed_on_demand_and_keeps_its_name(ledger: Ledger, made: dict[str, str]) -> None:
    ids, now = made, datetime.now(UTC)
    for name, age in (("icu jobs", SHOWN_AFTER_EXPIRY + timedelta(hours=1)), ("Dana", SHOWN_AFTER_EXPIRY / 2)):
        expired = update(api_keys).where(api_keys.c.id == ids[name])
        with ledger.database.write(ALL_TENANTS) as tx:
            tx.execute(expired.values(created_by="workload:ci:main", expires_at=now - age))
    admin = visitor(ledger, "admin")
    shown, every = (admin.open(path).reply.text for path in ("/keys", "/keys?past=true"))
    assert [ids["icu jobs"] in text for text in (shown, every)] == [False, True]
    assert ids["Dana"] in shown
    assert "icu jobs (trainer)" in admin.open("/decisions").words
    listed = [key["id"] for key in ledger.get("/v1/api-keys", "admin").json()["items"]]
    assert {ids["icu jobs"], ids["Dana"]} <= set(listed)
