"""Policies: who sets and loosens them, what they forbid, and which deviations are flagged."""

from typing import Any

import httpx2
import pytest
from sqlalchemy import event as hooks

from app.ledger.policies import Policy
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
    path = "policy" if account is None else f"accounts/{account}/policy"
    return trainer.put(seeded.ledger, path, {"policy": policy, "reason": WHY}, role, tag)


def _set(seeded: SeededLedger, policy: dict[str, Any], account: str | None = None) -> None:
    reply = put(seeded, policy, account)
    assert reply.status_code == 200, reply.text


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
    _set(seeded, {"max_epsilon": 2.0, "mechanisms": ["laplace", "gaussian"]})
    _set(seeded, {"max_epsilon": 5.0, "mechanisms": ["gaussian", "zcdp"], "require_plan": "declare"}, seeded.budget)
    reply = seeded.ledger.get(f"/v1/accounts/{seeded.budget}/policy")
    answer = reply.json()
    assert put(seeded, answer["policy"], seeded.budget).headers["ETag"] == reply.headers["ETag"]
    assert answer["policy"] == {"max_epsilon": 5.0, "mechanisms": ["gaussian", "zcdp"], "require_plan": "declare"}
    holds = {name: answer["effective"][name] for name in ("max_epsilon", "mechanisms", "require_plan", "max_delta")}
    assert holds == {"max_epsilon": 2.0, "mechanisms": ["gaussian"], "require_plan": "declare", "max_delta": None}
    first, second, *_ = trainer.audited(seeded.ledger, "action=policy.replaced")
    assert (second["subject"], second["reason"]) == (seeded.budget, WHY)
    assert first["before"] == {"policy": {}, "revision": 0}
    assert first["after"] == {"policy": {"max_epsilon": 2.0, "mechanisms": ["gaussian", "laplace"]}, "revision": 1}
    assert seeded.sound()


def test_policy_is_changed_under_the_tag_that_was_read_and_within_a_scope(seeded: SeededLedger) -> None:
    tag = seeded.ledger.get("/v1/policy").headers["etag"]
    trainer.is_refused(put(seeded, {}, tag=None), 428, "precondition_required")
    assert put(seeded, {"max_delta": 1e-4}, tag=tag).status_code == 200
    stale = trainer.is_refused(put(seeded, {"max_delta": 1e-3}, tag=tag), 412, "precondition_failed")
    assert stale["policy_revision"] == 1
    again = put(seeded, {"max_delta": 1e-4})
    assert (again.status_code, again.json()["revision"]) == (200, 1)
    assert seeded.ledger.get(f"/v1/accounts/{seeded.run}/policy").status_code == 404, "a run has none"
    trainer.issue(seeded.ledger, "bound", "privacy_officer", seeded.budget)
    for account, role, status in (
        *((seeded.run, "admin", 404), (None, "bound", 403)),
        *((seeded.population, "bound", 403), (seeded.budget, "bound", 200)),
    ):
        assert put(seeded, {"require_plan": "declare"}, account, role=role).status_code == status, account


def test_steps_are_refused_by_mechanism_and_noise(seeded: SeededLedger) -> None:
    _set(seeded, {"mechanisms": ["gaussian"], "min_noise_multiplier": 1.0})
    _set(seeded, {"min_noise_multiplier": 30.0}, seeded.budget)
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
    _set(seeded, {"mechanisms": ["gaussian"], "min_noise_multiplier": 1.0, "report_roles": ["admin"]})
    report = {"mode": "report", "event": LAPLACE}
    assert violation(_steps(seeded, report)) == ("organisation", "report_roles", "trainer", ["admin"])
    assert _steps(seeded, report, "admin").status_code == 200, "what has happened is recorded"
    assert seeded.sound()


def test_policy_that_changes_between_two_steps_holds_for_the_second(seeded: SeededLedger) -> None:
    assert _steps(seeded, {"event": LAPLACE, "first_step": 1}).status_code == 200
    for account in (None, seeded.population, seeded.budget):
        _set(seeded, {"mechanisms": ["gaussian"]}, account)
        assert violation(_steps(seeded, {"event": LAPLACE}))[1] == "mechanisms"
        loosen(seeded, {}, account)
        assert _steps(seeded, {"event": LAPLACE}).status_code == 200
    _set(seeded, {"mechanisms": ["gaussian"]})
    again = _steps(seeded, {"event": LAPLACE, "first_step": 1})
    assert (again.status_code, again.headers["idempotent-replayed"]) == (200, "true")


