"""Policies: how they are set, what they forbid, and which deviations are flagged."""

from collections.abc import Callable
from typing import Any

import httpx2
from sqlalchemy import event as hooks

from tests.api import trainer
from tests.api.conftest import SeededLedger
from tests.conftest import SAMPLED

WHY = "The board has met."
GAUSSIAN = {"type": "gaussian", "noise_multiplier": 60.0}
LAPLACE = {"type": "laplace", "noise_multiplier": 60.0}
LIMIT = {"epsilon": 0.5, "delta": 1e-6}
BELOW, REPLACE = "require_delta_below_inverse_size", "replace_one"


def put(
    seeded: SeededLedger,
    policy: dict[str, Any],
    account: str | None = None,
    *,
    tag: str | None = "*",
    role: str = "privacy_officer",
) -> httpx2.Response:
    """Set a policy of the organisation, or of an account."""
    return seeded.ledger.set_policy(policy, account, role, tag)


def set_policy(seeded: SeededLedger, policy: dict[str, Any], account: str | None = None) -> None:
    assert put(seeded, policy, account).status_code == 200, policy


def loosen(seeded: SeededLedger, policy: dict[str, Any], account: str | None = None) -> None:
    """Set a looser policy, as two persons can."""
    reply = put(seeded, policy, account)
    assert reply.json()["kind"] == "policy", reply.text
    trainer.approve(seeded.ledger, reply, "admin")


def violation(reply: httpx2.Response) -> tuple[object, ...]:
    """What a policy violation names."""
    answer = reply.json()
    assert (reply.status_code, answer["code"]) == (403, "policy_violation"), reply.text
    return answer["policy"], answer["rule"], answer["value"], answer["allowed"]


def _steps(seeded: SeededLedger, body: dict[str, Any], role: str = "trainer") -> httpx2.Response:
    return seeded.steps(role, **body)


def _run(seeded: SeededLedger, **terms: object) -> httpx2.Response:
    return seeded.ledger.post("/v1/runs", {"name": "model", "budget": "mimic/icu-team", "event": SAMPLED} | terms)


def test_policy_is_set_read_inherited_and_recorded(seeded: SeededLedger) -> None:
    empty = seeded.ledger.get("/v1/policy").json()
    assert (empty["policy"], empty["revision"], empty["account"], empty["path"]) == ({}, 0, None, "organisation")
    assert (empty["effective"]["approvers_to_raise_limit"], empty["effective"]["deviations"]) == (2, "flag")
    set_policy(seeded, {"max_epsilon": 2.0, "mechanisms": ["laplace", "gaussian"]})
    own = {"max_epsilon": 5.0, "mechanisms": ["gaussian", "zcdp"], "require_plan": "declare"}
    set_policy(seeded, own, seeded.budget)
    reply = seeded.ledger.get(f"/v1/accounts/{seeded.budget}/policy")
    answer = reply.json()
    assert put(seeded, answer["policy"], seeded.budget).headers["ETag"] == reply.headers["ETag"]
    assert answer["policy"] == own
    holds = {name: answer["effective"][name] for name in ("max_epsilon", "mechanisms", "require_plan", "max_delta")}
    assert holds == {"max_epsilon": 2.0, "mechanisms": ["gaussian"], "require_plan": "declare", "max_delta": None}
    first, second, *_ = trainer.audited(seeded.ledger, "action=policy.replaced")
    assert (second["subject"], second["reason"]) == (seeded.budget, WHY)
    assert first["before"] == {"policy": {}, "revision": 0}
    assert first["after"] == {"policy": {"max_epsilon": 2.0, "mechanisms": ["gaussian", "laplace"]}, "revision": 1}
    assert seeded.sound()


