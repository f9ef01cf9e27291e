"""A policy is made stricter by one person, and looser by two."""

from datetime import UTC, datetime
from typing import Any

import httpx2
import pytest

from app.ledger.permissions import Role
from app.ledger.policies import Policy
from app.service.governance.api_keys import create_key
from app.service.verification import verify
from tests.api.conftest import SeededLedger
from tests.api.test_policies import LIMIT, loosen, put
from tests.conftest import SAMPLED

HELD = {"require_limit": True, "approval_above_epsilon": 0.4, "deviations": "refuse"}


def _approve(seeded: SeededLedger, proposal: str, key: str) -> httpx2.Response:
    path, sent = f"/v1/proposals/{proposal}/approve", {"Authorization": f"Bearer {key}"}
    reply: httpx2.Response = seeded.ledger.http.post(path, json={"reason": "Seen."}, headers=sent)
    return reply


def _issued(seeded: SeededLedger, role: str, issuer: str = "privacy_officer", **terms: str) -> str:
    reply = seeded.ledger.post("/v1/api-keys", {"role": role} | terms, issuer)
    assert reply.status_code == 201, reply.text
    return str(reply.json()["key"])


def _policy(seeded: SeededLedger, account: str | None = None) -> dict[str, Any]:
    path = "/v1/policy" if account is None else f"/v1/accounts/{account}/policy"
    shown: dict[str, Any] = seeded.ledger.get(path).json()
    return shown


@pytest.mark.parametrize("role", ["privacy_officer", "admin"])
def test_one_person_with_keys_of_their_own_does_not_train_past_an_approval(seeded: SeededLedger, role: str) -> None:
    """They would drop the rules that hold a run to its word, register one, train, and put the rules back."""
    assert put(seeded, HELD, role=role).status_code == 200
    own = seeded.ledger.keys["hospital", role]
    others = [_issued(seeded, each, role) for each in ("privacy_officer", "trainer")]
    before = _policy(seeded)
    asked = put(seeded, {"approval_above_epsilon": 0.4}, role=role)
    assert (asked.status_code, asked.json()["status"]) == (201, "open")
    for key in (own, *others):
        refused = _approve(seeded, asked.json()["id"], key)
        assert (refused.status_code, refused.json()["code"]) == (403, "insufficient_scope")
    assert _policy(seeded) == before
    body = {"name": "large", "budget": "mimic/icu-team", "planned": [{"event": SAMPLED, "count": 1}]}
    headers = {"Authorization": f"Bearer {others[1]}"}
    refused = seeded.ledger.http.post("/v1/runs", json=body, headers=headers)
    assert (refused.status_code, refused.json()["rule"]) == (403, "require_limit")
    made = seeded.ledger.http.post("/v1/runs", json=body | {"limit": LIMIT}, headers=headers).json()
    assert made["status"] == "pending"
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


def test_every_rule_can_be_loosened() -> None:
    rules = {rule for strict, _ in LOOSER for rule in strict}
    assert rules | {"approvers_to_create_population"} == set(Policy.__dataclass_fields__)  # the organisation's alone


@pytest.mark.parametrize(("strict", "loose"), LOOSER, ids=str)
def test_one_person_makes_a_rule_stricter_and_none_looser(
    shared: SeededLedger, strict: dict[str, Any], loose: dict[str, Any]
) -> None:
    account = str(shared.ledger.budget(f"b-{len(shared.rows()['accounts'])}")["id"])
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


def test_the_organisation_says_by_two_persons_that_one_is_enough(seeded: SeededLedger) -> None:
    assert put(seeded, {"approvers_to_raise_limit": 1}, seeded.budget).status_code == 200  # says nothing there
    asked = put(seeded, {"approvers_to_raise_limit": 1}, role="admin")
    assert asked.status_code == 201
    assert put(seeded, {"approvers_to_raise_limit": 2}).status_code == 200


def test_what_is_stricter_and_looser_at_once_waits_as_a_whole(seeded: SeededLedger) -> None:
    assert put(seeded, {"max_epsilon": 1.0}).status_code == 200
    mixed = {"max_epsilon": 2.0, "require_plan": "declare"}
    asked = put(seeded, mixed)
    assert asked.status_code == 201
    assert asked.json()["proposed"] == {"policy": mixed, "revision": 1}
    assert (_policy(seeded)["policy"], _policy(seeded)["revision"]) == ({"max_epsilon": 1.0}, 1)
    assert seeded.ledger.post(f"/v1/proposals/{asked.json()['id']}/approve", {"reason": "So be it."}).status_code == 200
    assert (_policy(seeded)["policy"], _policy(seeded)["revision"]) == (mixed, 2)
    audit_events = seeded.ledger.get(f"/v1/audit-events?order=oldest&subject={asked.json()['id']}", "auditor").json()[
        "items"
    ]
    assert [(audit_event["action"], audit_event["reason"]) for audit_event in audit_events] == [
        ("policy.proposed", "The board has met."),
        ("policy.approved", "So be it."),
    ]
    assert audit_events[0]["before"] == {"policy": {"max_epsilon": 1.0}, "revision": 1}
    [changed] = seeded.ledger.get("/v1/audit-events?order=oldest&action=policy.replaced", "auditor").json()["items"][1:]
    assert (changed["before"]["revision"], changed["after"]["revision"]) == (1, 2)
    assert verify(seeded.ledger.database).problems == ()


