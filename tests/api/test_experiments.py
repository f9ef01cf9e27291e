"""Sweeps: charged run by run under a budget of their own, or all at once before the first trial."""

from dataclasses import replace
from typing import Any

import pytest

from tests.api.conftest import LIMIT, SeededLedger, furnish
from tests.api.trainer import LOUD, audited, gaussian, is_refused, issue
from tests.conftest import Ledger
from tests.epsilons import tightest
from tests.persistence.dump import changed

TRIALS = {"events": [{"event": LOUD, "count": 5}], "mean": 4.0}
EVENT = {"type": "repeat_and_select", "event": {"type": "self_composed", "event": LOUD, "count": 5}, "mean": 4.0}
AT_ONCE = {"name": "rates", "budget": "donors/lab", "charging_mode": "repeat_and_select", "trials": TRIALS}
ONE_BY_ONE = {"name": "widths", "budget": "donors/lab", "charging_mode": "each_run"}


def _extended(ledger: Ledger) -> SeededLedger:
    """A seeded ledger with a second population, of which nobody has lost anything yet."""
    seeded = furnish(ledger)
    ledger.population("donors", limit={"epsilon": 8.0, "delta": 1e-5})
    return replace(seeded, budget=str(ledger.budget("lab", "donors", limit={"epsilon": 4.0, "delta": 1e-5})["id"]))


FURNISHED = {"seeded": _extended}


def declared(ledger: Ledger, body: dict[str, Any], who: str = "admin", **headers: str) -> dict[str, Any]:
    return dict(ledger.post("/v1/experiments", body, who, **headers).raise_for_status().json())


def read(ledger: Ledger, experiment: str) -> dict[str, Any]:
    return dict(ledger.get(f"/v1/experiments/{experiment}").json())


def test_runs_of_an_experiment_are_charged_one_by_one_and_read_as_one(seeded: SeededLedger) -> None:
    ledger = seeded.ledger
    made = declared(ledger, ONE_BY_ONE)
    assert (made["charging_mode"], made["run"], made["event"], made["trials"]) == ("each_run", None, None, None)
    assert (made["path"], made["budget"], made["runs"]) == ("donors/lab/widths", seeded.budget, 0)
    spent = []
    for name in ("narrow", "wide"):
        run = ledger.run("donors/lab/widths", name=name, event=LOUD)
        assert ledger.post(f"/v1/runs/{run}/steps", {"count": 3}, "trainer").status_code == 200
        spent.append(read(ledger, made["id"])["epsilon"])
    found = read(ledger, made["id"])
    assert found["runs"] == 2
    assert 0 < spent[0] < spent[1] == found["epsilon"]
    listed = ledger.get(f"/v1/runs?budget={found['account']}").json()["items"]
    assert [run["name"] for run in listed] == ["wide", "narrow"]
    assert ledger.get(f"/v1/budgets/{found['account']}").json()["epsilon"] == found["epsilon"]


def test_experiment_is_no_disjoint_part(seeded: SeededLedger) -> None:
    """Else a trainer, who opens no budgets, had as many parts as wanted, each as large as the whole."""
    ledger = seeded.ledger
    answer = "Each donor gives at one site; the sites were fixed beforehand."
    ledger.budget("sites", "donors", composition="parallel", attestation=answer)
    ledger.budget("north", "donors/sites")
    before = seeded.rows()
    refused = ledger.post("/v1/experiments", ONE_BY_ONE | {"budget": "donors/sites"}, "trainer")
    assert "disjoint" in is_refused(refused, 422, "invalid_request")["detail"]
    assert seeded.rows() == before
    made = declared(ledger, ONE_BY_ONE | {"budget": "donors/sites/north"}, "trainer")
    assert made["path"] == "donors/sites/north/widths"


def test_whole_sweep_is_charged_before_its_first_trial(seeded: SeededLedger) -> None:
    ledger = seeded.ledger
    before = ledger.get(f"/v1/budgets/{seeded.budget}").json()
    made = declared(ledger, AT_ONCE)
    assert made["event"] == EVENT | {"shape": 1.0}
    assert (made["runs"], made["status"], made["account"]) == (1, "completed", made["run"])
    assert made["trials"] >= 1
    after = ledger.get(f"/v1/budgets/{seeded.budget}").json()
    assert after["epsilon"] > before["epsilon"]
    run = ledger.get(f"/v1/runs/{made['run']}").json()
    assert (run["next_step"], run["expected_steps"], run["event"]) == (1, 1, made["event"])
    priced = ledger.post("/v1/accounting/epsilon", {"events": [{"event": made["event"]}], "delta": run["delta"]}).json()
    assert run["epsilon"] == pytest.approx(priced["epsilon"], rel=1e-3)
    assert run["epsilon"] == tightest((made["event"], 1))
    single = ledger.post("/v1/accounting/epsilon", {"events": TRIALS["events"], "delta": run["delta"]}).json()
    assert priced["epsilon"] > single["epsilon"]
    assert seeded.sound()


