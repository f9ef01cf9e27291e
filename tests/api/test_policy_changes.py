"""Who changes policies: one person makes them stricter, two make them looser."""

from typing import Any

import pytest

from tests.api import trainer
from tests.api.conftest import SeededLedger
from tests.api.test_policies import LIMIT, WHY, loosen, put
from tests.conftest import SAMPLED


def test_policy_is_changed_within_a_scope(seeded: SeededLedger) -> None:
    assert seeded.ledger.get(f"/v1/accounts/{seeded.run}/policy").status_code == 404, "a run has none"
    trainer.issue(seeded.ledger, "bound", "privacy_officer", seeded.budget)
    assert put(seeded, {"require_plan": "declare"}, seeded.run, role="admin").status_code == 404
    for account, status in ((None, 403), (seeded.population, 403), (seeded.budget, 200)):
        assert put(seeded, {"require_plan": "declare"}, account, role="bound").status_code == status, account


def test_approver_raises_a_limit_alone_where_a_policy_says_so(seeded: SeededLedger) -> None:
    def raised(epsilon: float, role: str) -> int:
        return seeded.ledger.set_limit(seeded.budget, epsilon, role).status_code

    alone = put(seeded, {"approvers_to_raise_limit": 1}, seeded.budget)
    assert "can only require 2" in trainer.is_refused(alone, 422, "invalid_request")["detail"]
    assert raised(1.5, "privacy_officer") == 201
    proposal = seeded.ledger.get(f"/v1/proposals?status=open&account={seeded.budget}").json()["items"][0]["id"]
    assert seeded.ledger.post(f"/v1/proposals/{proposal}/reject", {}, "admin").status_code == 200
    loosen(seeded, {"approvers_to_raise_limit": 1})
    assert raised(1.5, "privacy_officer") == 200
    assert raised(2.0, "planner") == 201
    assert seeded.sound()


HELD = {"require_limit": True, "approval_above_epsilon": 0.4, "deviations": "refuse"}


def _policy(seeded: SeededLedger, account: str | None = None) -> dict[str, Any]:
    path = "/v1/policy" if account is None else f"/v1/accounts/{account}/policy"
    return dict(seeded.ledger.get(path).json())


@pytest.mark.parametrize("role", ["privacy_officer", "admin"])
def test_one_person_with_keys_of_their_own_does_not_train_past_an_approval(seeded: SeededLedger, role: str) -> None:
    """They would drop the rules that hold a run to its word, register one, train, and put the rules back."""
    assert put(seeded, HELD, role=role).status_code == 200
    asked = put(seeded, {"approval_above_epsilon": 0.4}, role=role)
    assert (asked.status_code, asked.json()["status"]) == (201, "open")
    for own in (role, "privacy_officer", "trainer"):
        trainer.issue(seeded.ledger, "own", own, by=role)
        approval = seeded.ledger.post(f"/v1/proposals/{asked.json()['id']}/approve", {"reason": "Seen."}, "own")
        trainer.is_refused(approval, 403, "permission_denied")
    body = {"name": "large", "budget": "mimic/icu-team", "planned": [{"event": SAMPLED, "count": 1}]}
    refused = trainer.is_refused(seeded.ledger.post("/v1/runs", body, "own"), 403, "policy_violation")
    assert refused["rule"] == "require_limit"
    assert seeded.ledger.post("/v1/runs", body | {"limit": LIMIT}, "own").json()["status"] == "pending"
    assert seeded.sound()


LOOSER: list[tuple[dict[str, Any], dict[str, Any]]] = [
    ({"max_epsilon": 1.0}, {"max_epsilon": 1.1}),
    ({"require_plan": "stay"}, {"require_plan": "declare"}),
    ({"mechanisms": ["gaussian"]}, {"mechanisms": ["gaussian", "laplace"]}),
    ({"approval_above_epsilon": 0.4}, {"approval_above_epsilon": 0.5}),
    ({"deviations": "refuse"}, {"deviations": "flag"}),
]
"""Which change of each rule is looser is held in full by `tests/ledger/governance/test_policies.py`."""


def test_one_person_makes_a_rule_stricter_and_none_looser(shared: SeededLedger) -> None:
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
    assert [_policy(seeded)[name] for name in ("policy", "revision")] == [{"max_epsilon": 1.0}, 1]
    assert seeded.ledger.post(f"/v1/proposals/{asked.json()['id']}/approve", {"reason": "So be it."}).status_code == 200
    assert (_policy(seeded)["policy"], _policy(seeded)["revision"]) == (mixed, 2)
    told = trainer.audited(seeded.ledger, f"subject={asked.json()['id']}")
    assert [each["action"] for each in told] == ["policy.proposed", "policy.approved"]
    assert [each["reason"] for each in told] == [WHY, "So be it."]
    assert seeded.sound()


VAIN: list[tuple[dict[str, Any], str | None]] = [
    ({"approval_above_epsilon": 1.0, "require_limit": True}, None),
    ({"max_epsilon": 1.0}, "require_limit"),
    ({"deviations": "refuse"}, "require_plan"),
    ({"deviations": "refuse", "require_plan": "declare"}, None),
]


def test_rule_that_does_nothing_without_another_is_warned_of(shared: SeededLedger) -> None:
    for place, (policy, missing) in enumerate(VAIN):
        account = str(shared.ledger.budget(f"vain-{place}")["id"])
        for warnings in (put(shared, policy, account).json()["warnings"], _policy(shared, account)["warnings"]):
            named = [(each["rule"], each["requires"]) for each in warnings]
            assert named == [(next(iter(policy)), missing)] * bool(missing)
            assert all(f"`{missing}`" in each["detail"] for each in warnings)
