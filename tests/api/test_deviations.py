"""A run whose steps differ from what it declared is flagged, or refused where a policy says so."""

from typing import Any

import pytest

from app.service.verification import verify
from tests.api.conftest import House
from tests.api.test_policies import GAUSSIAN, put, violation
from tests.conftest import SAMPLED

QUIET = SAMPLED | {"event": {"type": "gaussian", "noise_multiplier": 5.0}}
NOISE = {"kind": "noise_multiplier", "declared": 1.1, "observed": 5.0}


def _flags(home: House, run: str) -> list[dict[str, Any]]:
    told: list[dict[str, Any]] = home.ledger.get(f"/v1/runs/{run}").json()["deviations"]
    return told


def _steps(home: House, body: dict[str, Any], run: str | None = None) -> int:
    return home.ledger.post(f"/v1/runs/{run or home.run}/steps", body, "trainer").status_code


def test_steps_that_differ_are_admitted_and_flagged_once(home: House) -> None:
    assert _flags(home, home.run) == []
    assert _steps(home, {"event": QUIET}) == 200
    assert _steps(home, {"event": QUIET}) == 200
    assert _flags(home, home.run) == [NOISE | {"first_step": 1}]
    assert _steps(home, {"event": GAUSSIAN, "mode": "report"}) == 200
    kinds = [flag["kind"] for flag in _flags(home, home.run)]
    assert kinds == ["noise_multiplier", "sampler", "sampling_probability"]
    assert verify(home.ledger.database).problems == ()


def test_steps_that_are_refused_by_the_budget_are_not_flagged(home: House) -> None:
    assert _steps(home, {"event": QUIET, "count": 10**6}) == 403
    assert _flags(home, home.run) == []


def test_steps_out_of_a_plan_are_flagged_too(home: House) -> None:
    plan = {"plan": [{"event": QUIET, "count": 2}]}
    assert home.ledger.post(f"/v1/runs/{home.run}/reservations", plan, "trainer").status_code == 201
    assert _flags(home, home.run) == []
    assert _steps(home, {"event": QUIET}) == 200
    assert _flags(home, home.run) == [NOISE | {"first_step": 1}]
    assert verify(home.ledger.database).problems == ()


def test_more_and_faster_than_declared(home: House) -> None:
    run = home.ledger.run(name="fast", planned=[{"event": SAMPLED, "count": 5}], steps_per_hour=3.0)
    told = home.ledger.get(f"/v1/runs/{run}").json()
    assert (told["declared_steps"], told["declared_steps_per_hour"], told["deviations"]) == (5, 3.0, [])
    assert _steps(home, {"count": 4}, run) == 200
    assert _steps(home, {"count": 3}, run) == 200
    assert _flags(home, run) == [
        {"kind": "steps_per_hour", "declared": 3.0, "observed": 4.0, "first_step": 0},
        {"kind": "steps", "declared": 5, "observed": 7, "first_step": 5},
    ]


def test_where_a_policy_refuses_them_they_are_not_admitted(home: House) -> None:
    assert put(home, {"deviations": "refuse"}, home.budget).status_code == 200
    before = home.rows()
    reply = home.ledger.post(f"/v1/runs/{home.run}/steps", {"event": QUIET}, "trainer")
    told = "noise_multiplier 5.0 where 1.1 was declared"
    assert violation(reply) == ("mimic/icu-team", "deviations", told, "refuse")
    plan = {"plan": [{"event": QUIET, "count": 2}]}
    assert violation(home.ledger.post(f"/v1/runs/{home.run}/reservations", plan, "trainer"))[1] == "deviations"
    assert home.rows() == before
    assert _steps(home, {}) == 200
    assert _steps(home, {"event": QUIET, "mode": "report"}) == 200
    assert _flags(home, home.run) == [NOISE | {"first_step": 2}]


@pytest.mark.parametrize("rate", [0, -1, 1e13, "3", True])
def test_a_rate_that_means_nothing_is_refused(house: House, rate: object) -> None:
    body = {"name": "r", "budget": "mimic/icu-team", "steps_per_hour": rate}
    assert house.ledger.post("/v1/runs", body).status_code == 422