@pytest.mark.parametrize("place", ["organisation", "budget"])
def test_a_proposal_about_a_policy_that_was_changed_since_is_not_approved(seeded: SeededLedger, place: str) -> None:
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


def test_who_repeats_a_request_proposes_once_and_another_policy_waits_its_turn(seeded: SeededLedger) -> None:
    assert put(seeded, {"max_epsilon": 1.0}).status_code == 200
    first = put(seeded, {})
    before = seeded.rows()
    again = put(seeded, {})
    assert (again.status_code, again.json()) == (201, first.json())
    for other in (put(seeded, {"max_epsilon": 2.0}), put(seeded, {}, role="admin")):
        assert (other.status_code, other.json()["proposal"]) == (422, first.json()["id"])
    assert seeded.rows() == before


def test_who_is_bound_to_an_account_neither_sees_nor_approves_what_is_proposed_for_the_organisation(
    seeded: SeededLedger,
) -> None:
    assert put(seeded, {"max_epsilon": 1.0}).status_code == 200
    path = f"/v1/proposals/{put(seeded, {}).json()['id']}"
    bound = {"Authorization": f"Bearer {_issued(seeded, 'privacy_officer', 'admin', scope=seeded.population)}"}
    http = seeded.ledger.http
    assert http.get(path, headers=bound).status_code == 403
    assert [http.post(f"{path}/{end}", headers=bound).status_code for end in ("approve", "reject")] == [403, 403]
    listed = http.get("/v1/proposals", headers=bound).json()["items"]
    assert {each["kind"] for each in listed} == {"limit"}


def test_a_one_person_organisation_loosens_by_a_second_key_of_the_command_line(seeded: SeededLedger) -> None:
    assert put(seeded, {"max_epsilon": 1.0}).status_code == 200
    asked = put(seeded, {}).json()
    second = create_key(seeded.ledger.database, "hospital", Role.PRIVACY_OFFICER, datetime.now(UTC)).key
    assert _approve(seeded, asked["id"], second).status_code == 200
    assert _policy(seeded)["policy"] == {}


@pytest.mark.parametrize(
    ("policy", "warned"),
    [
        ({"approval_above_epsilon": 1.0}, [("approval_above_epsilon", "require_limit")]),
        ({"approval_above_epsilon": 1.0, "require_limit": True}, []),
        ({"max_epsilon": 1.0}, [("max_epsilon", "require_limit")]),
        ({"deviations": "refuse"}, [("deviations", "require_plan")]),
        ({"deviations": "refuse", "require_plan": "declare"}, []),
        ({"deviations": "flag"}, []),
        ({"min_noise_multiplier": 1.0}, [("min_noise_multiplier", "mechanisms")]),
        ({"min_noise_multiplier": 1.0, "mechanisms": ["gaussian"]}, []),
    ],
    ids=str,
)
def test_a_rule_that_does_nothing_without_another_is_reported(
    seeded: SeededLedger, policy: dict[str, Any], warned: list[tuple[str, str]]
) -> None:
    reply = put(seeded, policy)
    assert reply.status_code == 200
    for answer in (reply.json(), _policy(seeded)):
        assert [(each["rule"], each["requires"]) for each in answer["warnings"]] == warned
        assert all(f"`{each['requires']}`" in each["detail"] for each in answer["warnings"])


def test_where_one_person_raises_budgets_a_bound_on_unapproved_runs_needs_limits(seeded: SeededLedger) -> None:
    rule = {"max_unapproved_epsilon_per_budget": 0.5}
    assert put(seeded, rule).json()["warnings"] == []
    loosen(seeded, rule | {"approvers_to_raise_limit": 1})
    [warning] = _policy(seeded)["warnings"]
    assert (warning["rule"], warning["requires"]) == ("max_unapproved_epsilon_per_budget", "require_limit")
    assert put(seeded, rule | {"approvers_to_raise_limit": 1, "require_limit": True}).json()["warnings"] == []


def test_a_rule_that_another_place_makes_useful_or_useless_is_judged_by_what_holds(seeded: SeededLedger) -> None:
    assert put(seeded, {"require_limit": True, "max_epsilon": 1.0, "approvers_to_raise_limit": 2}).status_code == 200
    warnings = put(seeded, {"approval_above_epsilon": 0.5, "max_epsilon": 2.0}, seeded.budget).json()["warnings"]
    assert [(each["rule"], each["requires"]) for each in warnings] == [("max_epsilon", None)]
    warnings = put(seeded, {"approvers_to_raise_limit": 1}, seeded.population).json()["warnings"]
    assert [(each["rule"], each["requires"]) for each in warnings] == [("approvers_to_raise_limit", None)]
