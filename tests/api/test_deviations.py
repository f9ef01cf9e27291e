"""A run whose steps differ from what it declared is flagged, or refused where a policy says so."""

from typing import Any

import pytest

from app.service.verification import verify
from tests.api.conftest import SeededLedger
from tests.api.test_policies import GAUSSIAN, put, violation
from tests.conftest import SAMPLED

QUIET = SAMPLED | {"event": {"type": "gaussian", "noise_multiplier": 5.0}}
NOISE = {"kind": "noise_multiplier", "declared": 1.1, "observed": 5.0}


def _flags(seeded: SeededLedger, run: str) -> list[dict[str, Any]]:
    answer: list[dict[str, Any]] = seeded.ledger.get(f"/v1/runs/{run}").json()["deviations"]
    return answer


def _steps(seeded: SeededLedger, body: dict[str, Any], run: str | None = None) -> int:
    return seeded.ledger.post(f"/v1/runs/{run or seeded.run}/steps", body, "trainer").status_code


@pytest.mark.both_databases
def test_steps_that_differ_are_admitted_and_flagged_once(seeded: SeededLedger) -> None:
    assert _flags(seeded, seeded.run) == []
    assert _steps(seeded, {"event": QUIET}) == 200
    assert _steps(seeded, {"event": QUIET}) == 200
    assert _flags(seeded, seeded.run) == [NOISE | {"first_step": 1}]
    assert _steps(seeded, {"event": GAUSSIAN, "mode": "report"}) == 200
    kinds = [flag["kind"] for flag in _flags(seeded, seeded.run)]
    assert kinds == ["noise_multiplier", "sampler", "sampling_probability"]
    assert verify(seeded.ledger.database).problems == ()


def test_steps_that_are_refused_by_the_budget_are_not_flagged(seeded: SeededLedger) -> None:
    assert _steps(seeded, {"event": QUIET, "count": 10**6}) == 403
    assert _flags(seeded, seeded.run) == []


def test_steps_out_of_a_plan_are_flagged_too(seeded: SeededLedger) -> None:
    plan = {"plan": [{"event": QUIET, "count": 2}]}
    assert seeded.ledger.post(f"/v1/runs/{seeded.run}/reservations", plan, "trainer").status_code == 201
    assert _flags(seeded, seeded.run) == []
    assert _steps(seeded, {"event": QUIET}) == 200
    assert _flags(seeded, seeded.run) == [NOISE | {"first_step": 1}]
    assert verify(seeded.ledger.database).problems == ()


def test_more_and_faster_than_declared(seeded: SeededLedger) -> None:
    run = seeded.ledger.run(name="fast", planned=[{"event": SAMPLED, "count": 5}], steps_per_hour=3.0)
    answer = seeded.ledger.get(f"/v1/runs/{run}").json()
    assert (answer["expected_steps"], answer["declared_steps_per_hour"], answer["deviations"]) == (5, 3.0, [])
    assert _steps(seeded, {"count": 4}, run) == 200
    assert _steps(seeded, {"count": 3}, run) == 200
    assert _flags(seeded, run) == [
        {"kind": "steps_per_hour", "declared": 3.0, "observed": 4.0, "first_step": 0},
        {"kind": "steps", "declared": 5, "observed": 7, "first_step": 5},
    ]


def test_where_a_policy_refuses_them_they_are_not_admitted(seeded: SeededLedger) -> None:
    assert put(seeded, {"deviations": "refuse"}, seeded.budget).status_code == 200
    before = seeded.rows()
    reply = seeded.ledger.post(f"/v1/runs/{seeded.run}/steps", {"event": QUIET}, "trainer")
    answer = "noise_multiplier 5.0 where 1.1 was declared"
    assert violation(reply) == ("mimic/icu-team", "deviations", answer, "refuse")
    plan = {"plan": [{"event": QUIET, "count": 2}]}
    assert violation(seeded.ledger.post(f"/v1/runs/{seeded.run}/reservations", plan, "trainer"))[1] == "deviations"
    assert seeded.rows() == before
    assert _steps(seeded, {}) == 200
    assert _steps(seeded, {"event": QUIET, "mode": "report"}) == 200
    assert _flags(seeded, seeded.run) == [NOISE | {"first_step": 2}]


@pytest.mark.parametrize("rate", [0, -1, 1e13, "3", True])
def test_a_rate_that_means_nothing_is_refused(shared: SeededLedger, rate: object) -> None:
    body = {"name": "r", "budget": "mimic/icu-team", "steps_per_hour": rate}
    assert shared.ledger.post("/v1/runs", body).status_code == 422
