"""Plans of accounts: what they are, what they admit, and what ends them."""

from math import nextafter
from typing import Any

import numpy as np
import pytest

from app.accounting.curves import GRID_VERSION
from app.accounting.events import NeighboringRelation, event_from_dict
from app.ledger.filter.limits import Limit
from app.ledger.governance.filter_weights import DECLARED_SHARE, planned_weights
from app.ledger.step_events import MAX_COUNT, StepEvent
from tests.api.conftest import LIMIT, POPULATION, SeededLedger
from tests.api.trainer import Trainer, gaussian, is_refused
from tests.conftest import Ledger

ADD = NeighboringRelation.ADD_OR_REMOVE_ONE
WIDE = {"epsilon": 50.0, "delta": 1e-5}
OTHER = {"type": "laplace", "noise_multiplier": 400.0}
PLANNED_OTHERWISE = [{"parameter": "type", "planned": "gaussian", "sent": "laplace"}]


def sampled(q: float, z: float) -> dict[str, Any]:
    return {"type": "poisson_sampled", "sampling_probability": q, "event": gaussian(z)}


STEP, QUIET = gaussian(60.0), gaussian(90.0)
LONG_STEP, LONG_QUIET = sampled(0.02, 1.5), sampled(0.01, 2.0)
"""Two events whose plans take work, as their steps do not add up to one event: a step takes the place of a step."""


def allowed(*items: tuple[dict[str, Any], int], limit: dict[str, float] = LIMIT, share: float = DECLARED_SHARE) -> int:
    """The number of planned steps that a limit allows."""
    steps = tuple(StepEvent(event_from_dict(event), count) for event, count in items)
    weights = planned_weights(Limit.of(limit), steps, ADD, GRID_VERSION, share)
    assert weights.plan is not None
    return weights.plan.steps


def planned(ledger: Ledger, *items: dict[str, Any]) -> dict[str, Any]:
    ledger.population(limit=WIDE)
    return dict(ledger.budget(planned=list(items), limit=LIMIT))


def plan_of(ledger: Ledger, path: str = "mimic/icu-team") -> dict[str, Any]:
    [found] = ledger.get(f"/v1/budgets?path={path}").json()["items"]
    return dict(found["plan"])


def test_plan_admits_as_many_steps_as_it_says_and_no_more(ledger: Ledger) -> None:
    plan = planned(ledger, {"event": STEP})["plan"]
    most = allowed((STEP, MAX_COUNT))
    assert (plan["state"], plan["steps"], plan["steps_remaining"], plan["share"]) == (
        "active",
        most,
        most,
        DECLARED_SHARE,
    )
    trainer = Trainer(ledger, ledger.run(event=STEP))
    first = trainer.steps().json()
    assert (first["steps_remaining"], first["ended_plans"]) == (most - 1, [])
    refusal = is_refused(trainer.steps(count=most), 403, "budget_exceeded")
    assert refusal["max_steps_that_fit"] == most - 1
    last = trainer.steps(count=most - 1).json()
    assert last["steps_remaining"] == 0
    assert first["epsilon"] < last["epsilon"] <= LIMIT["epsilon"]
    assert (plan_of(ledger)["state"], plan_of(ledger)["steps_used"]) == ("exhausted", most)
    is_refused(trainer.steps(), 403, "budget_exceeded")
    assert trainer.sound()


def test_a_parameter_that_differs_in_the_last_place_stays_in_the_plan(ledger: Ledger) -> None:
    most = planned(ledger, {"event": LONG_STEP})["plan"]["steps"]
    trainer = Trainer(ledger, ledger.run(event=LONG_STEP))
    ledger.put("/v1/policy", {"deviations": "refuse"})
    for event in (
        sampled(nextafter(0.02, 1), 1.5),
        sampled(0.02, nextafter(1.5, 0)),
        sampled(0.02 * (1 + 2**-24), 1.5),
        sampled(float(np.float32(0.02)), 1.5),
    ):
        assert trainer.steps(event=event).json()["ended_plans"] == []
    assert (plan_of(ledger)["state"], plan_of(ledger)["steps_remaining"]) == ("active", most - 4)
    assert trainer.sound()


