"""Plans of accounts over HTTP: what they admit, what ends them, and that the ledger proves it."""

from itertools import pairwise
from typing import Any

import pytest

from app.accounting.curves import GRID_VERSION
from app.accounting.events import NeighboringRelation, event_from_dict
from app.ledger.filters import Limit
from app.ledger.plan_filter import workload_of
from app.ledger.step_events import MAX_COUNT, StepEvent
from app.ledger.tuning import DECLARED_SHARE, DEFAULT_SHARE, planned_weights
from tests.api.trainer import Trainer, gaussian, is_refused
from tests.conftest import Ledger

ADD = NeighboringRelation.ADD_OR_REMOVE_ONE
LIMIT = {"epsilon": 1.0, "delta": 1e-5}
WIDE = {"epsilon": 50.0, "delta": 1e-5}
OTHER = {"type": "laplace", "noise_multiplier": 400.0}


def sampled(q: float, z: float) -> dict[str, Any]:
    return {"type": "poisson_sampled", "sampling_probability": q, "event": gaussian(z)}


STEP, QUIET = sampled(0.02, 1.5), sampled(0.01, 2.0)


def allowed(*items: tuple[dict[str, Any], int], limit: dict[str, float] = LIMIT, share: float = DECLARED_SHARE) -> int:
    """The number of planned steps that a limit allows."""
    steps = tuple(StepEvent(event_from_dict(event), count) for event, count in items)
    weights = planned_weights(Limit(**limit), steps, ADD, GRID_VERSION, share)
    assert weights.plan is not None
    return weights.plan.steps


def planned(ledger: Ledger, *items: dict[str, Any]) -> dict[str, Any]:
    ledger.population(limit=WIDE)
    found: dict[str, Any] = ledger.budget(planned=list(items), limit=LIMIT)
    return found


def plan_of(ledger: Ledger, path: str = "mimic/icu-team") -> dict[str, Any]:
    [found] = ledger.get(f"/v1/budgets?path={path}").json()["items"]
    plan: dict[str, Any] = found["plan"]
    return plan


def test_a_plan_admits_as_many_steps_as_it_says_and_no_more(ledger: Ledger) -> None:
    plan = planned(ledger, {"event": STEP})["plan"]
    most = allowed((STEP, MAX_COUNT))
    assert (plan["state"], plan["steps"], plan["steps_left"], plan["share"]) == ("active", most, most, DECLARED_SHARE)
    trainer = Trainer(ledger, ledger.run(event=STEP))
    first = trainer.steps().json()
    assert (first["steps_remaining"], first["ended_plans"]) == (most - 1, [])
    refusal = is_refused(trainer.steps(count=most), 403, "budget_exceeded")
    assert refusal["max_count_that_fits"] == most - 1
    last = trainer.steps(count=most - 1).json()
    assert last["steps_remaining"] == 0
    assert first["epsilon"] < last["epsilon"] <= LIMIT["epsilon"]
    assert (plan_of(ledger)["state"], plan_of(ledger)["steps_used"]) == ("exhausted", most)
    is_refused(trainer.steps(), 403, "budget_exceeded")
    assert trainer.sound()


def test_a_plan_is_used_up_in_any_order_by_several_runs(ledger: Ledger) -> None:
    planned(ledger, {"event": QUIET, "count": 30}, {"event": STEP, "count": 20})
    quiet, loud = (Trainer(ledger, ledger.run(name=name)) for name in ("quiet", "loud"))
    assert loud.steps(event=STEP, count=15).status_code == 200
    assert quiet.steps(event=QUIET, count=30).status_code == 200
    assert quiet.steps(event=sampled(0.005, 3.0), count=2).json()["ended_plans"] == []  # in place of louder steps
    assert plan_of(ledger)["steps_left"] == 3
    assert loud.steps(event=STEP, count=4, dry_run=True).json()["ended_plans"] != []
    assert loud.steps(event=STEP, count=3).json()["ended_plans"] == []
    assert plan_of(ledger)["state"] == "exhausted"
    assert [item["steps_used"] for item in plan_of(ledger)["items"]] == [30, 20]
    assert loud.sound()


