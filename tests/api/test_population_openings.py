"""Two persons: a population that they open, and who proposes does not approve."""

from collections.abc import Callable, Mapping
from typing import Any, Final

import httpx2
import pytest
from sqlalchemy import event

from app.ledger.proposals import ProposalKind
from app.service.verification import verify
from tests.api.conftest import SeededLedger
from tests.api.test_policies import GAUSSIAN, loosen, put
from tests.service.tampering import TEAM, shift_curve, tampering

TERMS: dict[str, Any] = {
    "name": "eicu",
    "privacy_unit": "patient",
    "neighboring_relation": "replace_one",
    "size": 1000,
    "limit": {"epsilon": 2.0, "delta": 1e-6},
    "planned": [{"event": GAUSSIAN, "count": 3}],
    "composition": "parallel",
    "max_partitions_per_unit": 2,
    "attestation": "By site, fixed before any training.",
    "replacement_assumption": "stay_in_their_parts",
}
PLAIN = {name: TERMS[name] for name in ("name", "privacy_unit", "neighboring_relation", "limit")}


@pytest.fixture
def guarded(seeded: SeededLedger) -> SeededLedger:
    """A seeded ledger where two persons open a population."""
    assert put(seeded, {"approvers_to_create_population": 2}).status_code == 200
    return seeded


def _asked(seeded: SeededLedger, terms: dict[str, Any], role: str = "budget_admin", **headers: str) -> httpx2.Response:
    return seeded.ledger.post("/v1/populations", terms, role, **headers)


def _approve(seeded: SeededLedger, proposal: str, role: str = "privacy_officer") -> httpx2.Response:
    return seeded.ledger.post(f"/v1/proposals/{proposal}/approve", {"reason": "Other people."}, role)


def _populations(seeded: SeededLedger) -> list[dict[str, Any]]:
    items: list[dict[str, Any]] = seeded.ledger.get("/v1/populations").json()["items"]
    return items


@pytest.mark.parametrize("terms", [TERMS, PLAIN], ids=["all", "plain"])
def test_population_of_two_persons_is_that_of_one(seeded: SeededLedger, terms: dict[str, Any]) -> None:
    alone = _asked(seeded, terms | {"name": "alone"}).json()
    assert put(seeded, {"approvers_to_create_population": 2}).status_code == 200
    asked = _asked(seeded, terms)
    assert asked.status_code == 202, asked.text
    assert (asked.json()["kind"], asked.json()["account"]) == ("population", None)
    assert "id" in alone, alone
    assert [each["name"] for each in _populations(seeded)] == ["alone", "mimic"]
    assert _approve(seeded, asked.json()["id"], "admin").status_code == 200
    together = _populations(seeded)[0]
    moments = ("id", "name", "path", "created_at", "updated_at", "attestation", "lifetime", "available")
    assert {name: value for name, value in together.items() if name not in moments} == {
        name: value for name, value in alone.items() if name not in moments
    }
    if terms is TERMS:
        said = [{name: each["attestation"][name] for name in ("text", "attested_by")} for each in (alone, together)]
        assert said[0] == said[1]  # it is the proposer's word, not the approver's
    assert verify(seeded.ledger.database).problems == ()


def test_one_person_opens_no_population(guarded: SeededLedger) -> None:
    before = len(_populations(guarded))
    asked = _asked(guarded, TERMS, "admin").json()
    assert _approve(guarded, asked["id"], "admin").status_code == 403
    assert _approve(guarded, asked["id"], "budget_admin").status_code == 403
    assert put(guarded, {"approvers_to_create_population": 1}, role="admin").status_code == 201
    assert put(guarded, {}, role="admin").status_code == 422
    assert len(_populations(guarded)) == before
    reject = guarded.ledger.post(f"/v1/proposals/{asked['id']}/reject", {}, "privacy_officer")
    assert (reject.status_code, reject.json()["status"]) == (200, "rejected")
    assert len(_populations(guarded)) == before
    audit_events = guarded.ledger.get(f"/v1/audit-events?order=oldest&subject={asked['id']}", "auditor").json()["items"]
    assert [audit_event["action"] for audit_event in audit_events] == ["population.proposed", "population.rejected"]


def test_proposal_is_refused_as_the_population_would_be(guarded: SeededLedger) -> None:
    before = guarded.rows()
    for changed, code in (
        ({"name": "MIMIC"}, "name_taken"),
        ({"size": 10**7}, "delta_too_large"),
        ({"attestation": None}, "invalid_request"),
    ):
        assert _asked(guarded, TERMS | changed).json()["code"] == code
    assert guarded.rows() == before


def test_policies_and_names_of_the_day_of_the_approval_hold(guarded: SeededLedger) -> None:
    asked = _asked(guarded, PLAIN).json()
    assert put(guarded, {"approvers_to_create_population": 2, "max_delta": 1e-7}).status_code == 200
    refused = _approve(guarded, asked["id"])
    assert (refused.status_code, refused.json()["rule"]) == (403, "max_delta")
    loosen(guarded, {})
    assert _asked(guarded, PLAIN | {"name": "E_ICU"}).status_code == 201
    refused = _approve(guarded, asked["id"])
    assert (refused.status_code, refused.json()["code"]) == (409, "name_taken")
    assert guarded.ledger.get(f"/v1/proposals/{asked['id']}").json()["status"] == "open"
    assert verify(guarded.ledger.database).problems == ()


def test_only_the_organisation_says_how_many_open_a_population(seeded: SeededLedger) -> None:
    refused = put(seeded, {"approvers_to_create_population": 2}, seeded.population)
    assert (refused.status_code, "organisation's policy" in refused.json()["detail"]) == (422, True)


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
def test_refused_approval_writes_nothing(seeded: SeededLedger, kind: ProposalKind) -> None:
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
def test_person_who_rotated_the_key_of_another_is_no_second_person(seeded: SeededLedger, proposer: str) -> None:
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