@pytest.mark.parametrize(
    ("meant", "sent"),
    [
        (sampled(0.1, 1.7), sampled(float(np.float32(0.1)), float(np.float32(1.7)))),
        (sampled(0.1, 1.7), sampled(0.1, nextafter(1.7, 0))),
        (sampled(0.3, 5.0), sampled(0.1 * 3, 5.0)),
    ],
    ids=["float32", "nextafter", "0.1 * 3"],
)
def test_a_number_that_was_meant_admits_as_many_steps_as_planned(
    ledger: Ledger, meant: dict[str, Any], sent: dict[str, Any]
) -> None:
    most = planned(ledger, {"event": meant})["plan"]["steps"]
    trainer = Trainer(ledger, ledger.run(event=sent))
    answer = trainer.steps(event=sent, count=10 * most, on_exceed="truncate").json()
    assert (answer["count"], answer["ended_plans"]) == (most, [])
    assert trainer.sound()


def test_parameter_that_leaves_a_plan_is_named(ledger: Ledger) -> None:
    most = planned(ledger, {"event": LONG_STEP})["plan"]["steps"]
    trainer = Trainer(ledger, ledger.run(event=LONG_STEP))
    cause = [{"parameter": "noise_multiplier", "planned": 1.5, "sent": 1.4}]
    [ended] = trainer.steps(event=sampled(0.02, 1.4), dry_run=True).json()["ended_plans"]
    assert (ended["steps_given_up"], ended["differences"]) == (most, cause)
    assert trainer.steps(count=most - 5).status_code == 200
    refusal = is_refused(trainer.steps(event=sampled(0.02, 1.4), count=100), 403, "budget_exceeded")
    assert refusal["plan"]["differences"] == cause
    assert "The plan does not cover this event: its noise_multiplier is 1.4, planned 1.5." in refusal["detail"]


def test_step_outside_the_plan_is_announced_and_ends_it_for_good(ledger: Ledger) -> None:
    made = planned(ledger, {"event": STEP})
    most = made["plan"]["steps"]
    trainer = Trainer(ledger, ledger.run(event=STEP))
    assert trainer.steps(count=10).status_code == 200
    for dry_run in (True, False):
        answer = trainer.steps(event=OTHER, dry_run=dry_run, first_step=10).json()
        [ended] = answer["ended_plans"]
        assert (ended["account_path"], ended["steps_given_up"]) == ("mimic/icu-team", most - 10)
        assert ended["differences"] == PLANNED_OTHERWISE
        assert plan_of(ledger)["state"] == ("active" if dry_run else "ended")
    assert trainer.steps(event=OTHER, first_step=10).json()["ended_plans"] == answer["ended_plans"]  # a replay
    following = trainer.steps().json()
    assert (following["ended_plans"], following["steps_remaining"] < most - 11) == ([], True)
    assert trainer.sound()


def test_policy_keeps_runs_to_their_plans(ledger: Ledger) -> None:
    made = planned(ledger, {"event": STEP})
    assert ledger.set_policy({"require_plan": "stay"}, made["id"]).status_code == 200
    trainer = Trainer(ledger, ledger.run(event=STEP, planned=[{"event": STEP}]))
    assert trainer.steps(count=3).status_code == 200
    problem = is_refused(trainer.steps(event=OTHER), 403, "policy_violation")
    assert (problem["rule"], problem["allowed"]) == ("require_plan", "stay")
    is_refused(trainer.reserve((OTHER, 1)), 403, "policy_violation")
    assert plan_of(ledger)["state"] == "active"
    unplanned = {"name": "unplanned", "budget": "mimic/icu-team", "event": STEP}
    is_refused(ledger.post("/v1/runs", unplanned), 403, "policy_violation")


def test_reservation_sets_planned_steps_aside(ledger: Ledger) -> None:
    most = planned(ledger, {"event": STEP})["plan"]["steps"]
    trainer, other = (Trainer(ledger, ledger.run(name=name, event=STEP)) for name in ("one", "two"))
    held = trainer.reserved((STEP, 40))
    assert (plan_of(ledger)["steps_reserved"], plan_of(ledger)["steps_remaining"]) == (40, most - 40)
    is_refused(other.steps(count=most - 39), 403, "budget_exceeded")
    assert trainer.steps(count=10).status_code == 200
    assert other.steps(count=most - 40).status_code == 200
    assert trainer.sound()
    assert trainer.end(held, "commit", 15).status_code == 200
    assert (plan_of(ledger)["steps_used"], plan_of(ledger)["steps_remaining"]) == (most - 25, 25)
    assert other.steps(count=25).json()["steps_remaining"] == 0
    assert trainer.sound()


