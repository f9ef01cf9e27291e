"""Mechanisms with a delta of their own, over HTTP."""

from typing import Any

import pytest

from app.service.verification import verify
from tests.api.conftest import SeededLedger
from tests.conftest import Ledger


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
def test_own_deltas_are_counted_to_the_last(ledger: Ledger, planned: list[dict[str, Any]]) -> None:
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


@pytest.mark.both_databases
def test_a_pure_release_costs_its_epsilon(ledger: Ledger) -> None:
    ledger.population(limit={"epsilon": 1.0, "delta": 1e-12})
    ledger.budget(limit={"epsilon": 0.50001, "delta": 1e-12})
    run = ledger.run(event={"type": "laplace", "noise_multiplier": 4.0})
    assert ledger.post(f"/v1/runs/{run}/steps", {"count": 2}, "trainer").status_code == 200
    read = ledger.get(f"/v1/runs/{run}").json()
    assert read["epsilon"] == pytest.approx(0.5, rel=1e-8)
    assert ledger.post(f"/v1/runs/{run}/steps", {}, "trainer").status_code == 403
