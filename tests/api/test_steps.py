"""Admission of steps: what is charged, what is refused with which numbers, and what is cut."""

from typing import Any

import pytest
from sqlalchemy import func, select, update

from app.api.schemas.steps import StepAuthorization
from app.ledger.accounts.account import MOST_USED
from app.persistence.database import ALL_TENANTS
from app.persistence.repositories.accounts import list_all
from app.persistence.tables import dp_events, event_costs
from app.service.verification.verify import verify
from tests.api.conftest import SeededLedger
from tests.api.trainer import LOUD as GAUSSIAN
from tests.api.trainer import gaussian, is_refused
from tests.conftest import SAMPLED, Ledger
from tests.epsilons import reference, tightest
from tests.persistence.dump import changed


@pytest.fixture(params=[[], [{"event": GAUSSIAN}]], ids=["orders", "plan"])
def planned(request: pytest.FixtureRequest) -> list[dict[str, Any]]:
    """What population and budget have planned."""
    return list(request.param)


@pytest.fixture
def fresh(ledger: Ledger, planned: list[dict[str, Any]]) -> SeededLedger:
    """A seeded ledger in which nothing was spent."""
    population = ledger.population(planned=planned)
    budget = ledger.budget(planned=planned)
    return SeededLedger(ledger, str(population["id"]), str(budget["id"]), ledger.run(event=GAUSSIAN))


def _take(seeded: SeededLedger, body: dict[str, Any], query: str = "", **headers: str) -> dict[str, Any]:
    reply = seeded.ledger.post(f"/v1/runs/{seeded.run}/steps{query}", body, "trainer", **headers)
    assert reply.status_code in {200, 403}, reply.text
    return dict(reply.json())


def _read(seeded: SeededLedger) -> dict[str, Any]:
    return dict(seeded.ledger.get(f"/v1/runs/{seeded.run}").json())


LATTICE = 3e-4
"""How much an epsilon that is computed alone may be above one that is computed for more steps."""


def test_steps_are_admitted_with_numbers_that_add_up(fresh: SeededLedger) -> None:
    epsilon, next_step = 0.0, 0
    most = _read(fresh)["steps_remaining"]
    for count in (1, 1, 5, 1, 20, 1):
        answer = _take(fresh, {"count": count})
        assert set(answer) == set(StepAuthorization.model_fields)
        assert (answer["decision"], answer["run"], answer["dry_run"]) == ("admitted", fresh.run, False)
        assert (answer["first_step"], answer["count"]) == (next_step, count)
        next_step += count
        assert (answer["next_step"], answer["steps_remaining"]) == (next_step, most - next_step)
        assert next_step / (most + 1) < answer["used"] <= next_step / most
        exact = tightest((GAUSSIAN, next_step))
        assert exact * (1 - LATTICE) <= answer["epsilon"] <= exact * 1.005
        assert epsilon < answer["epsilon"] < 1.0
        epsilon = answer["epsilon"]
        read = _read(fresh)
        assert (read["epsilon"], read["delta"]) == (exact, answer["delta"])
        same = ("used", "next_step", "steps_remaining", "binding_account")
        assert {key: read[key] for key in same} == {key: answer[key] for key in same}


def test_charge_is_carried_by_the_whole_path_and_no_other_account(seeded: SeededLedger) -> None:
    ledger = seeded.ledger
    sibling, aside, cousin = ledger.budget("sibling"), ledger.population("aside"), ledger.run(name="cousin")
    beside = [f"/v1/budgets/{sibling['id']}", f"/v1/populations/{aside['id']}"]
    above = [f"/v1/budgets/{seeded.budget}", f"/v1/populations/{seeded.population}", f"/v1/runs/{seeded.run}"]
    unmoved, before = ([ledger.get(path).json() for path in paths] for paths in (beside, above))
    _take(seeded, {"count": 3})
    for path, earlier in zip(above, before, strict=True):
        later = ledger.get(path).json()
        assert all(later[name] > earlier[name] for name in ("epsilon", "used", "updated_at"))
        assert later["epsilon"] == tightest((SAMPLED, 4)), "the same in run, budget and population"
    moved = [ledger.get(path).json() for path in beside]
    lifetimes = [each[0].pop("lifetime") for each in (unmoved, moved)]  # that of the population
    assert all(lifetimes[0][name] < lifetimes[1][name] for name in ("epsilon", "used"))
    shares = [each[0].pop("available") for each in (unmoved, moved)]
    assert [each["account"] for each in shares] == [seeded.population] * 2
    assert [each["share"] for each in shares] == [1 - each["used"] for each in lifetimes]
    assert moved == unmoved
    read = ledger.get(f"/v1/runs/{cousin}").json()
    assert (read["epsilon"], read["next_step"], read["steps_remaining"]) == (0.0, 0, _read(seeded)["steps_remaining"])


