"""Statements: signed, complete, and plain about what they do not say."""

from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import event as hooks

from app.ledger.account_records import MOST_EVENTS
from app.service.auth.authentication import CLI_ACTOR
from app.service.ed25519 import is_signed_by
from app.service.verification import verify
from app.service.verification.requests import apply_quarantines
from tests.api.conftest import SeededLedger
from tests.conftest import SAMPLED, Ledger, open_ledger, signing_key
from tests.service.tampering import shift_curve, tampering

NOISE = {"type": "gaussian", "noise_multiplier": 80.0}


def _stated(seeded: SeededLedger, path: str) -> dict[str, Any]:
    reply = seeded.ledger.get(path)
    assert reply.status_code == 200, reply.text
    document: dict[str, Any] = reply.json()
    assert is_signed_by(document, signing_key()[1].read_bytes())
    payload: dict[str, Any] = document["payload"]
    return payload


def test_a_run_s_statement_says_what_was_done_and_what_it_cost(seeded: SeededLedger) -> None:
    steps = f"/v1/runs/{seeded.run}/steps"
    seeded.ledger.post(steps, {"count": 4}, "trainer")
    seeded.ledger.post(steps, {"event": NOISE, "count": 2}, "trainer")
    seeded.ledger.post(steps, {"count": 10**6}, "trainer")
    seeded.ledger.post(f"/v1/runs/{seeded.run}/complete", None, "trainer")
    said = _stated(seeded, f"/v1/runs/{seeded.run}/statement")
    run = seeded.ledger.get(f"/v1/runs/{seeded.run}").json()
    assert (said["run"]["status"], said["run"]["final"], said["run"]["path"]) == ("completed", True, run["path"])
    assert said["protected"] == [
        {
            "population": seeded.population,
            "name": "mimic",
            "privacy_unit": "patient",
            "neighboring_relation": "add_or_remove_one",
            "size": None,
        }
    ]
    assert [(each["event"], each["count"]) for each in said["mechanisms"]] == [(SAMPLED, 5), (NOISE, 2)]
    assert (said["steps"], said["mechanisms_in_all"]) == (7, 2)
    assert said["decisions"] == {"admitted": 3, "refused": 1}
    assert said["loss"]["limit"] == {"epsilon": 1.0, "delta": 1e-5}
    assert said["loss"]["epsilon_by_filter"] == run["epsilon"]
    assert said["loss"]["epsilon_rdp"] == run["epsilon_rdp"]
    assert said["loss"]["epsilon_rdp"] <= said["loss"]["epsilon_by_filter"]
    assert [account["path"] for account in said["accounts"]] == ["mimic", "mimic/icu-team"]
    history = seeded.ledger.get(f"/v1/runs/{seeded.run}/history").json()
    assert (said["chain"]["decisions"], said["chain"]["head"]) == (4, history["points"][-1]["hash"])
    assert said["versions"]["grid"] == 1
    assert said["covered"]
    assert said["not_covered"]


def test_a_population_s_statement_names_every_model(seeded: SeededLedger) -> None:
    other = seeded.ledger.run(name="other")
    seeded.ledger.post(f"/v1/runs/{other}/steps", {"count": 3}, "trainer")
    idle = seeded.ledger.run(name="idle")
    said = _stated(seeded, f"/v1/populations/{seeded.population}/statement")
    assert {run["id"] for run in said["runs"]} == {seeded.run, other}
    assert idle not in str(said["runs"])
    assert said["runs_in_all"] == 2
    population = seeded.ledger.get(f"/v1/populations/{seeded.population}").json()
    assert said["loss"]["epsilon_by_filter"] == population["epsilon"]
    assert said["loss"]["limit"] == population["limit"]


