"""Proposals are announced when they are opened and when they are decided, to the receivers that want them."""

from typing import Any

import httpx2
import pytest

from app.persistence.repositories import alerts as repository
from tests.conftest import SAMPLED, Ledger

NOWHERE = "https://alerts.example/privacy"
MORE = {"epsilon": 1.5, "delta": 1e-5}


@pytest.fixture
def team(ledger: Ledger) -> str:
    """A budget under a population."""
    ledger.population("mimic", limit={"epsilon": 3.0, "delta": 1e-5})
    return str(ledger.budget("icu-team", "mimic", limit={"epsilon": 1.0, "delta": 1e-5})["id"])


def raised(ledger: Ledger, account: str, reason: str = "The study goes on.", role: str = "planner") -> httpx2.Response:
    path = f"/v1/accounts/{account}/limit"
    headers = {**ledger.headers(role), "If-Match": ledger.get(path).headers["etag"]}
    reply: httpx2.Response = ledger.http.post(path, json={"limit": MORE, "reason": reason}, headers=headers)
    return reply


def policy(ledger: Ledger, body: dict[str, object], account: str | None = None) -> httpx2.Response:
    path = "/v1/policy" if account is None else f"/v1/accounts/{account}/policy"
    headers = {**ledger.headers("admin"), "If-Match": ledger.get(path).headers["etag"]}
    reply: httpx2.Response = ledger.http.put(path, json={"policy": body, "reason": "It is agreed."}, headers=headers)
    return reply


def announced(ledger: Ledger, **filters: str) -> list[dict[str, Any]]:
    """Alerts about proposals, the oldest first."""
    query = "&".join(f"{name}={value}" for name, value in filters.items())
    found: list[dict[str, Any]] = ledger.get(f"/v1/alerts?{query}").json()["items"][::-1]
    return [each for each in found if each["type"].startswith(("proposal.", "run.pending"))]


def receiver(ledger: Ledger, **wanted: object) -> str:
    made = ledger.post("/v1/receivers", {"url": NOWHERE} | wanted)
    assert made.status_code == 201, made.text
    return str(made.json()["id"])


def received(ledger: Ledger, receiver: str) -> list[str]:
    items = ledger.get(f"/v1/deliveries?receiver={receiver}", "admin").json()["items"]
    return [each["alert_type"] for each in items][::-1]


def test_proposed_limit_is_announced_with_its_numbers_and_proposer(ledger: Ledger, team: str) -> None:
    assert raised(ledger, team).status_code == 201
    [opened] = announced(ledger)
    [proposal] = ledger.get("/v1/proposals").json()["items"]
    assert (opened["type"], opened["account"]) == ("proposal.opened", team)
    assert opened["data"] == {
        "proposal": proposal["id"],
        "kind": "limit",
        "status": "open",
        "account": team,
        "account_path": "mimic/icu-team",
        "account_kind": "budget",
        "proposed": {"limit": MORE},
        "limit_before": {"epsilon": 1.0, "delta": 1e-5},
        "epsilon": 0.0,
        "reason": "The study goes on.",
        "proposed_by": proposal["proposed_by"],
        "proposed_by_name": opened["data"]["proposed_by_name"],
    }
    assert opened["data"]["proposed_by_name"] == f"key …{proposal['proposed_by'][-6:]} (planner)"


@pytest.mark.parametrize(
    ("role", "verb", "status"),
    [
        ("privacy_officer", "approve", "approved"),
        ("privacy_officer", "reject", "rejected"),
        ("planner", "reject", "withdrawn"),
    ],
)
def test_decided_proposal_is_announced_with_its_decision(
    ledger: Ledger, team: str, role: str, verb: str, status: str
) -> None:
    raised(ledger, team)
    [proposal] = ledger.get("/v1/proposals").json()["items"]
    reply = ledger.post(f"/v1/proposals/{proposal['id']}/{verb}", {"reason": "It was discussed."}, role)
    assert reply.status_code == 200, reply.text
    opened, decided = announced(ledger)
    assert (decided["type"], decided["account"]) == ("proposal.decided", team)
    facts = decided["data"]
    assert (facts["status"], facts["decision_reason"]) == (status, "It was discussed.")
    assert facts["proposed_by"] == opened["data"]["proposed_by"] == proposal["proposed_by"]
    assert facts["decided_by"] == reply.json()["decided_by"]
    assert facts["decided_by_name"]


def test_pending_run_is_announced_and_as_no_other_proposal(ledger: Ledger, team: str) -> None:
    assert policy(ledger, {"approval_above_epsilon": 0.4}, team).status_code == 200
    body = {"name": "large", "budget": team, "event": SAMPLED, "limit": {"epsilon": 0.5, "delta": 1e-6}}
    run = ledger.post("/v1/runs", body, "trainer").json()
    assert run["status"] == "pending"
    [waits] = announced(ledger, account=run["id"])
    assert (waits["type"], waits["account"], waits["data"]["account_path"]) == (
        "run.pending",
        run["id"],
        "mimic/icu-team/large",
    )
    assert waits["data"]["proposed"] == {
        "epsilon": 0.5,
        "delta": 1e-6,
        "limited": True,
        "approval_above_epsilon": 0.4,
    }
    assert ledger.post(f"/v1/runs/{run['id']}/abort", None, "trainer").status_code == 200
    _, decided = announced(ledger, account=run["id"])
    assert (decided["type"], decided["data"]["status"]) == ("proposal.decided", "superseded")


def test_organisation_policy_reaches_receivers_without_an_account(ledger: Ledger, team: str) -> None:
    everything, of_team = receiver(ledger), receiver(ledger, account=team)
    opened_only = receiver(ledger, types=["proposal.opened"])
    assert policy(ledger, {"max_epsilon": 1.0}).status_code == 200
    assert policy(ledger, {}).status_code == 201
    [opened] = announced(ledger)
    assert (opened["account"], opened["data"]["kind"]) == (None, "policy")
    assert "account_path" not in opened["data"]
    [proposal] = ledger.get("/v1/proposals").json()["items"]
    assert ledger.post(f"/v1/proposals/{proposal['id']}/reject", None, "privacy_officer").status_code == 200
    assert received(ledger, everything) == ["proposal.opened", "proposal.decided"]
    assert received(ledger, opened_only) == ["proposal.opened"]
    assert received(ledger, of_team) == []
    assert announced(ledger, account=team) == []


def test_proposal_that_is_not_written_is_not_announced(
    ledger: Ledger, team: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object) -> None:
        raise RuntimeError("after the proposal was inserted")

    monkeypatch.setattr(repository, "add", fail)
    assert raised(ledger, team).status_code == 500
    monkeypatch.undo()
    assert ledger.get("/v1/proposals").json()["items"] == announced(ledger) == []