def test_number_of_trials_is_answered_once(seeded: SeededLedger) -> None:
    made = declared(seeded.ledger, AT_ONCE, Idempotency_Key="sweep")
    again = seeded.ledger.post("/v1/experiments", AT_ONCE, Idempotency_Key="sweep")
    assert (again.status_code, again.json(), again.headers["Idempotent-Replayed"]) == (201, made, "true")
    another = seeded.ledger.post("/v1/experiments", AT_ONCE, "trainer", Idempotency_Key="sweep")
    is_refused(another, 422, "idempotency_key_reused")
    for path in (f"experiments/{made['id']}", "experiments", "audit-events", f"runs/{made['run']}/history"):
        assert "trials" not in seeded.ledger.get(f"/v1/{path}").text


def test_sweep_that_does_not_fit_leaves_nothing_but_the_audit_event(seeded: SeededLedger) -> None:
    before = seeded.rows()
    loud = AT_ONCE | {"trials": TRIALS | {"events": [{"event": gaussian(0.5), "count": 9}]}}
    refused = is_refused(seeded.ledger.post("/v1/experiments", loud), 403, "budget_exceeded")
    assert refused["max_steps_that_fit"] == 0
    assert changed(before, seeded.rows()) == {"audit_entries"}
    [event] = audited(seeded.ledger, "action=experiment.refused")
    assert (event["subject"], event["after"]["used_requested"]) == (seeded.budget, refused["used_requested"])
    assert seeded.sound()
    pinned, same = (seeded.ledger.post("/v1/experiments", loud, Idempotency_Key="again") for _ in range(2))
    assert (pinned.status_code, same.status_code, same.content) == (403, 403, pinned.content)


def _waiting(ledger: Ledger) -> tuple[dict[str, Any], str]:
    """A sweep that waits for an approval, and its proposal."""
    assert ledger.set_policy({"approval_above_epsilon": 0.01}).status_code == 200
    made = declared(ledger, AT_ONCE)
    [waiting] = ledger.get("/v1/proposals?status=open&account=" + made["run"]).json()["items"]
    assert waiting["kind"] == "run"
    return made, f"/v1/proposals/{waiting['id']}/approve"


def test_sweep_above_the_threshold_is_charged_when_it_is_approved(seeded: SeededLedger) -> None:
    """And nobody knows before how many trials it has: they could withdraw it until the number is convenient."""
    ledger = seeded.ledger
    made, approve = _waiting(ledger)
    assert (made["status"], made["epsilon"], made["trials"]) == ("pending", 0.0, None)
    charge = f"/v1/experiments/{made['id']}/charge"
    before = seeded.rows()
    is_refused(ledger.post(charge, None, "trainer"), 409, "run_state_conflict")
    assert seeded.rows() == before
    assert ledger.post(approve, {}, "privacy_officer").status_code == 200
    charged = ledger.post(charge, None, "trainer", Idempotency_Key="c").json()
    assert charged["trials"] >= 1
    assert read(ledger, made["id"])["epsilon"] == charged["epsilon"] > 0
    assert ledger.post(charge, None, "trainer", Idempotency_Key="c").json() == charged
    for again in (ledger.post(charge, None, "trainer"), ledger.post(charge, None, "admin", Idempotency_Key="c")):
        assert again.status_code in {409, 422}
    is_refused(ledger.post(f"/v1/experiments/{seeded.experiment}/charge", None, "trainer"), 422, "invalid_request")
    assert seeded.sound()


def test_run_of_an_approved_sweep_takes_nothing_but_its_charge(seeded: SeededLedger) -> None:
    """It was approved with what the sweep costs; steps could go on as far as the budget allows."""
    ledger = seeded.ledger
    made, approve = _waiting(ledger)
    assert ledger.post(approve, {}, "privacy_officer").status_code == 200
    before, run = seeded.rows(), f"/v1/runs/{made['run']}"
    bodies: list[dict[str, Any]] = [{}, {"event": LOUD}, {"first_step": 0}]
    for path, asked in (
        *((f"{run}/steps", body) for body in bodies),
        *((f"{run}/steps?dry_run=true", body) for body in bodies),
        (f"{run}/reservations", {"events": [{"event": LOUD, "count": 1}]}),
        (f"{run}/attempts", {}),
    ):
        assert "/charge" in is_refused(ledger.post(path, asked, "trainer"), 409, "run_state_conflict")["detail"]
    assert seeded.rows() == before
    assert ledger.post(f"/v1/experiments/{made['id']}/charge", None, "trainer").json()["trials"] >= 1
    assert seeded.sound()