def test_a_step_outside_the_plan_is_announced_and_ends_it_for_good(ledger: Ledger) -> None:
    made = planned(ledger, {"event": STEP})
    most = made["plan"]["steps"]
    trainer = Trainer(ledger, ledger.run(event=STEP))
    assert trainer.steps(count=10).status_code == 200
    given_up = [{"account": made["id"], "account_path": "mimic/icu-team", "steps_given_up": most - 10}]
    for dry_run in (True, False):
        answer = trainer.steps(event=OTHER, dry_run=dry_run, first_step=10).json()
        assert [each | {"account": None} for each in answer["ended_plans"]] == [
            each | {"account": None} for each in given_up
        ]
        assert plan_of(ledger)["state"] == ("active" if dry_run else "ended")
    assert trainer.steps(event=OTHER, first_step=10).json()["ended_plans"] == answer["ended_plans"]  # a replay
    following = trainer.steps().json()
    assert (following["ended_plans"], following["steps_remaining"] < most - 11) == ([], True)
    assert trainer.sound()


def test_a_first_step_of_another_kind_tunes_the_filter_anew(ledger: Ledger) -> None:
    most = planned(ledger, {"event": STEP})["plan"]["steps"]
    ledger.budget("other")
    trainers = [Trainer(ledger, ledger.run(f"mimic/{budget}", event=OTHER)) for budget in ("icu-team", "other")]
    left, plain = (trainer.steps().json() for trainer in trainers)
    assert [each["steps_given_up"] for each in left["ended_plans"]] == [most]
    assert left["steps_remaining"] == plain["steps_remaining"]
    assert plan_of(ledger) is None
    assert trainers[0].sound()


def test_a_policy_keeps_runs_to_their_plans(ledger: Ledger) -> None:
    made = planned(ledger, {"event": STEP})
    body = {"policy": {"require_plan": "stay"}, "reason": "one training"}
    path = f"/v1/accounts/{made['id']}/policy"
    headers = ledger.headers() | {"If-Match": ledger.get(path, "admin").headers["ETag"]}
    assert ledger.http.put(path, json=body, headers=headers).status_code == 200
    trainer = Trainer(ledger, ledger.run(event=STEP, planned=[{"event": STEP}]))
    assert trainer.steps(count=3).status_code == 200
    problem = is_refused(trainer.steps(event=OTHER), 403, "policy_violation")
    assert (problem["rule"], problem["allowed"]) == ("require_plan", "stay")
    is_refused(trainer.reserve((OTHER, 1)), 403, "policy_violation")
    assert plan_of(ledger)["state"] == "active"
    unplanned = {"name": "unplanned", "budget": "mimic/icu-team", "event": STEP}
    is_refused(ledger.post("/v1/runs", unplanned), 403, "policy_violation")


def test_a_reservation_sets_planned_steps_aside(ledger: Ledger) -> None:
    most = planned(ledger, {"event": STEP})["plan"]["steps"]
    trainer, other = (Trainer(ledger, ledger.run(name=name, event=STEP)) for name in ("one", "two"))
    held = trainer.reserved((STEP, 40))
    assert (plan_of(ledger)["steps_reserved"], plan_of(ledger)["steps_left"]) == (40, most - 40)
    is_refused(other.steps(count=most - 39), 403, "budget_exceeded")
    assert trainer.steps(count=10).status_code == 200
    assert other.steps(count=most - 40).status_code == 200
    assert trainer.sound()
    assert trainer.end(held, "commit", 15).status_code == 200
    assert (plan_of(ledger)["steps_used"], plan_of(ledger)["steps_left"]) == (most - 25, 25)
    assert other.steps(count=25).json()["steps_remaining"] == 0
    assert trainer.sound()


def test_a_reservation_outside_the_plan_that_is_voided_gives_the_plan_back(ledger: Ledger) -> None:
    most = planned(ledger, {"event": STEP})["plan"]["steps"]
    trainer, other = (Trainer(ledger, ledger.run(name=name, event=STEP)) for name in ("one", "two"))
    assert other.steps().status_code == 200
    held = trainer.reserved((OTHER, 1))
    assert plan_of(ledger)["state"] == "ended"
    assert other.steps().json()["steps_remaining"] < most - 2
    assert trainer.end(held, "void").status_code == 200
    assert (plan_of(ledger)["state"], plan_of(ledger)["steps_used"]) == ("active", 2)
    assert other.steps().json()["steps_remaining"] == most - 3
    assert trainer.sound()


