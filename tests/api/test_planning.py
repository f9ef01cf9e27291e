"""Stateless planning: what a plan would cost, by the same accountant, without a trace in the ledger."""

from typing import Any

import numpy as np
import pytest

from app.accounting.conversion import epsilon_from_rdp
from app.accounting.curves import GRID_VERSION, HIGHEST, orders
from app.accounting.events import NeighboringRelation, event_from_dict
from app.accounting.rdp import event_curve
from tests.api.conftest import SeededLedger
from tests.conftest import SAMPLED
from tests.soak import in_turns

GAUSSIAN = {"type": "gaussian", "noise_multiplier": 5.0}
PLANS: dict[str, list[dict[str, Any]]] = {
    "one release": [{"event": GAUSSIAN}],
    "a training": [{"event": SAMPLED, "count": 14040}],
    "a mixture": [{"event": SAMPLED, "count": 900}, {"event": GAUSSIAN, "count": 2}, {"event": SAMPLED}],
    "hardly anything": [{"event": {"type": "gaussian", "noise_multiplier": 1e6}}],
}


def _plan(shared: SeededLedger, events: list[dict[str, Any]], delta: float = 1e-5, **terms: str) -> dict[str, Any]:
    reply = shared.ledger.post("/v1/accounting/epsilon", {"events": events, "delta": delta} | terms, "viewer")
    assert reply.status_code == 200, reply.text
    cost: dict[str, Any] = reply.json()
    return cost


@pytest.mark.parametrize(("what", "delta"), in_turns(PLANS, [1e-9, 1e-5, 0.1]))
def test_a_plan_costs_what_the_accountant_says(shared: SeededLedger, what: str, delta: float) -> None:
    before = shared.rows()
    cost = _plan(shared, PLANS[what], delta)
    relation = NeighboringRelation.ADD_OR_REMOVE_ONE
    curves = [event_curve(event_from_dict(item["event"]), relation).times(item.get("count", 1)) for item in PLANS[what]]
    best = epsilon_from_rdp(orders(GRID_VERSION), sum(curves[1:], start=curves[0]).nats(), delta)
    assert (cost["epsilon"], cost["optimal_order"]) == (best.epsilon, best.order)
    assert cost["delta"] == delta
    assert shared.rows() == before


def test_the_order_and_the_batching_of_a_plan_do_not_matter(shared: SeededLedger) -> None:
    plan = PLANS["a mixture"]
    split = [{"event": SAMPLED, "count": 450}, *reversed(plan[1:]), {"event": SAMPLED, "count": 450}]
    assert _plan(shared, split) == _plan(shared, plan)


def test_an_infinite_cost_is_told_and_warned_of(shared: SeededLedger) -> None:
    cost = _plan(shared, [{"event": {"type": "gaussian", "noise_multiplier": 1e-3}, "count": 10**9}])
    assert (cost["epsilon"], cost["optimal_order"]) == ("Infinity", None)
    assert cost["warnings"]


def test_a_vacuous_epsilon_and_the_edge_of_the_grid_are_warned_of(shared: SeededLedger) -> None:
    assert _plan(shared, PLANS["a training"])["warnings"] == []
    vacuous = _plan(shared, [{"event": {"type": "gaussian", "noise_multiplier": 0.1}}])
    assert vacuous["epsilon"] > 20
    assert any("vacuous" in warning for warning in vacuous["warnings"])
    edge = _plan(shared, [{"event": {"type": "gaussian", "noise_multiplier": 5000.0}}])
    assert edge["optimal_order"] == HIGHEST
    assert any("edge" in warning for warning in edge["warnings"])


def test_costs_grow_with_steps_and_fall_with_noise_and_delta(shared: SeededLedger) -> None:
    def cost(noise: float, count: int, delta: float) -> float:
        event = {"type": "gaussian", "noise_multiplier": noise}
        return float(_plan(shared, [{"event": event, "count": count}], delta)["epsilon"])

    for smaller, larger in (((9, 1, 1e-5), (8, 1, 1e-5)), ((9, 1, 1e-5), (9, 2, 1e-5)), ((9, 1, 1e-5), (9, 1, 1e-6))):
        assert cost(*smaller) < cost(*larger)


def test_replacing_a_record_costs_as_much_as_half_the_noise(shared: SeededLedger) -> None:
    replaced = _plan(shared, [{"event": GAUSSIAN}], neighboring_relation="replace_one")
    halved = _plan(shared, [{"event": {"type": "gaussian", "noise_multiplier": 2.5}}])
    special = _plan(shared, [{"event": GAUSSIAN}], neighboring_relation="replace_special")
    assert np.isclose(replaced["epsilon"], halved["epsilon"], rtol=1e-12)
    assert special == _plan(shared, [{"event": GAUSSIAN}])
