"""Alternatives under policies, several budgets, declared steps, lowered limits and archives: each can be followed."""

from typing import Any

import pytest

from app.service.verification import verify
from tests.api.trainer import LOUD, Trainer, gaussian, hired, is_refused, moved
from tests.conftest import Ledger

LIMIT = {"epsilon": 1.0, "delta": 1e-5}


def put_policy(ledger: Ledger, rules: dict[str, Any], account: str | None = None) -> None:
    """Set a policy as two persons do."""
    path = "/v1/policy" if account is None else f"/v1/accounts/{account}/policy"
    body = {"policy": rules, "reason": "The board has met."}
    answer = ledger.http.put(path, json=body, headers=ledger.headers() | {"If-Match": "*"})
    if answer.status_code == 201:
        approved = ledger.post(f"/v1/proposals/{answer.json()['id']}/approve", {}, "privacy_officer")
        assert approved.status_code == 200, approved.text
    else:
        assert answer.status_code == 200, answer.text


def offered(refusal: dict[str, Any]) -> dict[str, dict[str, Any]]:
    return {each["type"]: each for each in refusal["alternatives"]}


def missing(refusal: dict[str, Any]) -> dict[str, str]:
    return {each["type"]: each["reason"] for each in refusal["unavailable_alternatives"]}


def raise_limits(trainer: Trainer, refusal: dict[str, Any]) -> None:
    """Request all limits that a refusal names, and approve them."""
    for each in offered(refusal)["higher_limit"]["limits"]:
        limit = {"epsilon": each["epsilon"], "delta": each["delta"]}
        body = {"account": each["account"], "limit": limit, "reason": "All epochs."}
        made = trainer.post(f"runs/{trainer.run}/limit-requests", body)
        assert made.status_code == 201, made.text
        done = trainer.ledger.post(f"/v1/proposals/{made.json()['id']}/approve", {}, "privacy_officer")
        assert done.status_code == 200, done.text


RULES: dict[str, dict[str, Any]] = {
    "max_delta": {"max_delta": 1e-6},
    "below inverse size, of unknown size": {"require_delta_below_inverse_size": True},
}


@pytest.mark.parametrize("rules", RULES)
def test_no_limit_is_offered_that_a_policy_forbids(ledger: Ledger, rules: str) -> None:
    trainer = hired(ledger, expected_steps=5000)
    put_policy(ledger, RULES[rules])
    refusal = is_refused(trainer.steps(count=4000), 403, "budget_exceeded")
    assert missing(refusal)["higher_limit"] == "policy"
    body = {"limit": {"epsilon": 9.0, "delta": 1e-5}, "reason": "All epochs."}
    is_refused(trainer.post(f"runs/{trainer.run}/limit-requests", body), 403, "policy_violation")


def test_a_policy_forbids_limits_under_it_and_not_the_population_s(ledger: Ledger) -> None:
    ledger.population()
    budget = ledger.budget(limit={"epsilon": 50.0, "delta": 1e-5})
    trainer = Trainer(ledger, ledger.run(event=LOUD, expected_steps=5000))
    put_policy(ledger, {"max_delta": 1e-6}, str(budget["id"]))
    refusal = is_refused(trainer.steps(count=5000), 403, "budget_exceeded")
    assert [each["account_path"] for each in offered(refusal)["higher_limit"]["limits"]] == ["mimic"]
    raise_limits(trainer, refusal)
    assert trainer.steps(count=5000).status_code == 200


@pytest.mark.parametrize(("steps", "fits"), [(400, True), (2000, False)])
def test_a_run_s_own_limit_is_offered_up_to_the_largest_of_a_policy(ledger: Ledger, steps: int, *, fits: bool) -> None:
    ledger.population(limit={"epsilon": 50.0, "delta": 1e-5})
    budget = ledger.budget(limit={"epsilon": 50.0, "delta": 1e-5})
    put_policy(ledger, {"max_epsilon": 1.5}, str(budget["id"]))
    trainer = Trainer(ledger, ledger.run(event=LOUD, limit=LIMIT, expected_steps=steps))
    refusal = is_refused(trainer.steps(count=steps), 403, "budget_exceeded")
    if not fits:
        assert missing(refusal)["higher_limit"] == "policy"
        return
    raise_limits(trainer, refusal)
    assert trainer.steps(count=steps).status_code == 200


def test_steps_beyond_the_declared_ones_are_not_offered_where_a_policy_refuses_them(ledger: Ledger) -> None:
    trainer = hired(ledger, expected_steps=600)
    put_policy(ledger, {"deviations": "refuse"})
    is_refused(trainer.steps(count=601), 403, "policy_violation")
    refusal = is_refused(trainer.steps(count=590, expected_steps=100_000), 403, "budget_exceeded")
    assert refusal["steps_needed"] == 600
    assert missing(refusal)["more_noise"] == "policy"
    raise_limits(trainer, refusal)
    assert trainer.steps(count=600).status_code == 200