def test_a_run_with_a_limit_has_its_default_event_as_its_plan(ledger: Ledger) -> None:
    ledger.population(limit=WIDE)
    ledger.budget(limit=WIDE)
    trainer = Trainer(ledger, ledger.run(event=STEP, limit=LIMIT))
    most = allowed((STEP, MAX_COUNT), share=DEFAULT_SHARE)
    read = trainer.read()
    assert (read["plan"]["steps"], read["plan"]["share"], read["steps_remaining"]) == (most, DEFAULT_SHARE, most)
    assert trainer.steps(count=most).json()["steps_remaining"] == 0
    is_refused(trainer.steps(), 403, "budget_exceeded")
    assert trainer.sound()


INTEGERS = {"type": "discrete_gaussian", "noise_multiplier": 20.0, "sensitivity": 3}
LESS_OF_INTEGERS = INTEGERS | {"noise_multiplier": 60.0, "sensitivity": 1}  # with the same sigma
GEOMETRIC = {"type": "discrete_laplace", "noise_parameter": 0.02, "sensitivity": 3}
CHOICE = {"type": "permute_and_flip", "epsilon": 0.05}
DRAWN = {
    "type": "mixture_of_gaussians",
    "standard_deviation": 30.0,
    "sensitivities": [0.0, 1.0, 2.0],
    "sampling_probs": [0.5, 0.3, 0.2],
}
CUT = {
    "type": "truncated_poisson_sampled",
    "source_dataset_size": 1000,
    "sampling_probability": 0.05,
    "truncated_batch_size": 70,
    "event": gaussian(2.0),
}
PLANNED: list[tuple[dict[str, Any], dict[str, Any], NeighboringRelation]] = [
    *((INTEGERS, LESS_OF_INTEGERS, relation) for relation in NeighboringRelation),
    *((GEOMETRIC, GEOMETRIC | {"sensitivity": 1}, relation) for relation in NeighboringRelation),
    *((CHOICE, CHOICE | {"epsilon": 0.01}, relation) for relation in NeighboringRelation),
    (DRAWN, DRAWN | {"standard_deviation": 40.0}, NeighboringRelation.ADD_OR_REMOVE_ONE),
    (DRAWN, DRAWN | {"standard_deviation": 40.0}, NeighboringRelation.REPLACE_SPECIAL),
    (CUT, CUT, NeighboringRelation.ADD_OR_REMOVE_ONE),
]
"""An event that a plan may hold, one that it covers, and the relation."""


@pytest.mark.parametrize(
    ("event", "smaller", "relation"), PLANNED, ids=[f"{event['type']}, {relation}" for event, _, relation in PLANNED]
)
def test_an_event_with_a_proven_pair_is_planned_and_covers_smaller_ones(
    ledger: Ledger, event: dict[str, Any], smaller: dict[str, Any], relation: NeighboringRelation
) -> None:
    ledger.population(limit=WIDE, neighboring_relation=relation)
    step = StepEvent(event_from_dict(event), MAX_COUNT)
    most = workload_of((step,), relation).longest(LIMIT["epsilon"], DECLARED_SHARE * LIMIT["delta"])
    assert most > 0
    ledger.budget(planned=[{"event": event}], limit=LIMIT)
    assert plan_of(ledger)["steps"] == most
    trainer = Trainer(ledger, ledger.run(event=event))
    assert trainer.steps(event=smaller).json()["ended_plans"] == []
    assert plan_of(ledger)["steps_left"] == most - 1
    last = trainer.steps(count=most - 1).json()
    assert (last["steps_remaining"], last["epsilon"] <= LIMIT["epsilon"]) == (0, True)
    is_refused(trainer.steps(), 403, "budget_exceeded")
    assert trainer.sound()


FIXED = {"type": "sampled_without_replacement", "source_dataset_size": 1000, "sample_size": 10, "event": gaussian(1.0)}