def test_accounts_read_what_the_planner_says_of_their_charges(ledger: Ledger) -> None:
    """The accountants of the ledger and of the planner are within what both are above the truth."""
    ledger.population()
    ledger.budget()
    plan = [{"event": event, "count": count} for event, count in ((SAMPLED, 40), (GAUSSIAN, 3), (SAMPLED, 2))]
    one, two = ledger.run(), ledger.run()
    for item in plan:
        assert ledger.post(f"/v1/runs/{one}/steps", {"events": [item]}, "trainer").status_code == 200
    ledger.post(f"/v1/runs/{two}/steps", {"count": 11}, "trainer")
    questions = [{"events": events, "delta": 1e-5} for events in (plan, [*plan, {"event": SAMPLED, "count": 11}])]
    asked = [ledger.post("/v1/accounting/epsilon", each, "viewer").json()["epsilon"] for each in questions]
    read = ledger.get(f"/v1/runs/{one}").json()["epsilon"]
    assert read == tightest((SAMPLED, 42), (GAUSSIAN, 3)) == pytest.approx(asked[0], rel=1e-3)
    assert read <= reference((SAMPLED, 42), (GAUSSIAN, 3)) * 1.001
    for path in ("/v1/budgets", "/v1/populations"):
        [whole] = [item["epsilon"] for item in ledger.get(path).json()["items"]]
        assert whole == tightest((SAMPLED, 53), (GAUSSIAN, 3)) == pytest.approx(asked[1], rel=1e-3)
        assert whole <= reference((SAMPLED, 53), (GAUSSIAN, 3)) * 1.001


