"""Approvals: runs that another person lets begin, alone and together, and who is another person."""

from concurrent.futures import ThreadPoolExecutor
from typing import Any

import httpx2
import pytest

from tests.api.conftest import SeededLedger
from tests.api.test_policies import GAUSSIAN, LIMIT, loosen, put, statements, violation
from tests.api.trainer import audited, is_refused, issue
from tests.conftest import SAMPLED


@pytest.fixture
def watched(seeded: SeededLedger) -> SeededLedger:
    """A seeded ledger whose budget wants an approval above epsilon 0.4."""
    assert put(seeded, {"approval_above_epsilon": 0.4}, seeded.budget).status_code == 200
    return seeded


def _register(seeded: SeededLedger, **terms: object) -> dict[str, Any]:
    body = {"name": "large", "budget": "mimic/icu-team", "event": GAUSSIAN, "limit": LIMIT} | terms
    body = {name: value for name, value in body.items() if value is not None}
    return dict(seeded.ledger.post("/v1/runs", body, "trainer").raise_for_status().json())


def _proposal(seeded: SeededLedger, run: str) -> dict[str, Any]:
    (found,) = seeded.ledger.get(f"/v1/proposals?account={run}").json()["items"]
    return dict(found)


def _decide(seeded: SeededLedger, run: str, what: str, role: str = "privacy_officer") -> httpx2.Response:
    return seeded.ledger.post(f"/v1/proposals/{_proposal(seeded, run)['id']}/{what}", {"reason": "Seen."}, role)


def _status(seeded: SeededLedger, run: str) -> str:
    return str(seeded.ledger.get(f"/v1/runs/{run}").json()["status"])


def _change(seeded: SeededLedger, account: str, epsilon: float, role: str = "privacy_officer") -> int:
    return seeded.ledger.set_limit(account, epsilon, role, 1e-6).status_code


def test_run_above_the_threshold_begins_when_another_person_approves_it(watched: SeededLedger) -> None:
    made = _register(watched)
    run, answer = made["id"], _proposal(watched, made["id"])
    assert (made["status"], answer["kind"], answer["status"]) == ("pending", "run", "open")
    terms = {"epsilon": 0.5, "delta": 1e-6, "approval_above_epsilon": 0.4, "limited": True, "planned": False}
    assert answer["proposed"] == terms
    before = watched.rows()
    for refused in (
        watched.steps(run=run),
        watched.steps(run=run, query="?dry_run=true"),
        watched.ledger.post(f"/v1/runs/{run}/reservations", {"events": [{"event": SAMPLED}]}, "trainer"),
        watched.ledger.post(f"/v1/runs/{run}/attempts", {}, "trainer"),
        *(watched.ledger.post(f"/v1/runs/{run}/{action}", None, "admin") for action in ("pause", "resume", "complete")),
    ):
        assert (refused.status_code, refused.json()["run_status"]) == (409, "pending")
    assert _decide(watched, run, "approve", "trainer").status_code == 403
    assert watched.rows() == before
    assert watched.sound()
    assert _decide(watched, run, "approve").status_code == 200
    assert _status(watched, run) == "active"
    assert watched.steps(run=run, event=GAUSSIAN).status_code == 200
    assert [each["action"] for each in audited(watched.ledger, f"subject={run}")] == ["run.created", "run.activated"]
    assert watched.sound()


def test_key_that_reaches_one_of_several_budgets_does_not_approve_a_run(watched: SeededLedger) -> None:
    ledger = watched.ledger
    ledger.population("donors", limit={"epsilon": 8.0, "delta": 1e-5})
    ledger.budget("lab", "donors")
    made = _register(watched, budget=None, budgets=["donors/lab", "mimic/icu-team"])
    path = f"/v1/proposals/{_proposal(watched, made['id'])['id']}/approve"
    for scope in ("donors", made["id"]):
        issue(ledger, "bound", "privacy_officer", scope)
        is_refused(ledger.post(path, {}, "bound"), 403, "permission_denied")
    assert _status(watched, made["id"]) == "pending"
    assert ledger.post(path, {}, "privacy_officer").status_code == 200
    loosen(watched, {"approvers_to_raise_limit": 1})
    loosen(watched, {}, watched.budget)
    assert [_change(watched, made["id"], 0.9, role) for role in ("bound", "privacy_officer")] == [403, 200]


