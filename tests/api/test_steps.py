"""Taking steps: the arithmetic of admission, seen from outside."""

from typing import Any

import pytest

from app.persistence.database import ALL_TENANTS
from app.persistence.repositories.accounts import list_all
from tests.api.conftest import SeededLedger
from tests.conftest import SAMPLED, Ledger
from tests.persistence.dump import changed

GAUSSIAN = {"type": "gaussian", "noise_multiplier": 60.0}
ADMITTED = {
    *("decision", "run", "first_step", "count", "next_step", "epsilon", "delta", "epsilon_limit"),
    *("steps_remaining", "binding_account", "binding_account_path", "dry_run"),
    *("attempt", "requested_count", "overdrawn", "reservation", "ended_plans"),
}


@pytest.fixture(params=[[], [{"event": SAMPLED}]], ids=["orders", "plan"])
def planned(request: pytest.FixtureRequest) -> list[dict[str, Any]]:
    """What population and budget have planned."""
    items: list[dict[str, Any]] = request.param
    return items


@pytest.fixture
def fresh(ledger: Ledger, planned: list[dict[str, Any]]) -> SeededLedger:
    """A seeded ledger in which nothing was spent."""
    population = ledger.population(planned=planned)
    budget = ledger.budget(planned=planned)
    return SeededLedger(ledger, str(population["id"]), str(budget["id"]), ledger.run())


def _take(seeded: SeededLedger, body: dict[str, Any], query: str = "", **headers: str) -> dict[str, Any]:
    reply = seeded.ledger.post(f"/v1/runs/{seeded.run}/steps{query}", body, "trainer", **headers)
    assert reply.status_code in {200, 403}, reply.text
    answer: dict[str, Any] = reply.json()
    return answer


def _read(seeded: SeededLedger) -> dict[str, Any]:
    run: dict[str, Any] = seeded.ledger.get(f"/v1/runs/{seeded.run}").json()
    return run


def test_every_admission_adds_up(fresh: SeededLedger, planned: list[dict[str, Any]]) -> None:
    epsilon, next_step = 0.0, 0
    remaining = _read(fresh)["steps_remaining"]
    for count in (1, 1, 5, 1, 20, 1):
        answer = _take(fresh, {"count": count})
        assert set(answer) == ADMITTED
        assert (answer["decision"], answer["run"], answer["dry_run"]) == ("admitted", fresh.run, False)
        assert (answer["first_step"], answer["count"]) == (next_step, count)
        next_step += count
        remaining -= count
        assert (answer["next_step"], answer["steps_remaining"]) == (next_step, remaining)
        assert epsilon <= answer["epsilon"] <= answer["epsilon_limit"] == 1.0
        assert epsilon < answer["epsilon"] or planned  # a plan's epsilon rises in steps
        epsilon = answer["epsilon"]
        read = _read(fresh)
        same = ("epsilon", "delta", "epsilon_limit", "next_step", "steps_remaining", "binding_account")
        assert {key: read[key] for key in same} == {key: answer[key] for key in same}


def test_the_last_step_that_remains_is_admitted_and_none_after_it(fresh: SeededLedger) -> None:
    remaining = _read(fresh)["steps_remaining"]
    almost = _take(fresh, {"count": remaining - 1})
    assert (almost["decision"], almost["steps_remaining"]) == ("admitted", 1)
    last = _take(fresh, {})
    assert (last["decision"], last["steps_remaining"]) == ("admitted", 0)
    refused = _take(fresh, {})
    assert (refused["decision"], refused["max_count_that_fits"]) == ("refused", 0)
    assert _read(fresh)["epsilon"] == last["epsilon"]
    for path in (f"/v1/budgets/{fresh.budget}", f"/v1/populations/{fresh.population}"):
        account = fresh.ledger.get(path).json()
        assert 0 < account["epsilon"] <= account["limit"]["epsilon"]


