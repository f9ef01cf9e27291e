"""Proposals are announced when they are opened and when they are decided, to the receivers that want them."""

from collections.abc import Callable
from typing import Any

import httpx2
import pytest

from tests.api.trainer import LOUD, Trainer
from tests.conftest import Ledger
from tests.dashboard.page_visitor import visitor

MORE = {"epsilon": 1.5, "delta": 1e-5}


@pytest.fixture
def team(trainer: Trainer) -> str:
    return trainer.path()[1].id


def raised(ledger: Ledger, account: str, reason: str = "The study goes on.", role: str = "planner") -> httpx2.Response:
    path = f"/v1/accounts/{account}/limit"
    return ledger.post(path, {"limit": MORE, "reason": reason}, role, If_Match=ledger.get(path).headers["etag"])


def set_policy(ledger: Ledger, policy: dict[str, object], path: str = "/v1/policy") -> int:
    body = {"policy": policy, "reason": "It is agreed."}
    reply: httpx2.Response = ledger.http.put(path, json=body, headers=ledger.headers() | {"If-Match": "*"})
    return reply.status_code


def announced(ledger: Ledger, **filters: str) -> list[dict[str, Any]]:
    """Alerts about proposals, the oldest first."""
    query = "&".join(f"{name}={value}" for name, value in filters.items())
    found = ledger.get(f"/v1/alerts?limit=200&{query}", "admin").json()["items"][::-1]
    return [each for each in found if each["type"].startswith(("proposal.", "run.pending"))]


def received(ledger: Ledger, **wanted: object) -> Callable[[], list[str]]:
    """What asks which alerts a new receiver gets."""
    made = ledger.post("/v1/receivers", {"url": "https://alerts.example/privacy"} | wanted).json()["id"]
    path = f"/v1/deliveries?receiver={made}"
    return lambda: [each["alert_type"] for each in ledger.get(path, "admin").json()["items"]][::-1]


@pytest.mark.parametrize(
    ("role", "verb", "status"), [("privacy_officer", "approve", "approved"), ("planner", "reject", "withdrawn")]
)
def test_proposed_limit_is_announced_when_opened_and_when_decided(
    ledger: Ledger, team: str, role: str, verb: str, status: str
) -> None:
    assert raised(ledger, team).status_code == 201
    [proposal] = ledger.get("/v1/proposals").json()["items"]
    reply = ledger.post(f"/v1/proposals/{proposal['id']}/{verb}", {"reason": "It was discussed."}, role)
    opened, decided = announced(ledger)
    assert (opened["type"], opened["account"]) == ("proposal.opened", team)
    about = {"proposal": proposal["id"], "kind": "limit", "status": "open", "proposed": {"limit": MORE}}
    about |= {"limit_before": {"epsilon": 1.0, "delta": 1e-5}, "used": 0.0, "reason": "The study goes on."}
    about |= {"account": team, "account_path": "mimic/icu-team", "account_kind": "budget"}
    by = proposal["proposed_by"]
    assert opened["data"] == about | {"proposed_by": by, "proposed_by_name": f"key …{by[-6:]} (planner)"}
    assert (decided["type"], decided["account"]) == ("proposal.decided", team)
    facts = decided["data"]
    assert (facts["status"], facts["decision_reason"]) == (status, "It was discussed.")
    assert (facts["proposed_by"], facts["decided_by"]) == (proposal["proposed_by"], reply.json()["decided_by"])
    assert facts["decided_by_name"]


def test_pending_run_is_announced_and_as_no_other_proposal(ledger: Ledger, team: str) -> None:
    assert set_policy(ledger, {"approval_above_epsilon": 0.4}, f"/v1/accounts/{team}/policy") == 200
    body = {"name": "large", "budget": team, "event": LOUD, "limit": {"epsilon": 0.5, "delta": 1e-6}}
    run = ledger.post("/v1/runs", body, "trainer").json()
    assert run["status"] == "pending"
    assert "mimic/icu-team/large" in visitor(ledger, "admin").open("/approvals").reply.text
    assert ledger.post(f"/v1/runs/{run['id']}/abort", None, "trainer").status_code == 200
    waits, decided = announced(ledger, account=run["id"])
    assert (waits["type"], waits["data"]["account_path"]) == ("run.pending", "mimic/icu-team/large")
    terms = {"epsilon": 0.5, "delta": 1e-6, "limited": True, "approval_above_epsilon": 0.4}
    assert waits["data"]["proposed"] == terms
    assert (decided["type"], decided["data"]["status"]) == ("proposal.decided", "superseded")


def test_proposal_without_an_account_reaches_receivers_without_one(ledger: Ledger, team: str) -> None:
    everything = received(ledger)
    of_team = received(ledger, account=team)
    opened_only = received(ledger, types=["proposal.opened"])
    assert (set_policy(ledger, {"max_epsilon": 1.0}), set_policy(ledger, {})) == (200, 201)
    [opened] = announced(ledger)
    assert (opened["account"], opened["data"]["kind"], "account_path" in opened["data"]) == (None, "policy", False)
    [proposal] = ledger.get("/v1/proposals").json()["items"]
    assert ledger.post(f"/v1/proposals/{proposal['id']}/reject", None, "privacy_officer").status_code == 200
    assert (everything(), opened_only()) == (["proposal.opened", "proposal.decided"], ["proposal.opened"])
    assert (of_team(), announced(ledger, account=team)) == ([], [])
    assert set_policy(ledger, {"max_epsilon": 1.0, "approvers_to_create_population": 2}) == 200
    unit = {"privacy_unit": "patient", "neighboring_relation": "add_or_remove_one"}
    body = {"name": "cohort", "limit": {"epsilon": 1.0, "delta": 1e-5}} | unit
    assert ledger.post("/v1/populations", body).status_code == 202
    *_, opened = announced(ledger)
    for name, status in (("other", 202), ("COHORT", 409)):
        assert ledger.post("/v1/populations", body | {"name": name}).status_code == status
    assert (opened["account"], opened["data"]["proposed"]["name"]) == (None, "cohort")