@pytest.mark.parametrize("limited", [True, False])
def test_run_that_may_spend_more_than_was_proposed_is_not_approved(seeded: SeededLedger, limited: bool) -> None:  # noqa: FBT001
    loosen(seeded, {"approvers_to_raise_limit": 1})
    small = {"epsilon": 0.1, "delta": 1e-6}
    budget = str(seeded.ledger.budget("lab", limit=small)["id"])
    assert put(seeded, {RULE: 0.3}, budget).status_code == 200
    other = _register(seeded, budget="mimic/lab", limit={"epsilon": 0.3, "delta": 1e-6})["id"]
    run = _register(seeded, budget="mimic/lab", limit=small if limited else None)["id"]
    assert _status(seeded, run) == "pending"
    assert seeded.ledger.post(f"/v1/runs/{other}/abort", None, "trainer").status_code == 200
    account = run if limited else budget
    assert _change(seeded, account, 0.3) == 200
    refused = _decide(seeded, run, "approve", "admin")
    assert (refused.status_code, refused.json()["epsilon"], _status(seeded, run)) == (412, 0.3, "pending")
    assert _change(seeded, account, 0.1) == 200
    assert _decide(seeded, run, "approve", "admin").status_code == 200


def test_proposal_of_a_run_that_reported_too_much_while_it_waited_comes_to_an_end(watched: SeededLedger) -> None:
    ends = {"reject": ("overdrawn", "rejected"), "abort": ("aborted", "superseded")}
    for end, reached in ends.items():
        run = _register(watched)["id"]
        assert watched.steps(run=run, count=10**6, mode="report").json()["overdrawn"]
        assert _decide(watched, run, "approve").status_code == 412
        done = _decide(watched, run, end) if end == "reject" else watched.ledger.post(f"/v1/runs/{run}/abort", None)
        assert done.status_code == 200
        assert (_status(watched, run), _proposal(watched, run)["status"]) == reached
    assert watched.sound()


def test_rejected_or_withdrawn_run_is_aborted_and_a_plan_is_not_reserved(watched: SeededLedger) -> None:
    for role, status in (("privacy_officer", "rejected"), ("trainer", "withdrawn")):
        made = _register(watched, limit=None, reserve=[{"event": SAMPLED, "count": 1000}])
        run, proposal = made["id"], _proposal(watched, made["id"])
        assert (made["status"], made["reservation"], proposal["proposed"]["planned"]) == ("pending", None, True)
        reply = _decide(watched, run, "reject", role)
        assert (reply.status_code, reply.json()["status"], _status(watched, run)) == (200, status, "aborted")
    assert watched.sound()


def test_run_waits_by_its_limit_or_its_plan_or_the_limit_of_its_budget(watched: SeededLedger) -> None:
    quiet = [{"event": GAUSSIAN, "count": 2}]
    loud = [{"event": GAUSSIAN | {"noise_multiplier": 0.01}, "count": 1}]
    cases: list[tuple[dict[str, Any], str]] = [
        ({"limit": {"epsilon": 0.4, "delta": 1e-6}}, "active"),
        ({"limit": None}, "pending"),  # nothing but its budget's limit holds it
        ({"limit": None, "reserve": quiet}, "active"),
        ({"limit": None, "planned": quiet}, "active"),
        ({"limit": None, "planned": loud}, "pending"),
    ]
    assert [_register(watched, **terms)["status"] for terms, _ in cases] == [status for _, status in cases]


def test_policy_that_is_stricter_by_now_holds_for_the_approval(watched: SeededLedger) -> None:
    run = _register(watched)["id"]
    assert put(watched, {"max_epsilon": 0.3}).status_code == 200
    assert violation(_decide(watched, run, "approve")) == ("organisation", "max_epsilon", 0.5, 0.3)
    assert (_status(watched, run), _proposal(watched, run)["status"]) == ("pending", "open")
    assert _decide(watched, run, "reject").status_code == 200


def test_one_person_raises_no_limit_of_a_run_past_the_threshold(watched: SeededLedger) -> None:
    loosen(watched, {"approvers_to_raise_limit": 1})
    run = _register(watched, limit={"epsilon": 0.3, "delta": 1e-6})["id"]
    assert [_change(watched, run, epsilon) for epsilon in (0.4, 0.41)] == [200, 201]
    assert watched.ledger.get(f"/v1/accounts/{run}/limit").json()["limit"]["epsilon"] == 0.4


RULE = "max_unapproved_epsilon_per_budget"


@pytest.fixture
def lab(seeded: SeededLedger) -> SeededLedger:
    """A seeded ledger with a budget on which runs without approval may have 0.3 together."""
    budget = str(seeded.ledger.budget("lab", limit={"epsilon": 2.0, "delta": 1e-5})["id"])
    assert put(seeded, {RULE: 0.3}, budget).status_code == 200
    return seeded


def _small(
    seeded: SeededLedger, epsilon: float | None = 0.1, budget: str = "mimic/lab", **terms: object
) -> dict[str, Any]:
    limit = None if epsilon is None else {"epsilon": epsilon, "delta": 1e-6}
    return _register(seeded, name="small", budget=budget, limit=limit, **terms)