@pytest.mark.both_databases
def test_a_charge_is_carried_by_the_whole_path_and_by_nobody_else(seeded: SeededLedger) -> None:
    sibling = seeded.ledger.budget("sibling")
    cousin = seeded.ledger.run(name="cousin")
    aside = seeded.ledger.population("aside")
    paths = [f"/v1/budgets/{sibling['id']}", f"/v1/runs/{cousin}", f"/v1/populations/{aside['id']}"]
    unmoved = [seeded.ledger.get(path).json() for path in paths]
    above = [f"/v1/budgets/{seeded.budget}", f"/v1/populations/{seeded.population}", f"/v1/runs/{seeded.run}"]
    before = [seeded.ledger.get(path).json() for path in above]
    _take(seeded, {"count": 3})
    for path, earlier in zip(above, before, strict=True):
        later = seeded.ledger.get(path).json()
        assert later["epsilon"] > earlier["epsilon"]
        assert later["epsilon_rdp"] > earlier["epsilon_rdp"]
        assert later["updated_at"] > earlier["updated_at"]
    moved = seeded.ledger.get(paths[0]).json()
    assert moved.pop("lifetime")["epsilon"] > unmoved[0].pop("lifetime")["epsilon"]  # that of the population
    assert moved == unmoved[0]
    assert seeded.ledger.get(paths[2]).json() == unmoved[2]
    read = seeded.ledger.get(paths[1]).json()
    assert (read["epsilon"], read["next_step"]) == (0.0, 0)
    assert read["steps_remaining"] == _read(seeded)["steps_remaining"]


def test_an_rdp_accountant_counts_as_the_stateless_one_does(ledger: Ledger) -> None:
    ledger.population()
    ledger.budget()
    plan: list[dict[str, Any]] = [
        {"event": SAMPLED, "count": 40},
        {"event": GAUSSIAN, "count": 3},
        {"event": SAMPLED, "count": 2},
    ]
    one, two = ledger.run(), ledger.run()
    for item in plan:
        assert ledger.post(f"/v1/runs/{one}/steps", {"events": [item]}, "trainer").status_code == 200
    asked = ledger.post("/v1/accounting/epsilon", {"events": plan, "delta": 1e-5}, "viewer").json()
    assert ledger.get(f"/v1/runs/{one}").json()["epsilon_rdp"] == asked["epsilon"]
    ledger.post(f"/v1/runs/{two}/steps", {"count": 11}, "trainer")
    both = [*plan, {"event": SAMPLED, "count": 11}]
    asked = ledger.post("/v1/accounting/epsilon", {"events": both, "delta": 1e-5}, "viewer").json()
    for item in (*ledger.get("/v1/budgets").json()["items"], *ledger.get("/v1/populations").json()["items"]):
        assert item["epsilon_rdp"] == asked["epsilon"]


def test_without_a_plan_the_filter_reads_no_less_than_an_rdp_accountant(seeded: SeededLedger) -> None:
    for count in (1, 10, 50):
        answer = _take(seeded, {"count": count})
        assert answer["epsilon"] >= _read(seeded)["epsilon_rdp"] > 0


def test_a_full_plan_reads_less_than_an_rdp_accountant(ledger: Ledger) -> None:
    ledger.population(planned=[{"event": SAMPLED}])
    budget = ledger.budget(planned=[{"event": SAMPLED}])
    steps = ledger.get(f"/v1/budgets/{budget['id']}").json()["plan"]["steps"]
    seeded = SeededLedger(ledger, "", "", ledger.run())
    assert _take(seeded, {"count": steps})["steps_remaining"] == 0
    read = _read(seeded)
    assert read["epsilon"] <= 1.0 < read["epsilon_rdp"]


SPELLINGS: dict[str, list[dict[str, Any]]] = {
    "a count": [{"count": 6}],
    "a count and the event": [{"count": 6, "event": SAMPLED}],
    "one item": [{"events": [{"event": SAMPLED, "count": 6}]}],
    "six items": [{"events": [{"event": SAMPLED}] * 6}],
    "two items": [{"events": [{"event": SAMPLED, "count": 4}, {"event": SAMPLED, "count": 2}]}],
    "six requests": [{}] * 6,
    "two requests": [{"count": 1}, {"events": [{"event": SAMPLED, "count": 5}]}],
    "an event whose members stand in another order": [{"count": 6, "event": dict(reversed(SAMPLED.items()))}],
}


@pytest.mark.both_databases
def test_the_same_steps_cost_the_same_bytes_however_they_are_asked(ledger: Ledger) -> None:
    answers = set()
    for number, requests in enumerate(SPELLINGS.values()):
        ledger.population(f"p{number}")
        ledger.budget("team", f"p{number}")
        seeded = SeededLedger(ledger, "", "", ledger.run(f"p{number}/team"))
        for body in requests:
            last = _take(seeded, body)
        answers.add(tuple(last[key] for key in ("next_step", "epsilon", "steps_remaining")))
    with ledger.database.read(ALL_TENANTS) as tx:
        curves = {kept.account.spent.to_bytes() for kept in list_all(tx)}
    assert (len(answers), len(curves)) == (1, 1)