def test_plan_is_refused_by_a_policy_and_an_earlier_reservation_stays(seeded: SeededLedger) -> None:
    path = f"/v1/runs/{seeded.run}/reservations"
    assert seeded.ledger.post(path, {"plan": [{"event": LAPLACE, "count": 2}]}, "trainer").status_code == 201
    _set(seeded, {"mechanisms": ["gaussian"]})
    assert [_steps(seeded, {"event": LAPLACE}).status_code for _ in range(2)] == [200, 200]
    assert violation(_steps(seeded, {"event": LAPLACE}))[1] == "mechanisms"
    other = seeded.ledger.run(name="other")
    refused = seeded.ledger.post(f"/v1/runs/{other}/reservations", {"plan": [{"event": LAPLACE}]}, "trainer")
    assert violation(refused) == ("organisation", "mechanisms", "laplace", ["gaussian"])
    assert seeded.sound()


Row = tuple[dict[str, Any], dict[str, Any], tuple[object, object, object]]
LIMITED, OTHER = {"limit": LIMIT}, {"plan": [{"event": LAPLACE}]}
FORBIDDEN: list[Row] = [
    ({"require_limit": True}, {}, ("require_limit", "not given", True)),
    ({"require_plan": "declare"}, {}, ("require_plan", "not given", "declare")),
    ({"max_epsilon": 0.4}, LIMITED, ("max_epsilon", 0.5, 0.4)),
    ({"max_epsilon": 0.4}, {}, ("max_epsilon", 1.0, 0.4)),
    ({"max_delta": 1e-7}, LIMITED, ("max_delta", 1e-6, 1e-7)),
    ({BELOW: True}, LIMITED, (BELOW, "a population of unknown size", True)),
    ({"neighboring_relations": [REPLACE]}, {}, ("neighboring_relations", "add_or_remove_one", [REPLACE])),
    ({"mechanisms": ["laplace"]}, {}, ("mechanisms", "gaussian", ["laplace"])),
    ({"mechanisms": ["gaussian"]}, OTHER, ("mechanisms", "laplace", ["gaussian"])),
    ({"mechanisms": ["gaussian"]}, {"planned": OTHER["plan"]}, ("mechanisms", "laplace", ["gaussian"])),
]


def test_run_that_a_policy_forbids_is_not_registered(shared: SeededLedger) -> None:
    for place, (policy, terms, named) in enumerate(FORBIDDEN):
        budget = shared.ledger.budget(f"forbids-{place}")
        _set(shared, policy, str(budget["id"]))
        before = shared.rows()
        assert violation(_run(shared, budget=budget["path"], **terms)) == (budget["path"], *named)
        assert shared.rows() == before


def test_populations_budgets_and_limits_are_refused_by_policies(seeded: SeededLedger) -> None:
    ledger, more = seeded.ledger, {"epsilon": 2.0, "delta": 1e-4}
    limit = f"/v1/accounts/{seeded.budget}/limit"
    proposed = ledger.post(limit, {"limit": more, "reason": WHY}, "planner", If_Match="*").json()
    _set(seeded, {"max_delta": 1e-5, "neighboring_relations": ["add_or_remove_one"]})
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


def test_approver_raises_a_limit_alone_where_a_policy_says_so(seeded: SeededLedger) -> None:
    path = f"/v1/accounts/{seeded.budget}/limit"

    def raised(epsilon: float, role: str) -> int:
        body = {"limit": {"epsilon": epsilon, "delta": 1e-5}, "reason": WHY}
        return seeded.ledger.post(path, body, role, If_Match="*").status_code

    _set(seeded, {"approvers_to_raise_limit": 1}, seeded.budget)
    assert raised(1.5, "privacy_officer") == 201
    proposal = seeded.ledger.get(f"/v1/proposals?status=open&account={seeded.budget}").json()["items"][0]["id"]
    assert seeded.ledger.post(f"/v1/proposals/{proposal}/reject", {}, "admin").status_code == 200
    loosen(seeded, {"approvers_to_raise_limit": 1})
    assert raised(1.5, "privacy_officer") == 200
    assert raised(2.0, "planner") == 201
    assert seeded.sound()


def _statements(seeded: SeededLedger) -> list[str]:
    """What a step asks of the database."""
    seen: list[str] = []

    def note(_: object, __: object, statement: str, *___: object) -> None:
        seen.append(statement)

    hooks.listen(seeded.ledger.database.engine, "before_cursor_execute", note)
    assert _steps(seeded, {}).status_code == 200
    hooks.remove(seeded.ledger.database.engine, "before_cursor_execute", note)
    return seen


def test_policy_costs_a_step_no_query(seeded: SeededLedger) -> None:
    for _ in range(2):
        before = _statements(seeded)
    _set(seeded, {"mechanisms": ["gaussian"], "min_noise_multiplier": 0.5, "max_epsilon": 2.0})
    _set(seeded, {"deviations": "flag", "report_roles": ["admin"]}, seeded.budget)
    assert _steps(seeded, {}).status_code == 200
    assert _statements(seeded) == before