def test_no_statement_says_of_more_than_the_limit_that_nothing_went_past_it(seeded: SeededLedger) -> None:
    assert "no step went past it" in _stated(seeded, f"/v1/runs/{seeded.run}/statement")["loss"]["guarantee"]
    report = {"count": 10**5, "mode": "report"}
    assert seeded.ledger.post(f"/v1/runs/{seeded.run}/steps", report, "trainer").json()["overdrawn"]
    for path in (f"runs/{seeded.run}", f"populations/{seeded.population}"):
        loss = _stated(seeded, f"/v1/{path}/statement")["loss"]
        assert loss["epsilon_by_filter"] > loss["limit"]["epsilon"]
        assert "At the limit nothing is proven" in loss["guarantee"]
        assert "fixed beforehand" not in seeded.ledger.get(f"/v1/{path}/statement.html").text


@pytest.mark.parametrize(
    ("epsilon", "said"), [(0.99, "each that was in force"), (0.1, "At the limit nothing is proven")]
)
def test_a_statement_says_that_the_limit_was_changed(seeded: SeededLedger, epsilon: float, said: str) -> None:
    seeded.ledger.post(f"/v1/runs/{seeded.run}/steps", {"count": 50}, "trainer")
    lowered = {"limit": {"epsilon": epsilon, "delta": 1e-5}, "reason": "The study is over."}
    path = f"/v1/accounts/{seeded.budget}/limit"
    assert seeded.ledger.post(path, lowered, "budget_admin", If_Match="*").status_code == 200
    loss = _stated(seeded, f"/v1/runs/{seeded.run}/statement")["loss"]
    assert (loss["limit_revision"], loss["limit"]["epsilon"]) == (1, epsilon)
    assert said in loss["guarantee"]
    assert "fixed beforehand" not in loss["guarantee"]


def test_a_changed_statement_is_not_signed(seeded: SeededLedger) -> None:
    document = seeded.ledger.get(f"/v1/runs/{seeded.run}/statement").json()
    document["payload"]["loss"]["epsilon_by_filter"] /= 2
    assert not is_signed_by(document, signing_key()[1].read_bytes())


@pytest.mark.parametrize("what", ["runs", "populations"])
def test_the_page_says_the_same_and_lets_nothing_through(seeded: SeededLedger, what: str) -> None:
    evil = "<img src=x onerror=alert(1)>"
    run = seeded.ledger.run(name=evil)
    seeded.ledger.post(f"/v1/runs/{run}/steps", {}, "trainer")
    thing = run if what == "runs" else seeded.population
    page = seeded.ledger.get(f"/v1/{what}/{thing}/statement.html")
    assert page.headers["content-type"] == "text/html; charset=utf-8"
    assert "<img" not in page.text
    assert "&lt;img src=x" in page.text
    for words in ("fixed beforehand", "Not covered", "Signature", "patient"):
        assert words in page.text


def test_the_plan_is_stated_with_what_is_used_of_it(ledger: Ledger) -> None:
    planned: dict[str, Any] = ledger.population(planned=[{"event": SAMPLED}])
    ledger.budget()
    run = ledger.run()
    ledger.post(f"/v1/runs/{run}/steps", {"count": 5}, "trainer")
    path = f"/v1/populations/{planned['id']}/statement"
    steps = planned["plan"]["steps"]
    used = {"state": "active", "delta": planned["plan"]["delta"], "steps": steps, "steps_used": 5}
    assert ledger.get(path).json()["payload"]["loss"]["plan"] == used | {"steps_left": steps - 5}
    assert f"active: 5 of {steps} steps used, {steps - 5} left" in ledger.get(f"{path}.html").text
    assert ledger.get(f"/v1/runs/{run}/statement").json()["payload"]["loss"]["plan"] is None


def test_nothing_is_stated_about_a_balance_that_is_not_proven(seeded: SeededLedger) -> None:
    with tampering(seeded.ledger.database) as tx:
        shift_curve(tx, "mimic", 1)
    found = apply_quarantines(seeded.ledger.database, verify(seeded.ledger.database), CLI_ACTOR, datetime.now(UTC))
    assert not found.sound
    for path in (f"/v1/runs/{seeded.run}/statement", f"/v1/populations/{seeded.population}/statement"):
        reply = seeded.ledger.get(path)
        assert (reply.status_code, reply.json()["code"]) == (409, "account_quarantined")


