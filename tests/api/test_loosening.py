"""A policy is made stricter by one person, and looser by two."""

from datetime import UTC, datetime
from typing import Any

import httpx2
import pytest

from app.ledger.permissions import Role
from app.ledger.policies import Policy
from app.service.governance.api_keys import create_key
from app.service.verification import verify
from tests.api.conftest import House
from tests.api.test_policies import LIMIT, loosen, put
from tests.conftest import SAMPLED

HELD = {"require_limit": True, "approval_above_epsilon": 0.4, "deviations": "refuse"}


def _approve(home: House, proposal: str, key: str) -> httpx2.Response:
    path, sent = f"/v1/proposals/{proposal}/approve", {"Authorization": f"Bearer {key}"}
    reply: httpx2.Response = home.ledger.http.post(path, json={"reason": "Seen."}, headers=sent)
    return reply


def _issued(home: House, role: str, issuer: str = "privacy_officer", **terms: str) -> str:
    reply = home.ledger.post("/v1/api-keys", {"role": role} | terms, issuer)
    assert reply.status_code == 201, reply.text
    return str(reply.json()["key"])


def _policy(home: House, account: str | None = None) -> dict[str, Any]:
    path = "/v1/policy" if account is None else f"/v1/accounts/{account}/policy"
    shown: dict[str, Any] = home.ledger.get(path).json()
    return shown


@pytest.mark.parametrize("role", ["privacy_officer", "admin"])
def test_one_person_with_keys_of_their_own_does_not_train_past_an_approval(home: House, role: str) -> None:
    """They would drop the rules that hold a run to its word, register one, train, and put the rules back."""
    assert put(home, HELD, role=role).status_code == 200
    own = home.ledger.keys["hospital", role]
    others = [_issued(home, each, role) for each in ("privacy_officer", "trainer")]
    before = _policy(home)
    asked = put(home, {"approval_above_epsilon": 0.4}, role=role)
    assert (asked.status_code, asked.json()["status"]) == (201, "open")
    for key in (own, *others):
        refused = _approve(home, asked.json()["id"], key)
        assert (refused.status_code, refused.json()["code"]) == (403, "insufficient_scope")
    assert _policy(home) == before
    body = {"name": "large", "budget": "mimic/icu-team", "planned": [{"event": SAMPLED, "count": 1}]}
    headers = {"Authorization": f"Bearer {others[1]}"}
    refused = home.ledger.http.post("/v1/runs", json=body, headers=headers)
    assert (refused.status_code, refused.json()["rule"]) == (403, "require_limit")
    made = home.ledger.http.post("/v1/runs", json=body | {"limit": LIMIT}, headers=headers).json()
    assert made["status"] == "pending"
    assert verify(home.ledger.database).problems == ()


LOOSER: list[tuple[dict[str, Any], dict[str, Any]]] = [
    ({"max_epsilon": 1.0}, {"max_epsilon": 1.1}),
    ({"max_delta": 1e-6}, {"max_delta": 2e-6}),
    ({"require_delta_below_inverse_size": True}, {"require_delta_below_inverse_size": False}),
    ({"require_limit": True}, {"require_limit": False}),
    ({"require_plan": True}, {}),
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
    house: House, strict: dict[str, Any], loose: dict[str, Any]
) -> None:
    account = str(house.ledger.budget(f"b-{len(house.rows()['accounts'])}")["id"])
    assert put(house, loose, account).status_code == 200
    for looser in (loose, {}):
        assert put(house, strict, account).status_code == 200
        asked = put(house, looser, account)
        assert (asked.status_code, asked.json()["kind"], asked.json()["account"]) == (201, "policy", account)
        assert _policy(house, account)["policy"] == {name: value for name, value in strict.items() if value}
        reply = house.ledger.post(f"/v1/proposals/{asked.json()['id']}/approve", {}, "admin")
        assert (reply.status_code, reply.json()["status"]) == (200, "approved")
        assert _policy(house, account)["policy"] == {name: value for name, value in looser.items() if value}
    assert verify(house.ledger.database).problems == ()


def test_the_organisation_says_by_two_persons_that_one_is_enough(home: House) -> None:
    assert put(home, {"approvers_to_raise_limit": 1}, home.budget).status_code == 200  # says nothing there
    asked = put(home, {"approvers_to_raise_limit": 1}, role="admin")
    assert asked.status_code == 201
    assert put(home, {"approvers_to_raise_limit": 2}).status_code == 200


def test_what_is_stricter_and_looser_at_once_waits_as_a_whole(home: House) -> None:
    assert put(home, {"max_epsilon": 1.0}).status_code == 200
    mixed = {"max_epsilon": 2.0, "require_plan": True}
    asked = put(home, mixed)
    assert asked.status_code == 201
    assert asked.json()["proposed"] == {"policy": mixed, "revision": 1}
    assert (_policy(home)["policy"], _policy(home)["revision"]) == ({"max_epsilon": 1.0}, 1)
    assert home.ledger.post(f"/v1/proposals/{asked.json()['id']}/approve", {"reason": "So be it."}).status_code == 200
    assert (_policy(home)["policy"], _policy(home)["revision"]) == (mixed, 2)
    acts = home.ledger.get(f"/v1/audit-events?order=oldest&subject={asked.json()['id']}", "auditor").json()["items"]
    assert [(act["action"], act["reason"]) for act in acts] == [
        ("policy.proposed", "The board has met."),
        ("policy.approved", "So be it."),
    ]
    assert acts[0]["before"] == {"policy": {"max_epsilon": 1.0}, "revision": 1}
    [changed] = home.ledger.get("/v1/audit-events?order=oldest&action=policy.replaced", "auditor").json()["items"][1:]
    assert (changed["before"]["revision"], changed["after"]["revision"]) == (1, 2)
    assert verify(home.ledger.database).problems == ()