QUIET = SAMPLED | {"event": {"type": "gaussian", "noise_multiplier": 5.0}}
NOISE = {"kind": "noise_multiplier", "declared": 1.1, "observed": 5.0}


def _flags(seeded: SeededLedger, run: str) -> list[dict[str, Any]]:
    answer: list[dict[str, Any]] = seeded.ledger.get(f"/v1/runs/{run}").json()["deviations"]
    return answer


def _take(seeded: SeededLedger, body: dict[str, Any], run: str = "") -> int:
    return seeded.steps(run=run, **body).status_code


def test_steps_that_differ_are_admitted_and_flagged_once(seeded: SeededLedger) -> None:
    assert _flags(seeded, seeded.run) == []
    assert _take(seeded, {"event": QUIET}) == 200
    assert _take(seeded, {"event": QUIET}) == 200
    assert _flags(seeded, seeded.run) == [NOISE | {"first_step": 1}]
    assert _take(seeded, {"event": GAUSSIAN, "mode": "report"}) == 200
    kinds = [flag["kind"] for flag in _flags(seeded, seeded.run)]
    assert kinds == ["noise_multiplier", "sampler", "sampling_probability"]
    assert seeded.sound()


def test_deviating_steps_are_refused_where_a_policy_says_so(seeded: SeededLedger) -> None:
    assert put(seeded, {"deviations": "refuse"}, seeded.budget).status_code == 200
    before = seeded.rows()
    reply = seeded.ledger.post(f"/v1/runs/{seeded.run}/steps", {"event": QUIET}, "trainer")
    answer = "noise_multiplier 5.0 where 1.1 was declared"
    assert violation(reply) == ("mimic/icu-team", "deviations", answer, "refuse")
    plan = {"plan": [{"event": QUIET, "count": 2}]}
    assert violation(seeded.ledger.post(f"/v1/runs/{seeded.run}/reservations", plan, "trainer"))[1] == "deviations"
    assert seeded.rows() == before
    assert _take(seeded, {}) == 200
    assert _take(seeded, {"event": QUIET, "mode": "report"}) == 200
    assert _flags(seeded, seeded.run) == [NOISE | {"first_step": 2}]


HELD = {"require_limit": True, "approval_above_epsilon": 0.4, "deviations": "refuse"}


def _policy(seeded: SeededLedger, account: str | None = None) -> dict[str, Any]:
    path = "/v1/policy" if account is None else f"/v1/accounts/{account}/policy"
    shown: dict[str, Any] = seeded.ledger.get(path).json()
    return shown


@pytest.mark.parametrize("role", ["privacy_officer", "admin"])
def test_one_person_with_keys_of_their_own_does_not_train_past_an_approval(seeded: SeededLedger, role: str) -> None:
    """They would drop the rules that hold a run to its word, register one, train, and put the rules back."""
    assert put(seeded, HELD, role=role).status_code == 200
    asked = put(seeded, {"approval_above_epsilon": 0.4}, role=role)
    assert (asked.status_code, asked.json()["status"]) == (201, "open")
    for own in (role, "privacy_officer", "trainer"):
        trainer.issue(seeded.ledger, "own", own, by=role)
        approval = seeded.ledger.post(f"/v1/proposals/{asked.json()['id']}/approve", {"reason": "Seen."}, "own")
        trainer.is_refused(approval, 403, "insufficient_scope")
    body = {"name": "large", "budget": "mimic/icu-team", "planned": [{"event": SAMPLED, "count": 1}]}
    assert (
        trainer.is_refused(seeded.ledger.post("/v1/runs", body, "own"), 403, "policy_violation")["rule"]
        == "require_limit"
    )
    assert seeded.ledger.post("/v1/runs", body | {"limit": LIMIT}, "own").json()["status"] == "pending"
    assert seeded.sound()


LOOSER: list[tuple[dict[str, Any], dict[str, Any]]] = [
    ({"max_epsilon": 1.0}, {"max_epsilon": 1.1}),
    ({"max_delta": 1e-6}, {"max_delta": 2e-6}),
    ({"require_delta_below_inverse_size": True}, {"require_delta_below_inverse_size": False}),
    ({"require_limit": True}, {"require_limit": False}),
    ({"require_plan": "declare"}, {}),
    ({"require_plan": "stay"}, {"require_plan": "declare"}),
    ({"mechanisms": ["gaussian"]}, {"mechanisms": ["gaussian", "laplace"]}),
    ({"neighboring_relations": ["replace_one"]}, {"neighboring_relations": ["add_or_remove_one", "replace_one"]}),
    ({"min_noise_multiplier": 1.0}, {"min_noise_multiplier": 0.9}),
    ({"approval_above_epsilon": 0.4}, {"approval_above_epsilon": 0.5}),
    ({"max_unapproved_epsilon_per_budget": 2.0}, {"max_unapproved_epsilon_per_budget": 2.5}),
    ({"report_roles": ["admin"]}, {"report_roles": ["admin", "trainer"]}),
    ({"approvers_to_raise_limit": 2}, {"approvers_to_raise_limit": 1}),
    ({"deviations": "refuse"}, {"deviations": "flag"}),
]


