"""What a key may do: the table of roles, written by hand and compared with reality."""

import itertools
from collections.abc import Iterator
from datetime import UTC, datetime

import pytest

from app.ledger.roles import Role
from app.service.keys import create_key
from tests.api.conftest import House
from tests.api.operations import GUARDED, Operation, valid_body, valid_headers
from tests.conftest import SAMPLED

EVERYONE = ["viewer", "trainer", "planner", "budget_admin", "privacy_officer", "auditor", "admin"]
TRAINING = ["trainer", "admin"]
RUNS = ["trainer", "budget_admin", "privacy_officer", "admin"]
TREE = ["budget_admin", "privacy_officer", "admin"]
KEYS = ["budget_admin", "privacy_officer", "admin"]
PLANNING = ["planner", "budget_admin", "privacy_officer", "admin"]
APPROVAL = ["privacy_officer", "admin"]
OFFICE = ["privacy_officer", "admin"]
PROOF = ["privacy_officer", "auditor", "admin"]
MAY: dict[str, list[str]] = {
    "createPopulation": TREE,
    "createBudget": TREE,
    "registerRun": RUNS,
    "declareExperiment": RUNS,
    "takeSteps": TRAINING,
    "completeRun": RUNS,
    "pauseRun": RUNS,
    "resumeRun": RUNS,
    "abortRun": RUNS,
    "openAttempt": TRAINING,
    "reserve": TRAINING,
    "commitReservation": TRAINING,
    "voidReservation": TRAINING,
    "renewReservation": TRAINING,
    "getReservation": EVERYONE,
    "verifyLedger": PROOF,
    "planEpsilon": EVERYONE,
    "planDelta": EVERYONE,
    "planTrajectory": EVERYONE,
    "planNoiseMultiplier": EVERYONE,
    "planSteps": EVERYONE,
    "planSamplingProbability": EVERYONE,
    "planLaplace": EVERYONE,
    "listPopulations": EVERYONE,
    "getPopulation": EVERYONE,
    "listBudgets": EVERYONE,
    "getBudget": EVERYONE,
    "listRuns": EVERYONE,
    "listExperiments": EVERYONE,
    "getExperiment": EVERYONE,
    "getRun": EVERYONE,
    "getRunHistory": EVERYONE,
    "createKey": KEYS,
    "listKeys": KEYS,
    "getKey": KEYS,
    "rotateKey": KEYS,
    "revokeKey": KEYS,
    "listActs": PROOF,
    "listDecisions": EVERYONE,
    "makeCheckpoint": PROOF,
    "listCheckpoints": PROOF,
    "getSigningKey": EVERYONE,
    "getRunStatement": EVERYONE,
    "getRunStatementPage": EVERYONE,
    "getPopulationStatement": EVERYONE,
    "getPopulationStatementPage": EVERYONE,
    "getLimit": EVERYONE,
    "changeLimit": PLANNING,
    "getPolicies": EVERYONE,
    "putPolicies": APPROVAL,
    "getPolicy": EVERYONE,
    "putPolicy": APPROVAL,
    "listProposals": EVERYONE,
    "getProposal": EVERYONE,
    "approveProposal": APPROVAL,
    "rejectProposal": APPROVAL,
    "listAlerts": EVERYONE,
    "getAlertSettings": EVERYONE,
    "setAlertSettings": OFFICE,
    "getForecast": EVERYONE,
    "createWebhook": OFFICE,
    "listWebhooks": OFFICE,
    "getWebhook": OFFICE,
    "disableWebhook": OFFICE,
    "rotateWebhookSecret": OFFICE,
    "testWebhook": OFFICE,
    "listDeliveries": OFFICE,
    "redeliver": OFFICE,
}
NUMBERS: Iterator[int] = itertools.count()


def _reservation(house: House, run: str) -> str:
    """An active reservation of a run."""
    plan = {"plan": [{"event": SAMPLED, "count": 1}]}
    return str(house.ledger.post(f"/v1/runs/{run}/reservations", plan).json()["id"])


def _account(house: House, *, proposed: bool) -> dict[str, str]:
    """A budget, and a proposal for it of somebody who is none of the askers."""
    ids = {"account_id": str(house.ledger.budget(f"b-{next(NUMBERS)}")["id"])}
    if proposed:
        key = create_key(house.ledger.database, "hospital", Role.PLANNER, datetime.now(UTC)).key
        reply = house.ledger.http.post(
            f"/v1/accounts/{ids['account_id']}/limit",
            json={"limit": {"epsilon": 2.0, "delta": 1e-5}, "reason": "More."},
            headers={"Authorization": f"Bearer {key}", "If-Match": "*"},
        )
        ids["proposal_id"] = reply.json()["id"]
    return ids


def _webhook(house: House) -> dict[str, str]:
    """A webhook and a delivery; the one before is disabled, as there can be twenty."""
    for before in house.ledger.get("/v1/webhooks", "admin").json()["items"]:
        house.ledger.post(f"/v1/webhooks/{before['id']}/disable", None)
    webhook = house.ledger.post("/v1/webhooks", {"url": "https://alerts.example/roles"}).json()["id"]
    delivery = house.ledger.post(f"/v1/webhooks/{webhook}/test", None).json()["id"]
    return {"webhook_id": webhook, "delivery_id": delivery}


def test_the_table_names_every_operation() -> None:
    assert set(MAY) == {operation.id for operation in GUARDED}


@pytest.mark.parametrize("role", EVERYONE)
@pytest.mark.parametrize("operation", GUARDED, ids=lambda operation: operation.id)
def test_a_role_may_do_what_the_table_says_and_nothing_else(house: House, operation: Operation, role: str) -> None:
    run = house.ledger.run()
    ids = house.ids() | {"run_id": run}
    ids |= _account(house, proposed="proposal_id" in operation.path) if operation.path.count("/") > 3 else {}
    if "key_id" in operation.path:
        ids["key_id"] = str(house.ledger.post("/v1/keys", {"role": "viewer"}).json()["id"])
    if "reservation_id" in operation.path:
        ids["reservation_id"] = _reservation(house, run)
    if "webhook_id" in operation.path or "delivery_id" in operation.path:
        ids |= _webhook(house)
    body = valid_body(operation, f"{operation.id}-{next(NUMBERS)}")
    before = house.rows()
    reply = house.ledger.http.request(
        operation.method, operation.at(**ids), json=body, headers=house.ledger.headers(role) | valid_headers(operation)
    )
    if role in MAY[operation.id]:
        assert reply.status_code in {200, 201}, reply.text
    else:
        assert (reply.status_code, reply.json()["code"]) == (403, "insufficient_scope")
        assert reply.json()["required_roles"] == MAY[operation.id]
        assert house.rows() == before


def test_a_viewer_may_not_even_preview_steps(house: House) -> None:
    reply = house.ledger.post(f"/v1/runs/{house.run}/steps?dry_run=true", {}, "viewer")
    assert (reply.status_code, reply.json()["code"]) == (403, "insufficient_scope")


def test_a_missing_role_is_told_before_what_there_is(house: House) -> None:
    answers = [house.ledger.post(f"/v1/runs/{run}/pause", None, "viewer") for run in (house.run, "run_nothing")]
    assert [reply.status_code for reply in answers] == [403, 403]
    assert answers[0].content == answers[1].content