SPELLINGS: dict[str, list[dict[str, Any]]] = {
    "a count": [{"count": 6}],
    "one item": [{"events": [{"event": SAMPLED, "count": 6}]}],
    "six items": [{"events": [{"event": SAMPLED}] * 6}],
    "three requests": [{"count": 2}] * 3,
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
        curves = {kept.account.spent.to_bytes() for _, kept, _ in list_all(tx)}
    assert (len(answers), len(curves)) == (1, 1)


def test_list_is_admitted_or_refused_as_a_whole(seeded: SeededLedger) -> None:
    remaining = _read(seeded)["steps_remaining"]
    before = seeded.rows()
    refused = _take(seeded, {"events": [{"event": SAMPLED}, {"event": SAMPLED, "count": remaining}]})
    assert (refused["decision"], refused["max_steps_that_fit"]) == ("refused", remaining)
    assert changed(before, seeded.rows()) == {"accounts", "decisions", "decision_events", "runs"}
    admitted = _take(seeded, {"events": [{"event": SAMPLED}, {"event": SAMPLED, "count": remaining - 1}]})
    assert (admitted["decision"], admitted["count"], admitted["steps_remaining"]) == ("admitted", remaining, 0)


def test_preview_changes_nothing_and_answers_as_the_request_will(seeded: SeededLedger) -> None:
    bodies: tuple[dict[str, Any], ...] = ({"count": 3}, {"count": 10**6}, {"event": GAUSSIAN})
    for place, body in enumerate((*bodies, {"events": [{"event": SAMPLED}]})):
        before, key = seeded.rows(), {"X_Request_Id": "mine"} | ({"Idempotency_Key": f"k-{place}"} if place % 2 else {})
        preview = _take(seeded, body, "?dry_run=true", **key)
        assert seeded.rows() == before
        assert _take(seeded, body, "?dry_run=true", **key) == preview
        assert preview["dry_run"] is True
        assert _take(seeded, body, "?dry_run=false", **key) == preview | {"dry_run": False}
        assert seeded.rows() != before


def _stated(delta: float, epsilon: float = 0.01) -> dict[str, Any]:
    return {"type": "epsilon_delta", "epsilon": epsilon, "delta": delta}


def test_deltas_beyond_all_bounds_are_refused_with_numbers(seeded: SeededLedger) -> None:
    for count in (1, 10, 10**9):
        body, key = {"event": _stated(0.3), "count": count}, {"Idempotency_Key": f"k-{count}"}
        answer = _take(seeded, body, **key)
        assert answer["code"] == "budget_exceeded"
        assert 0.3 <= answer["delta_requested"] <= 1
        assert answer["delta_left"] < 1e-6
        assert answer["delta_requested"] / answer["delta_left"] * (1 - 1e-9) <= answer["used_requested"] <= MOST_USED
        assert "of delta for their own failure probability" in answer["detail"]
        assert _take(seeded, body, **key) | {"request_id": None} == answer | {"request_id": None}
    assert seeded.sound()


@pytest.mark.parametrize("planned", [[], [{"event": _stated(1e-7), "count": 10}]], ids=["orders", "plan"])
def test_own_deltas_are_counted_to_the_last_step(ledger: Ledger, planned: list[dict[str, Any]]) -> None:
    event = _stated(1e-7)
    population = ledger.population(planned=planned, limit={"epsilon": 3.0, "delta": 1e-5})
    ledger.budget(planned=planned, limit={"epsilon": 3.0, "delta": 1e-5})
    run = ledger.run(event=event)
    left = ledger.get(f"/v1/runs/{run}").json()["steps_remaining"]
    assert 20 < left < 100
    refused = ledger.post(f"/v1/runs/{run}/steps", {"count": left + 1}, "trainer")
    assert (refused.status_code, refused.json()["max_steps_that_fit"]) == (403, left)
    admitted = ledger.post(f"/v1/runs/{run}/steps", {"count": left}, "trainer").json()
    assert admitted["steps_remaining"] == 0
    own = ledger.get(f"/v1/populations/{population['id']}").json()["own_delta"]
    assert left * 1e-7 <= own <= left * 1e-7 * (1 + 1e-8)
    assert verify(ledger.database).sound


def _prices(ledger: Ledger) -> int:
    with ledger.database.read(ALL_TENANTS) as tx:
        return int(tx.execute(select(func.count()).select_from(event_costs)).scalar_one())


def _noises(count: int, start: float) -> dict[str, Any]:
    return {"events": [{"event": gaussian(start + index / 1000)} for index in range(count)]}


def test_refusal_stores_no_prices(seeded: SeededLedger) -> None:
    run, before = seeded.ledger.run(), _prices(seeded.ledger)
    assert seeded.steps(run=run, **_noises(50, 0.5)).status_code == 403
    assert _prices(seeded.ledger) == before
    assert seeded.steps(run=run, **_noises(3, 500.0)).status_code == 200
    assert _prices(seeded.ledger) == before + 3
    points = seeded.ledger.get(f"/v1/runs/{run}/history").json()["points"]
    assert [len(point["events"]) for point in points] == [50, 3]


def test_tampered_default_event_is_not_charged(seeded: SeededLedger) -> None:
    with seeded.ledger.database.write(ALL_TENANTS) as tx:
        row = tx.execute(select(dp_events)).one()
        tx.execute(update(dp_events).values(canonical_json=row.canonical_json.replace("1.1", "700.0")))
    for reply in (seeded.steps(count=1000), seeded.ledger.get(f"/v1/runs/{seeded.run}")):
        assert "verify" in is_refused(reply, 503, "ledger_unavailable")["detail"]