def test_one_person_makes_a_rule_stricter_and_none_looser(shared: SeededLedger) -> None:
    """Of each rule; which change is looser is held in full by `tests/ledger/test_policies.py`."""
    rules = {rule for strict, _ in LOOSER for rule in strict}
    assert rules | {"approvers_to_create_population"} == set(Policy.__dataclass_fields__)  # the organisation's alone
    account = str(shared.ledger.budget("loosened")["id"])
    for strict, loose in LOOSER:
        assert put(shared, strict, account).status_code == 200
        asked = put(shared, loose, account)
        assert (asked.status_code, asked.json()["kind"], asked.json()["account"]) == (201, "policy", account)
        assert _policy(shared, account)["policy"] == {name: value for name, value in strict.items() if value}
        trainer.approve(shared.ledger, asked, "admin")
        assert _policy(shared, account)["policy"] == {name: value for name, value in loose.items() if value}
        back = put(shared, {}, account)
        if back.status_code == 201:
            trainer.approve(shared.ledger, back, "admin")
    assert shared.sound()


def test_policy_that_is_stricter_and_looser_at_once_waits_as_a_whole(seeded: SeededLedger) -> None:
    assert put(seeded, {"max_epsilon": 1.0}).status_code == 200
    mixed = {"max_epsilon": 2.0, "require_plan": "declare"}
    asked = put(seeded, mixed)
    assert (asked.status_code, asked.json()["proposed"]) == (201, {"policy": mixed, "revision": 1})
    assert (_policy(seeded)["policy"], _policy(seeded)["revision"]) == ({"max_epsilon": 1.0}, 1)
    assert seeded.ledger.post(f"/v1/proposals/{asked.json()['id']}/approve", {"reason": "So be it."}).status_code == 200
    assert (_policy(seeded)["policy"], _policy(seeded)["revision"]) == (mixed, 2)
    told = [
        (each["action"], each["reason"]) for each in trainer.audited(seeded.ledger, f"subject={asked.json()['id']}")
    ]
    assert told == [("policy.proposed", WHY), ("policy.approved", "So be it.")]
    assert seeded.sound()


def test_proposal_about_a_policy_that_was_changed_since_is_not_approved(seeded: SeededLedger) -> None:
    account = seeded.budget
    assert put(seeded, {"max_epsilon": 1.0}, account).status_code == 200
    asked = put(seeded, {}, account).json()
    assert put(seeded, {"max_epsilon": 0.5}, account).status_code == 200
    reply = seeded.ledger.post(f"/v1/proposals/{asked['id']}/approve", {}, "admin")
    assert (reply.status_code, reply.json()["code"], reply.json()["policy_revision"]) == (412, "precondition_failed", 2)
    assert _policy(seeded, account)["policy"] == {"max_epsilon": 0.5}
    assert seeded.ledger.post(f"/v1/proposals/{asked['id']}/reject", {}, "admin").status_code == 200
    loosen(seeded, {}, account)
    assert seeded.sound()


def test_repeated_request_proposes_once_and_another_policy_waits_its_turn(seeded: SeededLedger) -> None:
    assert put(seeded, {"max_epsilon": 1.0}).status_code == 200
    first = put(seeded, {})
    before = seeded.rows()
    again = put(seeded, {})
    assert (again.status_code, again.json()) == (201, first.json())
    for other in (put(seeded, {"max_epsilon": 2.0}), put(seeded, {}, role="admin")):
        assert (other.status_code, other.json()["proposal"]) == (422, first.json()["id"])
    assert seeded.rows() == before


VAIN: list[tuple[dict[str, Any], str | None]] = [
    ({"approval_above_epsilon": 1.0}, "require_limit"),
    ({"approval_above_epsilon": 1.0, "require_limit": True}, None),
    ({"max_epsilon": 1.0}, "require_limit"),
    ({"deviations": "refuse"}, "require_plan"),
    ({"deviations": "refuse", "require_plan": "declare"}, None),
    ({"min_noise_multiplier": 1.0}, "mechanisms"),
]


def test_rule_that_does_nothing_without_another_is_warned_of(shared: SeededLedger) -> None:
    for place, (policy, missing) in enumerate(VAIN):
        account = str(shared.ledger.budget(f"vain-{place}")["id"])
        for warnings in (put(shared, policy, account).json()["warnings"], _policy(shared, account)["warnings"]):
            named = [(each["rule"], each["requires"]) for each in warnings]
            assert named == [(next(iter(policy)), missing)] * bool(missing)
            assert all(f"`{missing}`" in each["detail"] for each in warnings)
