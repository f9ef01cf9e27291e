"""Planning requests of few bytes that are built to take long: each is answered or refused within its bound."""

import os
import random

import pytest

from app.accounting.pricing_effort import MAX_PLAN_WORK, MAX_WORK
from benchmarks.hostile_plans import KNOWN, Json, hostile_plans, measure, warm_up
from tests.processor_budget import slowness

MOST_SECONDS = (MAX_WORK + 2 * MAX_PLAN_WORK) / 1e6 + 0.7
"""A plan and the reading of its loss distributions have work of their own each; a busy machine takes longer."""

MOST_MEGABYTES = 350
ROUNDS = int(os.environ.get("RELIABILITY_ROUNDS", "50"))


def require_bounded(operation: str, body: Json) -> None:
    found = measure(operation, body)
    assert found.outcome in {"answered", "unsupported_event", "computation_limit_exceeded", "invalid_event"}, body
    assert found.seconds <= MOST_SECONDS, (operation, body)
    assert found.megabytes <= MOST_MEGABYTES, (operation, body)


@pytest.mark.parametrize("name", KNOWN)
def test_known_hostile_plan_stops_soon_after_a_bound_of_a_tenth_of_a_second(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    warm_up()
    monkeypatch.setattr("app.accounting.pricing_effort.MAX_PLAN_WORK", 100_000)
    found = measure(*KNOWN[name])
    assert found.seconds <= max(1.0, slowness()), "a second of processor time, or of the machine of the budgets"
    assert found.megabytes <= 120


@pytest.mark.soak
@pytest.mark.parametrize("name", KNOWN)
def test_known_hostile_plan_is_bounded(name: str) -> None:
    require_bounded(*KNOWN[name])


@pytest.mark.soak
@pytest.mark.parametrize("seed", range(ROUNDS))
def test_random_hostile_plans_are_bounded(seed: int) -> None:
    for operation, body in hostile_plans(random.Random(seed), 20):  # noqa: S311 - repeatable
        require_bounded(operation, body)
