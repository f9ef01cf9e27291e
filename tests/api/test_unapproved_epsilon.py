"""What runs without approval may have together: a further one waits, however small it is."""

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import httpx2
import pytest
from sqlalchemy import event as hooks

from app.service.verification import verify
from tests.api.conftest import SeededLedger
from tests.api.test_policies import GAUSSIAN, WHY, loosen, put

RULE = "max_unapproved_epsilon_per_budget"


@pytest.fixture
def lab(seeded: SeededLedger) -> SeededLedger:
    """A seeded ledger with a budget on which runs without approval may have 0.3 together."""
    budget = str(seeded.ledger.budget("lab", limit={"epsilon": 2.0, "delta": 1e-5})["id"])
    assert put(seeded, {RULE: 0.3}, budget).status_code == 200
    return seeded


def _registered(
    seeded: SeededLedger,
    epsilon: float | None = 0.1,
    budget: str = "mimic/lab",
    **terms: Any,  # noqa: ANN401
) -> dict[str, Any]:
    body: dict[str, Any] = {"name": "small", "budget": budget, "event": GAUSSIAN} | terms
    if epsilon is not None:
        body["limit"] = {"epsilon": epsilon, "delta": 1e-6}
    reply = seeded.ledger.post("/v1/runs", body, "trainer")
    assert reply.status_code == 201, reply.text
    made: dict[str, Any] = reply.json()
    return made


def _waiting(seeded: SeededLedger, run: str) -> dict[str, Any]:
    (found,) = seeded.ledger.get(f"/v1/proposals?account={run}&status=open").json()["items"]
    answer: dict[str, Any] = found
    return answer


def _approve(seeded: SeededLedger, run: str) -> None:
    path = f"/v1/proposals/{_waiting(seeded, run)['id']}/approve"
    assert seeded.ledger.post(path, {}, "privacy_officer").status_code == 200


def _limit(seeded: SeededLedger, run: str, epsilon: float, role: str = "privacy_officer") -> httpx2.Response:
    body = {"limit": {"epsilon": epsilon, "delta": 1e-6}, "reason": WHY}
    return seeded.ledger.post(f"/v1/accounts/{run}/limit", body, role, If_Match="*")


def test_small_runs_wait_once_they_reach_the_bound_together(lab: SeededLedger) -> None:
    made = [_registered(lab) for _ in range(5)]
    assert [run["status"] for run in made] == ["active"] * 3 + ["pending"] * 2
    answer = _waiting(lab, made[3]["id"])
    assert answer["proposed"]["unapproved"] == {
        "account": "mimic/lab",
        "bound": 0.3,
        "others": 0.3,
        "promised": 0.1,
    }
    assert "other runs under mimic/lab without approval have epsilon 0.3" in answer["reason"]
    assert _registered(lab, 1e-6)["status"] == "pending"
    _approve(lab, made[3]["id"])
    assert lab.ledger.post(f"/v1/runs/{made[3]['id']}/steps", {"event": GAUSSIAN}, "trainer").status_code == 200
    assert _registered(lab)["status"] == "pending"
    assert verify(lab.ledger.database).problems == ()


@pytest.mark.both_databases
def test_runs_registered_at_once_do_not_pass_the_bound(lab: SeededLedger) -> None:
    with ThreadPoolExecutor(8) as pool:
        made = list(pool.map(lambda _: _registered(lab)["status"], range(8)))
    assert sorted(made) == ["active"] * 3 + ["pending"] * 5


def test_ended_run_counts_with_its_spent_epsilon(lab: SeededLedger) -> None:
    first, second, third = (_registered(lab)["id"] for _ in range(3))
    assert lab.ledger.post(f"/v1/runs/{second}/steps", {"event": GAUSSIAN}, "trainer").status_code == 200
    spent = lab.ledger.get(f"/v1/runs/{second}").json()["epsilon"]
    assert 0.01 < spent < 0.1
    assert lab.ledger.post(f"/v1/runs/{first}/pause", None, "trainer").status_code == 200
    assert _registered(lab, 0.001)["status"] == "pending"
    for run in (second, third):
        assert lab.ledger.post(f"/v1/runs/{run}/complete", None, "trainer").status_code == 200
    left = 0.3 - 0.1 - spent
    assert _registered(lab, left + 1e-6)["status"] == "pending"
    assert _registered(lab, left - 1e-6)["status"] == "active"
    assert _registered(lab, 2e-6)["status"] == "pending"


def test_run_that_reported_an_unbounded_loss_leaves_room_for_none(lab: SeededLedger) -> None:
    run, waits = _registered(lab)["id"], "other runs under mimic/lab without approval have an unbounded epsilon"
    loudest = {"event": {"type": "gaussian", "noise_multiplier": 1e-3}, "count": 10**9, "mode": "report"}
    assert lab.ledger.post(f"/v1/runs/{run}/steps", loudest, "trainer").json()["epsilon"] == "Infinity"
    answer = _waiting(lab, _registered(lab, 0.001)["id"])
    assert answer["proposed"]["unapproved"]["others"] is None
    assert waits in answer["reason"]
    assert verify(lab.ledger.database).problems == ()