SAMPLED_LAPLACE = {"type": "poisson_sampled", "sampling_probability": 0.1}
SAMPLED_LAPLACE |= {"event": {"type": "laplace", "noise_multiplier": 30.0}}
UNPROVEN: list[tuple[dict[str, Any], str, str]] = [
    ({"type": "zcdp", "rho": 0.1}, "add_or_remove_one", "zcdp under add_or_remove_one"),
    ({"type": "discrete_gaussian", "noise_multiplier": 5.0}, "add_or_remove_one", "add_or_remove_one without `sensi"),
    (SAMPLED_LAPLACE, "replace_one", "a Poisson sample of laplace under replace_one"),
]
"""An event, the relation, and why no plan has it."""


def test_event_without_a_proven_pair_is_refused_in_a_plan_by_its_name(ledger: Ledger) -> None:
    for place, (event, relation, why) in enumerate(UNPROVEN):
        name = f"p{place}"
        ledger.population(name, limit=WIDE, neighboring_relation=relation)
        body = {"name": "team", "parent": name, "limit": LIMIT, "planned": [{"event": event, "count": 3}]}
        assert why in is_refused(ledger.post("/v1/budgets", body), 422, "unsupported_event")["detail"]
        trainer = Trainer(ledger, ledger.run(name, event=event, limit=LIMIT))
        assert trainer.read()["plan"] is None  # a run with such a default event has none


def test_only_the_last_event_is_repeated_without_end(seeded: SeededLedger) -> None:
    planned: list[dict[str, Any]] = [{"event": QUIET, "count": 5}, {"event": STEP}, {"event": QUIET, "count": 1}]
    reply = seeded.ledger.post("/v1/populations", POPULATION | {"planned": planned})
    assert is_refused(reply, 422, "invalid_request")["detail"].startswith("planned[1] has no count")
    made = seeded.ledger.post("/v1/populations", POPULATION | {"planned": planned[:2]}).json()
    assert made["planned"] == [planned[0], planned[1] | {"count": None}]
    first, last = made["plan"]["items"]
    assert (first["count"], first["steps"], last["count"], made["weights_frozen"]) == (5, 5, None, True)
    assert made["plan"]["steps"] == 5 + last["steps"] > 5
    run = seeded.ledger.get(f"/v1/runs/{seeded.ledger.run(event=STEP, limit={'epsilon': 0.5, 'delta': 1e-5})}").json()
    assert run["planned"] == [{"event": STEP, "count": None}], "a run with a limit plans its default event"
    assert (run["plan"]["state"], run["plan"]["share"]) == ("active", 0.55)
    assert run["plan"]["delta"] == pytest.approx(5.5e-6)
    without: list[dict[str, Any]] = [{"limit": None}, {"limit": LIMIT, "event": None}]
    for terms in (*without, {"limit": LIMIT, "event": UNPROVEN[0][0]}):
        read = seeded.ledger.get(f"/v1/runs/{seeded.ledger.run(**terms)}").json()
        assert (read["planned"], read["plan"]) == ([], None)


def test_plan_of_several_events_is_used_in_any_order_and_not_frozen_at_any_cost(
    ledger: Ledger, monkeypatch: pytest.MonkeyPatch
) -> None:
    ledger.population(limit=WIDE)
    items = [{"event": LONG_QUIET, "count": 30}, {"event": LONG_STEP, "count": 20}]
    body = {"name": "icu-team", "parent": "mimic", "limit": LIMIT, "planned": items}
    with monkeypatch.context() as patch:
        patch.setattr("app.service.accounts.spec.MAX_PLAN_WORK", 1000)
        refusal = is_refused(ledger.post("/v1/budgets", body), 422, "computation_limit_exceeded")
    assert "fewer different events" in refusal["detail"]
    assert ledger.get("/v1/budgets").json()["items"] == []
    ledger.post("/v1/budgets", body).raise_for_status()
    quiet, loud = (Trainer(ledger, ledger.run(name=name)) for name in ("quiet", "loud"))
    assert loud.steps(event=LONG_STEP, count=15).status_code == 200
    assert quiet.steps(event=LONG_QUIET, count=30).status_code == 200
    assert quiet.steps(event=sampled(0.005, 3.0), count=2).json()["ended_plans"] == []  # in place of louder steps
    assert plan_of(ledger)["steps_remaining"] == 3
    assert loud.steps(event=LONG_STEP, count=4, dry_run=True).json()["ended_plans"] != []
    assert loud.steps(event=LONG_STEP, count=3).json()["ended_plans"] == []
    assert plan_of(ledger)["state"] == "exhausted"
    assert [item["steps_used"] for item in plan_of(ledger)["items"]] == [30, 20]
    assert loud.sound()