def test_a_list_is_admitted_or_refused_as_a_whole(seeded: SeededLedger) -> None:
    remaining = _read(seeded)["steps_remaining"]
    before = seeded.rows()
    refused = _take(seeded, {"events": [{"event": SAMPLED}, {"event": SAMPLED, "count": remaining}]})
    assert (refused["decision"], refused["max_count_that_fits"]) == ("refused", remaining)
    assert changed(before, seeded.rows()) == {"decisions", "decision_events", "runs"}
    admitted = _take(seeded, {"events": [{"event": SAMPLED}, {"event": SAMPLED, "count": remaining - 1}]})
    assert (admitted["decision"], admitted["count"], admitted["steps_remaining"]) == ("admitted", remaining, 0)


@pytest.mark.parametrize(
    "body", [{"count": 3}, {"count": 10**6}, {"event": GAUSSIAN}, {"events": [{"event": SAMPLED}]}]
)
@pytest.mark.parametrize("key", [{}, {"Idempotency_Key": "k-1"}], ids=["no key", "a key"])
def test_a_preview_changes_nothing_and_says_what_will_be_said(
    seeded: SeededLedger, body: dict[str, Any], key: dict[str, str]
) -> None:
    before = seeded.rows()
    key = key | {"X_Request_Id": "mine"}
    preview = _take(seeded, body, "?dry_run=true", **key)
    assert seeded.rows() == before
    assert _take(seeded, body, "?dry_run=true", **key) == preview
    assert preview["dry_run"] is True
    real = _take(seeded, body, "?dry_run=false", **key)
    assert real == preview | {"dry_run": False}
    assert seeded.rows() != before


def test_a_preview_of_a_fresh_run_freezes_no_weights(fresh: SeededLedger) -> None:
    before = fresh.rows()
    assert _take(fresh, {"event": GAUSSIAN, "count": 2}, "?dry_run=true")["decision"] == "admitted"
    assert fresh.rows() == before


def test_another_event_may_be_charged_than_the_default(seeded: SeededLedger) -> None:
    noisy = _take(seeded, {"event": GAUSSIAN})
    assert noisy["steps_remaining"] != _read(seeded)["steps_remaining"]
    points = seeded.ledger.get(f"/v1/runs/{seeded.run}/history").json()["points"]
    assert [point["events"] for point in points] == [
        [{"event": SAMPLED, "count": 1}],
        [{"event": GAUSSIAN, "count": 1}],
    ]


def test_less_noise_and_more_sampling_cost_more(seeded: SeededLedger) -> None:
    def cost(sampling: float, noise: float) -> float:
        event = {
            "type": "poisson_sampled",
            "sampling_probability": sampling,
            "event": {"type": "gaussian", "noise_multiplier": noise},
        }
        spent: float = _take(seeded, {"event": event}, "?dry_run=true")["epsilon"]
        return spent

    assert cost(0.01, 3.0) < cost(0.01, 2.9) < cost(0.02, 2.9) < cost(0.02, 2.89)


def test_a_thousand_events_in_one_request_are_fine(seeded: SeededLedger) -> None:
    cheap = {"type": "gaussian", "noise_multiplier": 5000.0}
    answer = _take(seeded, {"events": [{"event": cheap}, {"event": cheap, "count": 2}] * 500})
    assert (answer["decision"], answer["count"]) == ("admitted", 1500)


def test_a_run_is_held_by_its_own_limit_too(seeded: SeededLedger) -> None:
    own = seeded.ledger.get(f"/v1/runs/{seeded.ledger.run(limit={'epsilon': 0.3, 'delta': 1e-5})}").json()
    assert own["binding_account"] == own["id"]
    assert own["steps_remaining"] < _read(seeded)["steps_remaining"]
    small = SeededLedger(seeded.ledger, seeded.population, seeded.budget, own["id"])
    assert _take(small, {"count": own["steps_remaining"]})["steps_remaining"] == 0
    assert _take(small, {})["binding_account"] == own["id"]
    assert _take(seeded, {})["decision"] == "admitted"