@pytest.mark.parametrize("place", ["organisation", "budget"])
def test_a_proposal_about_a_policy_that_was_changed_since_is_not_approved(home: House, place: str) -> None:
    account = home.budget if place == "budget" else None
    assert put(home, {"max_epsilon": 1.0}, account).status_code == 200
    asked = put(home, {}, account).json()
    assert put(home, {"max_epsilon": 0.5}, account).status_code == 200
    reply = home.ledger.post(f"/v1/proposals/{asked['id']}/approve", {}, "admin")
    assert (reply.status_code, reply.json()["code"], reply.json()["policy_revision"]) == (412, "precondition_failed", 2)
    assert _policy(home, account)["policy"] == {"max_epsilon": 0.5}
    assert home.ledger.post(f"/v1/proposals/{asked['id']}/reject", {}, "admin").status_code == 200
    loosen(home, {}, account)
    assert verify(home.ledger.database).problems == ()


def test_who_repeats_a_request_proposes_once_and_another_policy_waits_its_turn(home: House) -> None:
    assert put(home, {"max_epsilon": 1.0}).status_code == 200
    first = put(home, {})
    before = home.rows()
    again = put(home, {})
    assert (again.status_code, again.json()) == (201, first.json())
    for other in (put(home, {"max_epsilon": 2.0}), put(home, {}, role="admin")):
        assert (other.status_code, other.json()["proposal"]) == (422, first.json()["id"])
    assert home.rows() == before


def test_who_is_bound_to_an_account_neither_sees_nor_approves_what_is_proposed_for_the_organisation(
    home: House,
) -> None:
    assert put(home, {"max_epsilon": 1.0}).status_code == 200
    path = f"/v1/proposals/{put(home, {}).json()['id']}"
    bound = {"Authorization": f"Bearer {_issued(home, 'privacy_officer', 'admin', scope=home.population)}"}
    http = home.ledger.http
    assert http.get(path, headers=bound).status_code == 403
    assert [http.post(f"{path}/{end}", headers=bound).status_code for end in ("approve", "reject")] == [403, 403]
    listed = http.get("/v1/proposals", headers=bound).json()["items"]
    assert {each["kind"] for each in listed} == {"limit"}


def test_a_one_person_organisation_loosens_by_a_second_key_of_the_command_line(home: House) -> None:
    assert put(home, {"max_epsilon": 1.0}).status_code == 200
    asked = put(home, {}).json()
    second = create_key(home.ledger.database, "hospital", Role.PRIVACY_OFFICER, datetime.now(UTC)).key
    assert _approve(home, asked["id"], second).status_code == 200
    assert _policy(home)["policy"] == {}


@pytest.mark.parametrize(
    ("policy", "warned"),
    [
        ({"approval_above_epsilon": 1.0}, [("approval_above_epsilon", "require_limit")]),
        ({"approval_above_epsilon": 1.0, "require_limit": True}, []),
        ({"max_epsilon": 1.0}, [("max_epsilon", "require_limit")]),
        ({"deviations": "refuse"}, [("deviations", "require_plan")]),
        ({"deviations": "refuse", "require_plan": True}, []),
        ({"deviations": "flag"}, []),
        ({"min_noise_multiplier": 1.0}, [("min_noise_multiplier", "mechanisms")]),
        ({"min_noise_multiplier": 1.0, "mechanisms": ["gaussian"]}, []),
    ],
    ids=str,
)
def test_a_rule_that_does_nothing_without_another_is_reported(
    home: House, policy: dict[str, Any], warned: list[tuple[str, str]]
) -> None:
    reply = put(home, policy)
    assert reply.status_code == 200
    for told in (reply.json(), _policy(home)):
        assert [(each["rule"], each["requires"]) for each in told["warnings"]] == warned
        assert all(f"`{each['requires']}`" in each["detail"] for each in told["warnings"])


def test_where_one_person_raises_budgets_a_bound_on_unapproved_runs_needs_limits(home: House) -> None:
    rule = {"max_unapproved_epsilon_per_budget": 0.5}
    assert put(home, rule).json()["warnings"] == []
    loosen(home, rule | {"approvers_to_raise_limit": 1})
    [warning] = _policy(home)["warnings"]
    assert (warning["rule"], warning["requires"]) == ("max_unapproved_epsilon_per_budget", "require_limit")
    assert put(home, rule | {"approvers_to_raise_limit": 1, "require_limit": True}).json()["warnings"] == []


def test_a_rule_that_another_place_makes_useful_or_useless_is_judged_by_what_holds(home: House) -> None:
    assert put(home, {"require_limit": True, "max_epsilon": 1.0, "approvers_to_raise_limit": 2}).status_code == 200
    warnings = put(home, {"approval_above_epsilon": 0.5, "max_epsilon": 2.0}, home.budget).json()["warnings"]
    assert [(each["rule"], each["requires"]) for each in warnings] == [("max_epsilon", None)]
    warnings = put(home, {"approvers_to_raise_limit": 1}, home.population).json()["warnings"]
    assert [(each["rule"], each["requires"]) for each in warnings] == [("approvers_to_raise_limit", None)]