def test_steps_are_refused_by_mechanism_and_noise(seeded: SeededLedger) -> None:
    set_policy(seeded, {"mechanisms": ["gaussian"], "min_noise_multiplier": 1.0})
    set_policy(seeded, {"min_noise_multiplier": 30.0}, seeded.budget)
    before = seeded.rows()
    inside = {"type": "poisson_sampled", "sampling_probability": 0.1, "event": LAPLACE}
    assert violation(_steps(seeded, {"event": inside})) == ("organisation", "mechanisms", "laplace", ["gaussian"])
    loud = GAUSSIAN | {"noise_multiplier": 0.5}
    assert violation(_steps(seeded, {"event": loud})) == ("organisation", "min_noise_multiplier", 0.5, 1.0)
    less = {"event": GAUSSIAN | {"noise_multiplier": 20.0}}
    assert violation(_steps(seeded, less)) == ("mimic/icu-team", "min_noise_multiplier", 20.0, 30.0)
    both = {"events": [{"event": GAUSSIAN}, {"event": LAPLACE}]}
    assert violation(_steps(seeded, both)) == ("organisation", "mechanisms", "laplace", ["gaussian"])
    preview = seeded.ledger.post(f"/v1/runs/{seeded.run}/steps?dry_run=true", {"event": LAPLACE}, "trainer")
    assert violation(preview)[1] == "mechanisms"
    assert seeded.rows() == before
    assert _steps(seeded, {"event": GAUSSIAN}).status_code == 200
    set_policy(seeded, {"mechanisms": ["gaussian"], "min_noise_multiplier": 1.0, "report_roles": ["admin"]})
    report = {"mode": "report", "event": LAPLACE}
    assert violation(_steps(seeded, report)) == ("organisation", "report_roles", "trainer", ["admin"])
    assert _steps(seeded, report, "admin").status_code == 200, "what has happened is recorded"
    assert seeded.sound()


def test_policy_that_changes_between_two_steps_holds_for_the_second(seeded: SeededLedger) -> None:
    assert _steps(seeded, {"event": LAPLACE, "first_step": 1}).status_code == 200
    for account in (None, seeded.population, seeded.budget):
        set_policy(seeded, {"mechanisms": ["gaussian"]}, account)
        assert violation(_steps(seeded, {"event": LAPLACE}))[1] == "mechanisms"
        loosen(seeded, {}, account)
        assert _steps(seeded, {"event": LAPLACE}).status_code == 200
    set_policy(seeded, {"mechanisms": ["gaussian"]})
    again = _steps(seeded, {"event": LAPLACE, "first_step": 1})
    assert (again.status_code, again.headers["idempotent-replayed"]) == (200, "true")


def test_plan_is_refused_by_a_policy_and_an_earlier_reservation_stays(seeded: SeededLedger) -> None:
    path = f"/v1/runs/{seeded.run}/reservations"
    assert seeded.ledger.post(path, {"events": [{"event": LAPLACE, "count": 2}]}, "trainer").status_code == 201
    set_policy(seeded, {"mechanisms": ["gaussian"]})
    assert [_steps(seeded, {"event": LAPLACE}).status_code for _ in range(2)] == [200, 200]
    assert violation(_steps(seeded, {"event": LAPLACE}))[1] == "mechanisms"
    other = seeded.ledger.run(name="other")
    refused = seeded.ledger.post(f"/v1/runs/{other}/reservations", {"events": [{"event": LAPLACE}]}, "trainer")
    assert violation(refused) == ("organisation", "mechanisms", "laplace", ["gaussian"])
    assert seeded.sound()


Row = tuple[dict[str, Any], dict[str, Any], tuple[object, object, object]]
LIMITED, OTHER = {"limit": LIMIT}, {"reserve": [{"event": LAPLACE}]}
FORBIDDEN: list[Row] = [
    ({"require_limit": True}, {}, ("require_limit", "not given", True)),
    ({"require_plan": "declare"}, {}, ("require_plan", "not given", "declare")),
    ({"max_epsilon": 0.4}, {}, ("max_epsilon", 1.0, 0.4)),
    ({"max_delta": 1e-7}, LIMITED, ("max_delta", 1e-6, 1e-7)),
    ({BELOW: True}, LIMITED, (BELOW, "a population of unknown size", True)),
    ({"neighboring_relations": [REPLACE]}, {}, ("neighboring_relations", "add_or_remove_one", [REPLACE])),
    ({"mechanisms": ["gaussian"]}, OTHER, ("mechanisms", "laplace", ["gaussian"])),
    ({"mechanisms": ["gaussian"]}, {"planned": OTHER["reserve"]}, ("mechanisms", "laplace", ["gaussian"])),
]


def test_run_that_a_policy_forbids_is_not_registered(shared: SeededLedger) -> None:
    for place, (policy, terms, named) in enumerate(FORBIDDEN):
        budget = shared.ledger.budget(f"forbids-{place}")
        set_policy(shared, policy, str(budget["id"]))
        before = shared.rows()
        assert violation(_run(shared, budget=budget["path"], **terms)) == (budget["path"], *named)
        assert shared.rows() == before