def test_fewer_expected_steps_than_were_taken_leave_the_requested_ones(ledger: Ledger) -> None:
    trainer = hired(ledger, expected_steps=5)
    assert trainer.steps(count=100).status_code == 200
    for expected in (None, 1, 99):
        body: dict[str, Any] = {} if expected is None else {"expected_steps": expected}
        refusal = is_refused(trainer.steps(count=4000, **body), 403, "budget_exceeded")
        assert refusal["steps_needed"] == 4000
    noise = offered(refusal)["more_noise"]["noise_multiplier"]
    assert trainer.steps(count=4000, event=gaussian(noise)).status_code == 200


@pytest.mark.parametrize("sizes", [[1], [7], [400], [3000]])
def test_more_noise_holds_in_batches_of_any_size(ledger: Ledger, sizes: list[int]) -> None:
    trainer = hired(ledger, expected_steps=3000)
    refusal = is_refused(trainer.steps(count=3000), 403, "budget_exceeded")
    event, [size] = gaussian(offered(refusal)["more_noise"]["noise_multiplier"]), sizes
    left = refusal["steps_needed"] if size > 1 else 40
    if size == 1:
        assert trainer.steps(count=2960, event=event).status_code == 200
    while left:
        assert trainer.steps(count=min(size, left), event=event).status_code == 200
        left -= min(size, left)
    assert trainer.sound()


def test_a_run_of_two_populations_finishes_with_the_limits_of_both(ledger: Ledger) -> None:
    for name, epsilon in (("mimic", 1.0), ("eicu", 0.6)):
        ledger.population(name, limit={"epsilon": epsilon, "delta": 1e-5})
        ledger.budget("team", name, limit={"epsilon": epsilon, "delta": 1e-5})
    body = {"name": "both", "budgets": ["mimic/team", "eicu/team"], "event": LOUD, "expected_steps": 3000}
    trainer = Trainer(ledger, str(ledger.post("/v1/runs", body).json()["id"]))
    refusal = is_refused(trainer.steps(count=2000), 403, "budget_exceeded")
    paths = {each["account_path"] for each in offered(refusal)["higher_limit"]["limits"]}
    assert paths == {"mimic", "eicu", "mimic/team", "eicu/team"}
    raise_limits(trainer, refusal)
    for _ in range(3):
        assert trainer.steps(count=1000).status_code == 200
    assert verify(ledger.database).problems == ()


def test_a_lowered_limit_leaves_an_alternative_that_can_be_followed(ledger: Ledger) -> None:
    trainer = hired(ledger, expected_steps=900)
    assert trainer.steps(count=200).status_code == 200
    lowered = {"limit": {"epsilon": 0.1, "delta": 1e-5}, "reason": "Less."}
    budget = trainer.read()["budget"]
    assert ledger.post(f"/v1/accounts/{budget}/limit", lowered, If_Match="*").status_code == 200
    refusal = is_refused(trainer.steps(), 403, "budget_exceeded")
    assert refusal["exhausted"]
    assert "same_noise" not in offered(refusal)
    raise_limits(trainer, refusal)
    assert trainer.steps(count=700).status_code == 200


def test_own_reserved_steps_are_part_of_what_is_spent(ledger: Ledger) -> None:
    trainer = hired(ledger, expected_steps=3000)
    reservation = trainer.reserved((LOUD, 200))
    refusal = is_refused(trainer.steps(count=2000, event=gaussian(61.0)), 403, "budget_exceeded")
    event = gaussian(offered(refusal)["more_noise"]["noise_multiplier"])
    assert trainer.steps(count=refusal["steps_needed"], event=event).status_code == 200
    assert trainer.end(reservation, "commit", 200).status_code == 200
    assert trainer.sound()


def test_a_closed_budget_says_so_and_offers_nothing(ledger: Ledger, monkeypatch: pytest.MonkeyPatch) -> None:
    now = moved(monkeypatch, hours=0)
    ledger.population()
    ledger.budget(closes_at=now.replace(microsecond=0, year=now.year + 1).isoformat())
    trainer = Trainer(ledger, ledger.run(event=LOUD, expected_steps=5000))
    assert offered(is_refused(trainer.steps(count=4000), 403, "budget_exceeded"))
    moved(monkeypatch, days=400)
    assert "alternatives" not in is_refused(trainer.steps(count=4000), 403, "budget_closed")


def test_nothing_is_requested_for_what_is_over(ledger: Ledger) -> None:
    """A run that has ended takes no step under a limit of its own, and an archived account none at all."""
    ledger.population()
    budget = ledger.budget()["id"]
    trainer = Trainer(ledger, ledger.run(event=LOUD, limit={"epsilon": 0.5, "delta": 1e-5}))
    is_refused(trainer.steps(count=4000), 403, "budget_exceeded")
    assert trainer.act("complete", {"reason": "budget_exhausted"}).status_code == 200
    higher = {"limit": {"epsilon": 2.0, "delta": 1e-5}, "reason": "All epochs."}
    requests = f"runs/{trainer.run}/limit-requests"
    is_refused(trainer.post(requests, higher | {"account": trainer.run}), 409, "run_state_conflict")
    made = trainer.post(requests, higher | {"account": budget})  # another run may go on
    assert made.status_code == 201
    assert ledger.post(f"/v1/proposals/{made.json()['id']}/reject", {}, "privacy_officer").status_code == 200
    assert ledger.post(f"/v1/accounts/{budget}/archive", {}).status_code == 200
    is_refused(trainer.post(requests, higher | {"account": budget}), 409, "account_archived")
