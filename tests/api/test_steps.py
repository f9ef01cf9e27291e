"""Admission of steps: what is charged, what is refused with which numbers, and what is cut."""

from typing import Any

import pytest
from sqlalchemy import func, select, update

from app.persistence.database import ALL_TENANTS
from app.persistence.repositories.accounts import list_all
from app.persistence.tables import dp_events, event_costs
from app.service.verification import verify
from tests.api.conftest import SeededLedger
from tests.conftest import SAMPLED, Ledger
from tests.persistence.dump import changed

GAUSSIAN = {"type": "gaussian", "noise_multiplier": 60.0}
ADMITTED = {
    *("decision", "run", "first_step", "count", "next_step", "epsilon", "delta", "epsilon_limit"),
    *("steps_remaining", "binding_account", "binding_account_path", "dry_run"),
    *("attempt", "requested_count", "overdrawn", "reservation", "ended_plans"),
}


@pytest.fixture(params=[[], [{"event": GAUSSIAN}]], ids=["orders", "plan"])
def planned(request: pytest.FixtureRequest) -> list[dict[str, Any]]:
    """What population and budget have planned."""
    items: list[dict[str, Any]] = request.param
    return items


@pytest.fixture
def fresh(ledger: Ledger, planned: list[dict[str, Any]]) -> SeededLedger:
    """A seeded ledger in which nothing was spent."""
    population = ledger.population(planned=planned)
    budget = ledger.budget(planned=planned)
    return SeededLedger(ledger, str(population["id"]), str(budget["id"]), ledger.run(event=GAUSSIAN))


def _take(seeded: SeededLedger, body: dict[str, Any], query: str = "", **headers: str) -> dict[str, Any]:
    reply = seeded.ledger.post(f"/v1/runs/{seeded.run}/steps{query}", body, "trainer", **headers)
    assert reply.status_code in {200, 403}, reply.text
    answer: dict[str, Any] = reply.json()
    return answer


def _read(seeded: SeededLedger) -> dict[str, Any]:
    run: dict[str, Any] = seeded.ledger.get(f"/v1/runs/{seeded.run}").json()
    return run


def test_steps_are_admitted_with_numbers_that_add_up(fresh: SeededLedger, planned: list[dict[str, Any]]) -> None:
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


def test_charge_is_carried_by_the_whole_path_and_no_other_account(seeded: SeededLedger) -> None:
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


def test_rdp_accountant_counts_as_the_stateless_one_does(ledger: Ledger) -> None:
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


def test_same_steps_cost_the_same_bytes_however_they_are_spelled(ledger: Ledger) -> None:
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


def test_list_is_admitted_or_refused_as_a_whole(seeded: SeededLedger) -> None:
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
def test_preview_changes_nothing_and_answers_as_the_request_will(
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


def test_another_event_may_be_charged_than_the_default(seeded: SeededLedger) -> None:
    noisy = _take(seeded, {"event": GAUSSIAN})
    assert noisy["steps_remaining"] != _read(seeded)["steps_remaining"]
    points = seeded.ledger.get(f"/v1/runs/{seeded.run}/history").json()["points"]
    assert [point["events"] for point in points] == [
        [{"event": SAMPLED, "count": 1}],
        [{"event": GAUSSIAN, "count": 1}],
    ]


def _stated(delta: float, epsilon: float = 0.01) -> dict[str, Any]:
    return {"type": "epsilon_delta", "epsilon": epsilon, "delta": delta}


@pytest.mark.parametrize("count", [1, 10, 10**9])
def test_deltas_beyond_all_bounds_are_refused_with_numbers(seeded: SeededLedger, count: int) -> None:
    body = {"event": _stated(0.3), "count": count}
    reply = seeded.ledger.post(f"/v1/runs/{seeded.run}/steps", body, "trainer", Idempotency_Key="k-1")
    answer = reply.json()
    assert (reply.status_code, answer["code"]) == (403, "budget_exceeded")
    assert 0.3 <= answer["delta_requested"] <= 1
    assert answer["delta_left"] < 1e-6
    assert answer["epsilon_requested"] == "Infinity"
    assert "of delta for themselves" in answer["detail"]
    again = seeded.ledger.post(f"/v1/runs/{seeded.run}/steps", body, "trainer", Idempotency_Key="k-1")
    assert again.json() | {"request_id": None} == answer | {"request_id": None}
    assert verify(seeded.ledger.database).sound


@pytest.mark.parametrize("planned", [[], [{"event": _stated(1e-7), "count": 10}]], ids=["orders", "plan"])
def test_own_deltas_are_counted_to_the_last_step(ledger: Ledger, planned: list[dict[str, Any]]) -> None:
    event = _stated(1e-7)
    population = ledger.population(planned=planned, limit={"epsilon": 3.0, "delta": 1e-5})
    ledger.budget(planned=planned, limit={"epsilon": 3.0, "delta": 1e-5})
    run = ledger.run(event=event)
    left = ledger.get(f"/v1/runs/{run}").json()["steps_remaining"]
    assert 20 < left < 100
    refused = ledger.post(f"/v1/runs/{run}/steps", {"count": left + 1}, "trainer")
    assert (refused.status_code, refused.json()["max_count_that_fits"]) == (403, left)
    admitted = ledger.post(f"/v1/runs/{run}/steps", {"count": left}, "trainer").json()
    assert admitted["steps_remaining"] == 0
    own = ledger.get(f"/v1/populations/{population['id']}").json()["own_delta"]
    assert left * 1e-7 <= own <= left * 1e-7 * (1 + 1e-8)
    assert verify(ledger.database).sound


@pytest.fixture
def opened(ledger: Ledger) -> Ledger:
    ledger.population()
    ledger.budget()
    return ledger


def _prices(ledger: Ledger) -> int:
    with ledger.database.read(ALL_TENANTS) as tx:
        return int(tx.execute(select(func.count()).select_from(event_costs)).scalar_one())


def _noises(count: int, start: float) -> dict[str, Any]:
    return {
        "events": [{"event": {"type": "gaussian", "noise_multiplier": start + index / 1000}} for index in range(count)]
    }


def test_refusal_stores_no_prices(opened: Ledger) -> None:
    run = opened.run()
    assert opened.post(f"/v1/runs/{run}/steps", _noises(50, 0.5)).status_code == 403
    assert _prices(opened) == 0
    assert opened.post(f"/v1/runs/{run}/steps", _noises(3, 500.0)).status_code == 200
    assert _prices(opened) == 3
    points = opened.get(f"/v1/runs/{run}/history").json()["points"]
    assert [len(point["events"]) for point in points] == [50, 3]


def test_tampered_default_event_is_not_charged(opened: Ledger) -> None:
    run = opened.run()
    with opened.database.write(ALL_TENANTS) as tx:
        row = tx.execute(select(dp_events)).one()
        tx.execute(update(dp_events).values(canonical_json=row.canonical_json.replace("1.1", "700.0")))
    for reply in (opened.post(f"/v1/runs/{run}/steps", {"count": 1000}), opened.get(f"/v1/runs/{run}")):
        assert (reply.status_code, reply.json()["code"]) == (503, "ledger_unavailable")
        assert "verify" in reply.json()["detail"]