@pytest.mark.parametrize(
    ("event", "relation", "why"),
    [
        (FIXED, "replace_one", "a batch of fixed size under replace_one"),
        ({"type": "zcdp", "rho": 0.1}, "add_or_remove_one", "zcdp under add_or_remove_one"),
        (
            {"type": "discrete_gaussian", "noise_multiplier": 5.0},
            "add_or_remove_one",
            "add_or_remove_one without `sensi",
        ),
        (DRAWN, "replace_one", "mixture_of_gaussians under replace_one"),
        (CUT, "replace_one", "truncated_poisson_sampled of gaussian under replace_one"),
        (CUT, "replace_special", "truncated_poisson_sampled of gaussian under replace_special"),
        (
            FIXED | {"type": "sampled_with_replacement"},
            "replace_one",
            "sampled_with_replacement of gaussian under repl",
        ),
    ],
)
def test_what_cannot_be_planned_is_refused_by_name(
    ledger: Ledger, event: dict[str, Any], relation: str, why: str
) -> None:
    ledger.population(limit=WIDE, neighboring_relation=relation)
    body = {"name": "team", "parent": "mimic", "limit": LIMIT, "planned": [{"event": event, "count": 3}]}
    assert why in is_refused(ledger.post("/v1/budgets", body), 422, "unsupported_event")["detail"]
    trainer = Trainer(ledger, ledger.run(str(ledger.budget(limit=LIMIT)["path"]), event=event, limit=LIMIT))
    assert trainer.read()["plan"] is None  # a run with such a default event has none


def test_only_the_last_event_has_no_end(ledger: Ledger) -> None:
    ledger.population(limit=WIDE)
    body = {
        "name": "team",
        "parent": "mimic",
        "limit": LIMIT,
        "planned": [{"event": STEP}, {"event": QUIET, "count": 2}],
    }
    assert "planned[0]" in is_refused(ledger.post("/v1/budgets", body), 422, "invalid_request")["detail"]


def test_limits_change_what_a_plan_allows(ledger: Ledger) -> None:
    made = planned(ledger, {"event": STEP})
    trainer = Trainer(ledger, ledger.run(event=STEP))
    assert trainer.steps(count=50).status_code == 200
    seen = []
    for epsilon in (0.8, 0.2, 2.0):
        body = {"limit": {"epsilon": epsilon, "delta": 1e-5}, "reason": "try"}
        reply = ledger.post(f"/v1/accounts/{made['id']}/limit", body, "budget_admin", If_Match="*")
        if reply.status_code == 201:  # a proposal
            approved = ledger.post(f"/v1/proposals/{reply.json()['id']}/approve", {"reason": "fine"}, "privacy_officer")
            assert approved.status_code == 200, approved.text
        seen.append(plan_of(ledger)["steps"])
        assert trainer.sound()
    assert seen[1] < 50 < seen[0] < seen[2]
    assert trainer.steps().json()["steps_remaining"] == seen[2] - 51


def test_every_kind_of_plan_is_proven_by_its_epsilons(ledger: Ledger) -> None:
    planned(ledger, {"event": STEP})
    trainer = Trainer(ledger, ledger.run(event=STEP))
    workload = workload_of((StepEvent(event_from_dict(STEP), MAX_COUNT),), ADD)
    read = [trainer.steps(count=7).json()["epsilon"] for _ in range(8)]
    assert all(before <= after for before, after in pairwise(read))
    for place, epsilon in enumerate(read):
        assert workload.delta(7 * (place + 1), epsilon, 1e-5) <= 1e-5


def test_the_steps_of_a_schedule_are_shown_as_its_own(ledger: Ledger) -> None:
    schedule = {"type": "decay", "mode": "exp", "decay_rate": 0.01, "steps": 20, "event": sampled(0.02, 1.5)}
    shown = planned(ledger, {"event": schedule, "count": 1}, {"event": QUIET, "count": 30})["plan"]
    assert (shown["steps"], [item["steps"] for item in shown["items"]]) == (50, [20, 30])
    trainer = Trainer(ledger, ledger.run(event=schedule))
    trainer.steps().raise_for_status()
    after = plan_of(ledger)
    assert [(item["count"], item["steps_used"]) for item in after["items"]] == [(1, 20), (30, 0)]


def test_a_plan_that_takes_too_long_to_freeze_is_refused(ledger: Ledger, monkeypatch: pytest.MonkeyPatch) -> None:
    ledger.population(limit=WIDE)
    body = {"name": "icu-team", "parent": "mimic", "limit": LIMIT, "planned": [{"event": STEP}]}
    with monkeypatch.context() as patch:
        patch.setattr("app.service.accounts.spec.MAX_PLAN_WORK", 1000)
        refusal = is_refused(ledger.post("/v1/budgets", body), 422, "computation_limit_exceeded")
    assert "fewer different events" in refusal["detail"]
    assert ledger.get("/v1/budgets").json()["items"] == []
    ledger.post("/v1/budgets", body).raise_for_status()