def test_small_runs_wait_once_they_reach_the_bound_together(lab: SeededLedger) -> None:
    made = [_small(lab) for _ in range(5)]
    assert [run["status"] for run in made] == ["active"] * 3 + ["pending"] * 2
    run, answer = made[3]["id"], _proposal(lab, made[3]["id"])
    together = {"account": "mimic/lab", "bound": 0.3, "others": 0.3, "promised": 0.1}
    assert answer["proposed"]["unapproved"] == together
    assert "other runs under mimic/lab without approval have epsilon 0.3" in answer["reason"]
    assert _small(lab, 1e-6)["status"] == "pending"
    assert _decide(lab, run, "approve").status_code == 200
    assert lab.steps(run=run, event=GAUSSIAN).status_code == 200
    assert _small(lab)["status"] == "pending"
    assert lab.sound()


def test_runs_registered_at_once_do_not_pass_the_bound(lab: SeededLedger) -> None:
    with ThreadPoolExecutor(8) as pool:
        made = list(pool.map(lambda _: _small(lab)["status"], range(8)))
    assert sorted(made) == ["active"] * 3 + ["pending"] * 5


def test_ended_run_counts_with_its_spent_epsilon(lab: SeededLedger) -> None:
    first, second, third = (_small(lab)["id"] for _ in range(3))
    assert lab.steps(run=second, event=GAUSSIAN).status_code == 200
    spent = lab.ledger.get(f"/v1/runs/{second}").json()["epsilon"]
    assert 0.01 < spent < 0.1
    assert lab.ledger.post(f"/v1/runs/{first}/pause", None, "trainer").status_code == 200
    assert _small(lab, 0.001)["status"] == "pending"
    for run in (second, third):
        assert lab.ledger.post(f"/v1/runs/{run}/complete", None, "trainer").status_code == 200
    left = 0.3 - 0.1 - spent
    statuses = [_small(lab, epsilon)["status"] for epsilon in (left + 1e-6, left - 1e-6, 2e-6)]
    assert statuses == ["pending", "active", "pending"]


def test_run_that_reported_an_unbounded_loss_leaves_room_for_none(lab: SeededLedger) -> None:
    run, failing = _small(lab)["id"], {"type": "epsilon_delta", "epsilon": 0.1, "delta": 0.01}
    assert lab.steps(run=run, event=failing, mode="report").json()["epsilon"] == "Infinity"
    answer = _proposal(lab, _small(lab, 0.001)["id"])
    assert answer["proposed"]["unapproved"]["others"] is None
    assert "other runs under mimic/lab without approval have an unbounded epsilon" in answer["reason"]
    assert lab.sound()


def test_run_whose_limit_was_raised_by_two_is_approved_and_one_raises_none_past_the_bound(lab: SeededLedger) -> None:
    run = _small(lab, 0.3)["id"]
    assert _small(lab)["status"] == "pending"
    assert _change(lab, run, 0.4, "planner") == 201
    assert _small(lab)["status"] == "pending"
    assert _decide(lab, run, "approve").status_code == 200
    assert _small(lab)["status"] == "active"
    loosen(lab, {"approvers_to_raise_limit": 1})
    second = _small(lab)["id"]
    assert [_change(lab, second, epsilon) for epsilon in (0.2, 0.21)] == [200, 201]


@pytest.mark.parametrize("place", ["organisation", "population"])
def test_policy_higher_up_counts_the_runs_of_all_budgets_of_a_population(seeded: SeededLedger, place: str) -> None:
    seeded.ledger.population("other")
    for name in ("a", "b"):
        seeded.ledger.budget(name)
        seeded.ledger.budget(name, "other")
    rule = {RULE: 1.2}  # the run of the seeded ledger has no limit of its own, and a budget of 1
    assert put(seeded, rule, seeded.population if place == "population" else None).status_code == 200
    held = "pending" if place == "organisation" else "active"
    for epsilon, budget, status in (
        *((0.2, "mimic/a", "active"), (0.1, "mimic/b", "pending")),
        *((1.0, "other/a", "active"), (0.3, "other/b", held)),
    ):
        assert _small(seeded, epsilon, budget)["status"] == status
    assert _small(seeded, 0.1, budgets=["mimic/a", "other/b"], budget=None)["status"] == "pending"  # type: ignore[arg-type]


def test_bound_is_read_once_for_a_registration_and_not_for_a_step(lab: SeededLedger) -> None:
    made: list[str] = []
    registered = statements(lab, lambda: made.append(_small(lab, 0.01)["id"]))
    asked = [each for each in registered if "proposals.status" in each]
    assert (len(asked), "balances" in asked[0]) == (1, False)  # what runs have spent is read off their last decisions
    assert not any("proposals" in each for each in statements(lab, lambda: lab.steps(run=made[0])))
