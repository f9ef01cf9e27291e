"""A policy is made stricter by one person, and looser by two."""

from typing import Any

import pytest

from app.ledger.policies import Policy
from app.service.verification import verify
from tests.api.conftest import SeededLedger
from tests.api.test_policies import LIMIT, WHY, loosen, put
from tests.api.trainer import is_refused
from tests.conftest import SAMPLED

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
        issued = seeded.ledger.post("/v1/api-keys", {"role": own}, role).json()["key"]
        seeded.ledger.keys["hospital", "own"] = issued
        approval = seeded.ledger.post(f"/v1/proposals/{asked.json()['id']}/approve", {"reason": "Seen."}, "own")
        is_refused(approval, 403, "insufficient_scope")
    body = {"name": "large", "budget": "mimic/icu-team", "planned": [{"event": SAMPLED, "count": 1}]}
    assert is_refused(seeded.ledger.post("/v1/runs", body, "own"), 403, "policy_violation")["rule"] == "require_limit"
    assert seeded.ledger.post("/v1/runs", body | {"limit": LIMIT}, "own").json()["status"] == "pending"
    assert verify(seeded.ledger.database).problems == ()


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
    rules = {rule for strict, _ in LOOSER for rule in strict}
    assert rules | {"approvers_to_create_population"} == set(Policy.__dataclass_fields__)  # the organisation's alone
    for place, (strict, loose) in enumerate(LOOSER):
        account = str(shared.ledger.budget(f"b-{place}")["id"])
        assert put(shared, loose, account).status_code == 200
        for looser in (loose, {}):
            assert put(shared, strict, account).status_code == 200
            asked = put(shared, looser, account)
            assert (asked.status_code, asked.json()["kind"], asked.json()["account"]) == (201, "policy", account)
            assert _policy(shared, account)["policy"] == {name: value for name, value in strict.items() if value}
            reply = shared.ledger.post(f"/v1/proposals/{asked.json()['id']}/approve", {}, "admin")
            assert (reply.status_code, reply.json()["status"]) == (200, "approved")
            assert _policy(shared, account)["policy"] == {name: value for name, value in looser.items() if value}
    assert verify(shared.ledger.database).problems == ()


def test_policy_that_is_stricter_and_looser_at_once_waits_as_a_whole(seeded: SeededLedger) -> None:
    assert put(seeded, {"max_epsilon": 1.0}).status_code == 200
    mixed = {"max_epsilon": 2.0, "require_plan": "declare"}
    asked = put(seeded, mixed)
    assert (asked.status_code, asked.json()["proposed"]) == (201, {"policy": mixed, "revision": 1})
    assert (_policy(seeded)["policy"], _policy(seeded)["revision"]) == ({"max_epsilon": 1.0}, 1)
    assert seeded.ledger.post(f"/v1/proposals/{asked.json()['id']}/approve", {"reason": "So be it."}).status_code == 200
    assert (_policy(seeded)["policy"], _policy(seeded)["revision"]) == (mixed, 2)
    events = seeded.ledger.get(f"/v1/audit-events?order=oldest&subject={asked.json()['id']}", "auditor").json()["items"]
    assert [(event["action"], event["reason"]) for event in events] == [
        ("policy.proposed", WHY),
        ("policy.approved", "So be it."),
    ]
    assert verify(seeded.ledger.database).problems == ()


@pytest.mark.parametrize("place", ["organisation", "budget"])
def test_proposal_about_a_policy_that_was_changed_since_is_not_approved(seeded: SeededLedger, place: str) -> None:
    account = seeded.budget if place == "budget" else None
    assert put(seeded, {"max_epsilon": 1.0}, account).status_code == 200
    asked = put(seeded, {}, account).json()
    assert put(seeded, {"max_epsilon": 0.5}, account).status_code == 200
    reply = seeded.ledger.post(f"/v1/proposals/{asked['id']}/approve", {}, "admin")
    assert (reply.status_code, reply.json()["code"], reply.json()["policy_revision"]) == (412, "precondition_failed", 2)
    assert _policy(seeded, account)["policy"] == {"max_epsilon": 0.5}
    assert seeded.ledger.post(f"/v1/proposals/{asked['id']}/reject", {}, "admin").status_code == 200
    loosen(seeded, {}, account)
    assert verify(seeded.ledger.database).problems == ()


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


@pytest.mark.parametrize(("policy", "missing"), VAIN, ids=str)
def test_rule_that_does_nothing_without_another_is_warned_of(
    seeded: SeededLedger, policy: dict[str, Any], missing: str | None
) -> None:
    for warnings in (put(seeded, policy).json()["warnings"], _policy(seeded)["warnings"]):
        assert [(each["rule"], each["requires"]) for each in warnings] == (
            [(next(iter(policy)), missing)] * bool(missing)
        )
        assert all(f"`{missing}`" in each["detail"] for each in warnings)