def test_populations_budgets_and_limits_are_refused_by_policies(seeded: SeededLedger) -> None:
    ledger, more = seeded.ledger, {"epsilon": 2.0, "delta": 1e-4}
    limit = f"/v1/accounts/{seeded.budget}/limit"
    proposed = ledger.post(limit, {"limit": more, "reason": WHY}, "planner", If_Match="*").json()
    set_policy(seeded, {"max_delta": 1e-5, "neighboring_relations": ["add_or_remove_one"]})
    terms = {"name": "new", "privacy_unit": "user", "neighboring_relation": "replace_one", "limit": LIMIT}
    assert violation(ledger.post("/v1/populations", terms))[1] == "neighboring_relations"
    terms["neighboring_relation"] = "add_or_remove_one"
    assert violation(ledger.post("/v1/populations", terms | {"limit": more}))[1] == "max_delta"
    assert ledger.post("/v1/populations", terms).status_code == 201
    budget = {"name": "b", "parent": "new", "limit": more}
    assert violation(ledger.post("/v1/budgets", budget)) == ("organisation", "max_delta", 1e-4, 1e-5)
    approval = ledger.post(f"/v1/proposals/{proposed['id']}/approve", {}, "privacy_officer")
    changed = ledger.post(limit, {"limit": {"epsilon": 0.5, "delta": 1e-4}, "reason": WHY}, If_Match="*")
    assert [violation(reply)[1] for reply in (approval, changed)] == ["max_delta", "max_delta"]
    assert ledger.get(f"/v1/proposals/{proposed['id']}").json()["status"] == "open"


def statements(seeded: SeededLedger, call: Callable[[], object]) -> list[str]:
    """What a call asks of the database."""
    seen: list[str] = []

    def note(*given: Any) -> None:  # noqa: ANN401 - as SQLAlchemy calls
        seen.append(given[2])

    hooks.listen(seeded.ledger.database.engine, "before_cursor_execute", note)
    call()
    hooks.remove(seeded.ledger.database.engine, "before_cursor_execute", note)
    return seen


def test_policy_costs_a_step_no_query(seeded: SeededLedger) -> None:
    before = [statements(seeded, lambda: seeded.steps().raise_for_status()) for _ in range(2)][1]
    set_policy(seeded, {"mechanisms": ["gaussian"], "min_noise_multiplier": 0.5, "max_epsilon": 2.0})
    set_policy(seeded, {"deviations": "flag", "report_roles": ["admin"]}, seeded.budget)
    assert _steps(seeded, {}).status_code == 200
    assert statements(seeded, lambda: seeded.steps().raise_for_status()) == before


QUIET = SAMPLED | {"event": {"type": "gaussian", "noise_multiplier": 5.0}}
NOISE = {"kind": "noise_multiplier", "declared": 1.1, "observed": 5.0}


def _flags(seeded: SeededLedger, run: str) -> list[dict[str, Any]]:
    return list(seeded.ledger.get(f"/v1/runs/{run}").json()["deviations"])


def test_steps_that_differ_are_admitted_and_flagged_once(seeded: SeededLedger) -> None:
    assert _flags(seeded, seeded.run) == []
    assert [_steps(seeded, {"event": QUIET}).status_code for _ in range(2)] == [200, 200]
    assert _flags(seeded, seeded.run) == [NOISE | {"first_step": 1}]
    assert _steps(seeded, {"event": GAUSSIAN, "mode": "report"}).status_code == 200
    kinds = [flag["kind"] for flag in _flags(seeded, seeded.run)]
    assert kinds == ["noise_multiplier", "sampler", "sampling_probability"]
    assert seeded.sound()


def test_deviating_steps_are_refused_where_a_policy_says_so(seeded: SeededLedger) -> None:
    assert put(seeded, {"deviations": "refuse"}, seeded.budget).status_code == 200
    before = seeded.rows()
    answer = "noise_multiplier 5.0 where 1.1 was declared"
    assert violation(_steps(seeded, {"event": QUIET})) == ("mimic/icu-team", "deviations", answer, "refuse")
    plan = {"events": [{"event": QUIET, "count": 2}]}
    assert violation(seeded.ledger.post(f"/v1/runs/{seeded.run}/reservations", plan, "trainer"))[1] == "deviations"
    assert seeded.rows() == before
    assert _steps(seeded, {}).status_code == 200
    assert _steps(seeded, {"event": QUIET, "mode": "report"}).status_code == 200
    assert _flags(seeded, seeded.run) == [NOISE | {"first_step": 2}]