def test_sweep_that_does_not_fit_when_it_is_approved_is_refused_and_that_is_recorded(seeded: SeededLedger) -> None:
    ledger = seeded.ledger
    made, approve = _waiting(ledger)
    other = ledger.run("donors/lab", name="other")
    assert ledger.post(approve, {}, "privacy_officer").status_code == 200
    report = {"count": 10**6, "event": LOUD, "mode": "report"}
    assert ledger.post(f"/v1/runs/{other}/steps", report, "trainer").json()["overdrawn"]
    refused = ledger.post(f"/v1/experiments/{made['id']}/charge", None, "trainer")
    is_refused(refused, 403, "budget_exceeded")
    assert "trials" not in refused.text
    [point] = ledger.get(f"/v1/runs/{made['run']}/history").json()["points"]
    assert point["decision"] == "refused"
    assert seeded.sound()


CONTRADICTORY: list[tuple[dict[str, object], str]] = [
    ({"trials": None}, "send `trials`"),
    ({"charging_mode": "each_run"}, "leave out `trials`"),
    ({"limit": LIMIT}, "leave out `limit`"),
    ({"budgets": ["donors/lab"]}, "either `budget` or `budgets`"),
    ({"trials": TRIALS | {"mean": 0.5}}, "trials"),
    ({"trials": TRIALS | {"shape": -0.7}}, "trials"),
    ({"trials": TRIALS | {"events": []}}, "trials"),
    ({"name": "bud_1"}, "must not look like an id"),
]


def test_contradictory_experiment_is_refused(shared: SeededLedger) -> None:
    before = shared.rows()
    for change, said in CONTRADICTORY:
        body = {name: value for name, value in (AT_ONCE | change).items() if value is not None}
        refused = shared.ledger.post("/v1/experiments", body)
        assert (refused.status_code, said in refused.json()["detail"]) == (422, True), refused.text
    assert shared.rows() == before


def test_experiments_are_listed_within_reach_and_under_a_budget(seeded: SeededLedger) -> None:
    ledger = seeded.ledger
    ledger.budget("other", "mimic", limit=LIMIT)
    here = [seeded.experiment, *(declared(ledger, AT_ONCE | {"name": f"s{n}"})["id"] for n in range(2))]
    there = declared(ledger, ONE_BY_ONE | {"budget": "mimic/other"})["id"]

    def listed(query: str = "", role: str = "viewer") -> list[str]:
        return [item["id"] for item in ledger.get(f"/v1/experiments{query}", role).json()["items"]]

    assert listed() == [there, *here[::-1]]
    assert listed("?budget=mimic/other") == [there]
    page = ledger.get("/v1/experiments?limit=2").json()
    assert [item["id"] for item in page["items"]] + listed(f"?after={page['next']}") == [there, *here[::-1]]
    issue(ledger, "bound", "viewer", "mimic/other")
    assert listed(role="bound") == [there]
    statuses = [ledger.get(f"/v1/experiments/{each}", "bound").status_code for each in (here[0], there)]
    assert statuses == [403, 200]


def test_role_that_may_not_charge_declares_no_charged_sweep(seeded: SeededLedger) -> None:
    is_refused(seeded.ledger.post("/v1/experiments", AT_ONCE, "budget_admin"), 403, "permission_denied")
    assert seeded.ledger.post("/v1/experiments", ONE_BY_ONE, "budget_admin").status_code == 201


def test_statement_says_what_the_whole_sweep_has_cost(seeded: SeededLedger) -> None:
    ledger = seeded.ledger
    one_by_one, at_once = declared(ledger, ONE_BY_ONE), declared(ledger, AT_ONCE)
    chosen = [ledger.run("donors/lab/widths", name=name, event=LOUD) for name in ("narrow", "wide")]
    for run in chosen:
        assert ledger.post(f"/v1/runs/{run}/steps", {"count": 3}, "trainer").status_code == 200
    for run, made, runs in ((chosen[1], one_by_one, 2), (at_once["run"], at_once, 1)):
        said = ledger.get(f"/v1/runs/{run}/statement").json()["payload"]
        [sweep] = said["experiments"]
        found = read(ledger, made["id"])
        assert (sweep["id"], sweep["charging_mode"], sweep["runs"]) == (made["id"], made["charging_mode"], runs)
        assert (sweep["epsilon"], sweep["delta"]) == (found["epsilon"], found["delta"])
        assert made["path"] in ledger.get(f"/v1/runs/{run}/statement.html").text
    assert sweep["epsilon"] > 0
    assert ledger.get(f"/v1/runs/{seeded.run}/statement").json()["payload"]["experiments"] == []