def test_run_whose_limit_was_raised_by_two_is_approved(lab: SeededLedger) -> None:
    run = _registered(lab, 0.3)["id"]
    assert _registered(lab)["status"] == "pending"
    assert _limit(lab, run, 0.4, "planner").status_code == 201
    assert _registered(lab)["status"] == "pending"
    _approve(lab, run)
    assert _registered(lab)["status"] == "active"


def test_one_person_raises_no_run_past_the_bound(lab: SeededLedger) -> None:
    loosen(lab, {"approvers_to_raise_limit": 1})
    run, _ = (_registered(lab)["id"] for _ in range(2))
    assert [_limit(lab, run, epsilon).status_code for epsilon in (0.2, 0.21)] == [200, 201]


def test_without_a_limit_of_its_own_a_run_counts_for_its_budgets(lab: SeededLedger) -> None:
    assert _registered(lab, None, plan=[{"event": GAUSSIAN, "count": 1}])["status"] == "pending"
    loosen(lab, {RULE: 2.05}, _waiting_budget(lab))
    assert _registered(lab, None)["status"] == "active"
    assert [_registered(lab, epsilon)["status"] for epsilon in (0.06, 0.05)] == ["pending", "active"]


def _waiting_budget(seeded: SeededLedger) -> str:
    return str(seeded.ledger.get("/v1/budgets?path=mimic/lab").json()["items"][0]["id"])


@pytest.mark.parametrize("place", ["organisation", "population"])
def test_policy_higher_up_counts_the_runs_of_all_budgets_of_a_population(seeded: SeededLedger, place: str) -> None:
    seeded.ledger.population("other")
    for name in ("a", "b"):
        seeded.ledger.budget(name)
        seeded.ledger.budget(name, "other")
    rule = {RULE: 1.2}  # the run of the seeded ledger has no limit of its own, and a budget of 1
    assert put(seeded, rule, seeded.population if place == "population" else None).status_code == 200
    assert _registered(seeded, 0.2, "mimic/a")["status"] == "active"
    assert _registered(seeded, 0.1, "mimic/b")["status"] == "pending"
    assert _registered(seeded, 1.0, "other/a")["status"] == "active"
    held = "pending" if place == "organisation" else "active"
    assert _registered(seeded, 0.3, "other/b")["status"] == held
    both = {"name": "both", "budgets": ["mimic/a", "other/b"], "limit": {"epsilon": 0.1, "delta": 1e-6}}
    assert seeded.ledger.post("/v1/runs", both).json()["status"] == "pending"


def test_sweep_that_is_charged_at_once_counts_for_what_it_costs(lab: SeededLedger) -> None:
    trials = {"events": [{"event": GAUSSIAN, "count": 1}], "mean": 2.0}
    body = {"name": "rates", "budget": "mimic/lab", "charging_mode": "repeat_and_select", "trials": trials}
    made = lab.ledger.post("/v1/experiments", body)
    assert (made.status_code, made.json()["status"]) == (201, "completed"), made.text
    spent = lab.ledger.get(f"/v1/runs/{made.json()['run']}").json()["epsilon"]
    assert 0 < spent < 0.3
    assert _registered(lab, 0.3)["status"] == "pending"


def _counted(seeded: SeededLedger, audit_event: Callable[[], object]) -> list[str]:
    seen: list[str] = []

    def note(_: object, __: object, statement: str, *___: object) -> None:
        seen.append(statement)

    engine = seeded.ledger.database.engine
    hooks.listen(engine, "before_cursor_execute", note)
    audit_event()
    hooks.remove(engine, "before_cursor_execute", note)
    return seen


def test_bound_is_read_once_for_a_registration_and_not_for_a_step(lab: SeededLedger) -> None:
    def step(run: str) -> list[str]:
        return _counted(lab, lambda: lab.ledger.post(f"/v1/runs/{run}/steps", {}, "trainer"))

    free, bound = _registered(lab, 0.01, "mimic/icu-team")["id"], _registered(lab, 0.01)["id"]
    assert not any("proposals" in each for run in (free, bound) for each in step(run))
    plain = _counted(lab, lambda: _registered(lab, 0.01, "mimic/icu-team"))
    counted = _counted(lab, lambda: _registered(lab, 0.01))
    asked = [[each for each in seen if "proposals.status" in each] for seen in (plain, counted)]
    assert [len(each) for each in asked] == [0, 1]
    assert not any("balances" in each for each in asked[1])  # what runs have spent is read off their last decisions
