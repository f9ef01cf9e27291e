"""What a key may do in its own organisation: as the matrix says, and nothing else."""

import itertools
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta

import httpx2
import pytest

from app.ledger.permissions import Role
from app.persistence.database import ALL_TENANTS as EVERYWHERE
from app.persistence.repositories import organisations, raw_rows
from app.service.governance.api_keys import create_key
from tests.api.answer_validation import without_request_id
from tests.api.conftest import SeededLedger
from tests.api.matrix import EVERYONE, MAY
from tests.api.operations import GUARDED, Operation, valid_body, valid_headers
from tests.conftest import SAMPLED
from tests.ledgers import schedule_blocks

NUMBERS: Iterator[int] = itertools.count()


def _waiting_reservation(shared: SeededLedger) -> str:
    """A plan that waits until its budget opens."""
    later = (datetime.now(UTC) + timedelta(days=1)).isoformat()
    budget = shared.ledger.budget(f"later-{next(NUMBERS)}", opens_at=later)["path"]
    until = (datetime.now(UTC) + timedelta(days=2)).isoformat()
    body = {"name": "waits", "budget": budget, "plan": [{"event": SAMPLED}], "wait_until": until}
    return str(shared.ledger.post("/v1/runs", body).json()["waiting_reservation"])


def _reservation(shared: SeededLedger, run: str) -> str:
    """An active reservation of a run."""
    plan = {"plan": [{"event": SAMPLED, "count": 1}]}
    return str(shared.ledger.post(f"/v1/runs/{run}/reservations", plan).json()["id"])


def _account(shared: SeededLedger, *, proposed: bool) -> dict[str, str]:
    """A budget, and a proposal for it of somebody who is none of the askers."""
    ids = {"account_id": str(shared.ledger.budget(f"b-{next(NUMBERS)}")["id"])}
    if proposed:
        key = create_key(shared.ledger.database, "hospital", Role.PLANNER, datetime.now(UTC)).key
        reply = shared.ledger.http.post(
            f"/v1/accounts/{ids['account_id']}/limit",
            json={"limit": {"epsilon": 2.0, "delta": 1e-5}, "reason": "More."},
            headers={"Authorization": f"Bearer {key}", "If-Match": "*"},
        )
        ids["proposal_id"] = reply.json()["id"]
    return ids


def _receiver(shared: SeededLedger) -> dict[str, str]:
    """A receiver and a delivery; the one before is disabled, as there can be twenty."""
    for before in shared.ledger.get("/v1/receivers", "admin").json()["items"]:
        shared.ledger.post(f"/v1/receivers/{before['id']}/disable", None)
    receiver = shared.ledger.post("/v1/receivers", {"url": "https://alerts.example/roles"}).json()["id"]
    delivery = shared.ledger.post(f"/v1/receivers/{receiver}/test", None).json()["id"]
    return {"receiver_id": receiver, "delivery_id": delivery}


def _approved_sweep(shared: SeededLedger) -> str:
    """A sweep that is approved and not charged yet, on people of its own."""
    name = f"people-{next(NUMBERS)}"
    population = shared.ledger.population(name)["id"]
    shared.ledger.budget("team", name)
    policy = {"policy": {"approval_above_epsilon": 1e-6}, "reason": "Sweeps are looked at."}
    sent = shared.ledger.headers() | {"If-Match": "*"}
    assert shared.ledger.http.put(f"/v1/accounts/{population}/policy", json=policy, headers=sent).status_code == 200
    trials = {"events": [{"event": SAMPLED}], "mean": 2.0}
    body = {"name": "sweep", "budget": f"{name}/team", "charging_mode": "repeat_and_select", "trials": trials}
    made = shared.ledger.post("/v1/experiments", body).json()
    [waiting] = shared.ledger.get(f"/v1/proposals?account={made['run']}").json()["items"]
    approved = shared.ledger.post(f"/v1/proposals/{waiting['id']}/approve", {}, "privacy_officer")
    assert approved.status_code == 200, approved.text
    return str(made["id"])


def test_the_table_names_every_operation() -> None:
    assert set(MAY) == {operation.id for operation in GUARDED}