def test_without_a_key_nothing_is_stated(tmp_path: Path) -> None:
    with open_ledger(tmp_path, signing_key_file="") as ledger:
        ledger.population()
        ledger.budget()
        reply = ledger.get(f"/v1/runs/{ledger.run()}/statement")
        assert (reply.status_code, reply.json()["code"]) == (409, "signing_not_configured")


def test_a_statement_is_of_what_one_may_read(seeded: SeededLedger) -> None:
    seeded.ledger.budget("other")
    key = seeded.ledger.post("/v1/api-keys", {"role": "viewer", "scope": "mimic/other"}).json()["key"]
    for path in (f"/v1/runs/{seeded.run}/statement", f"/v1/populations/{seeded.population}/statement.html"):
        reply = seeded.ledger.http.get(path, headers={"Authorization": f"Bearer {key}"})
        assert (reply.status_code, reply.json()["code"]) == (403, "insufficient_scope")


def test_a_run_of_several_populations_names_the_people_of_each(seeded: SeededLedger) -> None:
    for name, size in (("north", 900), ("south", 400)):
        seeded.ledger.population(name, size=size)
        seeded.ledger.budget("team", name)
    body = {"name": "both", "budgets": ["north/team", "south/team"], "event": SAMPLED}
    run = seeded.ledger.post("/v1/runs", body).json()["id"]
    assert seeded.ledger.post(f"/v1/runs/{run}/steps", {}, "trainer").status_code == 200
    said = _stated(seeded, f"/v1/runs/{run}/statement")
    assert {(each["name"], each["size"]) for each in said["protected"]} == {("north", 900), ("south", 400)}
    page = seeded.ledger.get(f"/v1/runs/{run}/statement.html").text
    assert "<td>north</td>" in page
    assert "<td>south</td>" in page
    south = seeded.ledger.get("/v1/populations?limit=200").json()["items"][0]
    assert (south["name"], [run]) == (
        "south",
        [each["id"] for each in _stated(seeded, f"/v1/populations/{south['id']}/statement")["runs"]],
    )


def test_a_population_s_statement_costs_no_query_more_for_more_runs(seeded: SeededLedger) -> None:
    def asked() -> int:
        seen: list[str] = []

        def note(_: object, __: object, statement: str, *___: object) -> None:
            if statement.startswith("SELECT") and "api_keys" not in statement:  # who asks is looked up now and then
                seen.append(statement)

        engine = seeded.ledger.database.engine
        hooks.listen(engine, "before_cursor_execute", note)
        shown = {run["id"]: run for run in _stated(seeded, f"/v1/populations/{seeded.population}/statement")["runs"]}
        hooks.remove(engine, "before_cursor_execute", note)
        runs = {run["id"]: run for run in seeded.ledger.get("/v1/runs?limit=200").json()["items"]}
        for name, said in shown.items():
            assert {each: runs[name][each] for each in ("path", "status", "epsilon")} == {
                each: said[each] for each in ("path", "status", "epsilon")
            }
        assert list(shown) == sorted(shown, reverse=True)
        return len(seen)

    def trained(budget: str, noise: float) -> None:
        """A run whose curve was not written since its one step, of an event that no other run has."""
        run, event = seeded.ledger.run(budget), {"type": "gaussian", "noise_multiplier": noise}
        assert seeded.ledger.post(f"/v1/runs/{run}/steps", {"event": event}, "trainer").status_code == 200

    seeded.ledger.budget("deep", "mimic/icu-team")
    trained("mimic/icu-team", 80.0)
    few = asked()
    for further in range(MOST_EVENTS // 2 + 1):  # more than an account above counts: its curve has been written since
        trained("mimic/icu-team", 90.0 + further)
        trained("mimic/icu-team/deep", 190.0 + further)
    assert asked() == few
