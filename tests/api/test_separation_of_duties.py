"""Who proposes does not approve: that is checked before anything is written, for each kind of proposal."""

from collections.abc import Callable, Mapping
from typing import Any, Final

import pytest
from sqlalchemy import event

from app.ledger.proposals import ProposalKind
from tests.api.conftest import SeededLedger
from tests.api.test_policies import put
from tests.api.test_population_openings import PLAIN
from tests.service.tampering import TEAM, shift_curve, tampering

WRITES: Final = ("INSERT", "UPDATE", "DELETE")


def _limit(shared: SeededLedger) -> None:
    body = {"limit": {"epsilon": 9.0, "delta": 1e-5}, "reason": "The study goes on."}
    reply = shared.ledger.post(f"/v1/accounts/{shared.budget}/limit", body, "admin", If_Match="*")
    assert reply.status_code == 201, reply.text


def _run(shared: SeededLedger) -> None:
    assert put(shared, {"approval_above_epsilon": 0.1}).status_code == 200
    body = {"name": "large", "budget": shared.budget, "limit": {"epsilon": 0.5, "delta": 1e-6}}
    shared.ledger.post("/v1/runs", body, "admin")


def _policy(shared: SeededLedger) -> None:
    assert put(shared, {"max_epsilon": 5.0}).status_code == 200
    put(shared, {"max_epsilon": 6.0}, role="admin")


def _population(shared: SeededLedger) -> None:
    assert put(shared, {"approvers_to_create_population": 2}).status_code == 200
    shared.ledger.post("/v1/populations", PLAIN, "admin")


def _quarantine(shared: SeededLedger) -> None:
    with tampering(shared.ledger.database) as tx:
        shift_curve(tx, TEAM, -1)
    assert not shared.ledger.post("/v1/verifications", None, "admin").json()["sound"]
    shared.ledger.post(f"/v1/accounts/{shared.budget}/quarantine/lift", {"reason": "Restored."}, "admin")
    with tampering(shared.ledger.database) as tx:
        shift_curve(tx, TEAM, 1)


def _allocation(shared: SeededLedger) -> None:
    unlock = {"type": "by_plans", "plans": 10}
    headers = shared.ledger.headers() | {"If-Match": "*"}
    for allocation, status in (({"rule": "first_come", "unlock": unlock}, 200), (None, 201)):
        body = {"allocation": allocation, "reason": "For everybody."}
        path = f"/v1/accounts/{shared.population}/allocation"
        assert shared.ledger.http.put(path, json=body, headers=headers).status_code == status


def _unarchival(shared: SeededLedger) -> None:
    shared.ledger.post(f"/v1/runs/{shared.run}/complete", None, "admin")
    shared.ledger.post(f"/v1/accounts/{shared.budget}/archive", None, "admin")
    assert shared.ledger.post(f"/v1/accounts/{shared.budget}/unarchive", None, "admin").status_code == 202


PROPOSED: Final[Mapping[ProposalKind, Callable[[SeededLedger], None]]] = {
    ProposalKind.LIMIT: _limit,
    ProposalKind.RUN: _run,
    ProposalKind.POLICY: _policy,
    ProposalKind.POPULATION: _population,
    ProposalKind.QUARANTINE: _quarantine,
    ProposalKind.ALLOCATION: _allocation,
    ProposalKind.UNARCHIVAL: _unarchival,
}


@pytest.mark.parametrize("kind", list(ProposalKind))
def test_a_refused_approval_writes_nothing(seeded: SeededLedger, kind: ProposalKind) -> None:
    ledger = seeded.ledger
    PROPOSED[kind](seeded)
    proposal = ledger.get("/v1/proposals?status=open").json()["items"][0]
    assert proposal["kind"] == kind
    issued = ledger.post("/v1/api-keys", {"role": "privacy_officer"}, "admin").json()["key"]
    approval = f"/v1/proposals/{proposal['id']}/approve"
    headers = {"Authorization": f"Bearer {issued}"}
    assert ledger.http.get("/v1/proposals", headers=headers).is_success  # a key's first use is recorded
    written: list[str] = []

    def note(*given: Any) -> None:  # noqa: ANN401 - as SQLAlchemy calls
        written.extend([given[2]] * given[2].lstrip().upper().startswith(WRITES))

    before = seeded.rows()
    event.listen(ledger.database.engine, "before_cursor_execute", note)
    own = ledger.post(approval, {"reason": "I agree with myself."}, "admin")
    with_a_key_of_its_own = ledger.http.post(approval, json={"reason": "So do I."}, headers=headers)
    event.remove(ledger.database.engine, "before_cursor_execute", note)
    for reply in (own, with_a_key_of_its_own):
        assert (reply.status_code, reply.json()["code"]) == (403, "insufficient_scope"), reply.text
    assert written == []
    assert seeded.rows() == before
    assert ledger.post(approval, {"reason": "Another person."}, "privacy_officer").is_success


@pytest.mark.parametrize("proposer", ["rotator", "successor", "rotated"])
def test_who_rotated_the_key_of_another_person_is_no_second_one(seeded: SeededLedger, proposer: str) -> None:
    """An admin who rotates an officer's key has the new secret: the new key is as good as both persons."""
    ledger, admin = seeded.ledger, seeded.ledger.keys["hospital", "admin"]
    officer = ledger.keys["hospital", "privacy_officer"]
    rotation = f"/v1/api-keys/{officer.partition('.')[0]}/rotate"
    successor = ledger.post(rotation, {"overlap_seconds": 3600}, "admin").json()["key"]
    keys = {"rotator": admin, "successor": successor, "rotated": officer}
    assert put(seeded, {"max_epsilon": 5.0}).status_code == 200
    headers = {"Authorization": f"Bearer {keys[proposer]}", "If-Match": "*"}
    proposed = ledger.http.put("/v1/policy", json={"policy": {}, "reason": "Free."}, headers=headers)
    assert proposed.status_code == 201, proposed.text
    for name, key in keys.items():
        if {name, proposer} == {"rotator", "rotated"}:  # the admin does not know the secret of the officer's old key
            continue
        headers = {"Authorization": f"Bearer {key}"}
        reply = ledger.http.post(f"/v1/proposals/{proposed.json()['id']}/approve", json={}, headers=headers)
        assert (reply.status_code, reply.json()["code"]) == (403, "insufficient_scope"), (name, reply.text)