@pytest.mark.parametrize("operation", GUARDED, ids=lambda operation: operation.id)
def test_a_role_may_do_what_the_table_says(shared: SeededLedger, operation: Operation) -> None:
    """What changes something is done by the first role that may; all of them are told to those who may not."""
    ids = shared.ids()
    if operation.method != "GET":
        ids |= _fresh(shared, operation)
    drawn = operation.path.endswith((".svg", ".png"))
    everyone = not drawn and (operation.method == "GET" or MAY[operation.id] == EVERYONE)
    for role in MAY[operation.id] if everyone else MAY[operation.id][:1]:
        reply = _ask(shared, operation, role, ids)
        assert reply.status_code in {200, 201, 204}, (role, reply.text)


def _fresh(shared: SeededLedger, operation: Operation) -> dict[str, str]:
    """The ids of what an operation may end, and which the next one needs."""
    ids: dict[str, str] = {}
    if "run_id" in operation.path:
        ids["run_id"] = shared.ledger.run()
    if "account_id" in operation.path or "proposal_id" in operation.path:
        ids |= _account(shared, proposed="proposal_id" in operation.path)
    if operation.id in {"createBlocks", "replaceBlockSchedule", "removeBlockSchedule"}:
        parts = {"composition": "parallel", "attestation": "A record has one date."}
        ids["account_id"] = str(shared.ledger.budget(f"b-{next(NUMBERS)}", **parts)["id"])
    if operation.id == "removeBlockSchedule":
        schedule_blocks(shared.ledger, ids["account_id"])
    if operation.id == "liftQuarantine":
        with shared.ledger.database.write(EVERYWHERE) as tx:
            owner = organisations.find_organisation(tx, "hospital")
            assert owner is not None
            raw_rows.set_quarantine(tx, owner, {ids["account_id"]: "its rows were changed"}, datetime.now(UTC))
    if operation.id == "chargeExperiment":
        ids["experiment_id"] = _approved_sweep(shared)
    if "key_id" in operation.path:
        ids["key_id"] = str(shared.ledger.post("/v1/api-keys", {"role": "viewer"}).json()["id"])
    if "reservation_id" in operation.path:
        waits = operation.id in {"cancelReservation", "prioritizeReservation"}
        ids["reservation_id"] = _waiting_reservation(shared) if waits else _reservation(shared, shared.ledger.run())
    if "receiver_id" in operation.path or "delivery_id" in operation.path:
        ids |= _receiver(shared)
    return ids


@pytest.mark.parametrize("operation", GUARDED, ids=lambda operation: operation.id)
def test_other_roles_may_not(shared: SeededLedger, operation: Operation) -> None:
    # Whoever proposed may withdraw it: the one here is of somebody who is none of the askers.
    ids = shared.ids() | (_account(shared, proposed=True) if "proposal_id" in operation.path else {})
    before = shared.rows()
    for role in EVERYONE:
        if role not in MAY[operation.id]:
            reply = _ask(shared, operation, role, ids)
            assert (reply.status_code, reply.json()["code"]) == (403, "insufficient_scope"), role
            assert reply.json()["required_roles"] == MAY[operation.id]
    assert shared.rows() == before


def _ask(shared: SeededLedger, operation: Operation, role: str, ids: dict[str, str]) -> httpx2.Response:
    body = valid_body(operation, f"{operation.id}-{next(NUMBERS)}")
    headers = shared.ledger.headers(role) | valid_headers(operation)
    reply: httpx2.Response = shared.ledger.http.request(
        operation.method, operation.at(**ids), json=body, headers=headers
    )
    return reply


def test_a_viewer_may_not_even_preview_steps(shared: SeededLedger) -> None:
    reply = shared.ledger.post(f"/v1/runs/{shared.run}/steps?dry_run=true", {}, "viewer")
    assert (reply.status_code, reply.json()["code"]) == (403, "insufficient_scope")


def test_a_missing_role_is_told_before_what_there_is(shared: SeededLedger) -> None:
    answers = [shared.ledger.post(f"/v1/runs/{run}/pause", None, "viewer") for run in (shared.run, "run_nothing")]
    assert [reply.status_code for reply in answers] == [403, 403]
    assert without_request_id(answers[0]) == without_request_id(answers[1])
