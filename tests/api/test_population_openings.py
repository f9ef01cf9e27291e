"""Two persons: a population that they open, and no proposal is approved by who made it."""

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, Final

import httpx2
import pytest

from app.ledger.governance.proposals import ProposalKind
from tests.api.conftest import SeededLedger
from tests.api.test_policies import GAUSSIAN, loosen, put, statements
from tests.api.trainer import audited, is_refused, issue
from tests.service.tampering import TEAM, shift_curve, tampering

PLAIN: dict[str, Any] = {
    "name": "eicu",
    "privacy_unit": "patient",
    "neighboring_relation": "replace_one",
    "limit": {"epsilon": 2.0, "delta": 1e-6},
}
TERMS: dict[str, Any] = PLAIN | {
    "size": 1000,
    "planned": [{"event": GAUSSIAN, "count": 3}],
    "composition": "parallel",
    "max_partitions_per_unit": 2,
    "attestation": "By site, fixed before any training.",
    "replacement_assumption": "stay_in_their_parts",
}
BY_TWO = {"approvers_to_create_population": 2}


@pytest.fixture
def guarded(seeded: SeededLedger) -> SeededLedger:
    """A seeded ledger where two persons open a population."""
    assert put(seeded, BY_TWO).status_code == 200
    return seeded


def _asked(seeded: SeededLedger, terms: dict[str, Any], role: str = "budget_admin") -> httpx2.Response:
    return seeded.ledger.post("/v1/populations", terms, role)


def _approve(seeded: SeededLedger, proposal: str, role: str = "privacy_officer") -> httpx2.Response:
    return seeded.ledger.post(f"/v1/proposals/{proposal}/approve", {"reason": "Other people."}, role)


def _populations(seeded: SeededLedger) -> list[dict[str, Any]]:
    return list(seeded.ledger.get("/v1/populations").json()["items"])


@pytest.mark.parametrize("terms", [TERMS, PLAIN], ids=["all", "plain"])
def test_population_of_two_persons_is_that_of_one(seeded: SeededLedger, terms: dict[str, Any]) -> None:
    alone = _asked(seeded, terms | {"name": "alone"}).json()
    assert put(seeded, BY_TWO).status_code == 200
    asked = _asked(seeded, terms)
    assert (asked.status_code, asked.json()["kind"], asked.json()["account"]) == (202, "population", None)
    assert [each["name"] for each in _populations(seeded)] == ["alone", "mimic"]
    assert _approve(seeded, asked.json()["id"], "admin").status_code == 200
    together = _populations(seeded)[0]
    moments = ("id", "name", "path", "created_at", "updated_at", "attestation", "lifetime", "available")
    kept = [{name: value for name, value in each.items() if name not in moments} for each in (alone, together)]
    assert kept[0] == kept[1]
    if terms is TERMS:  # it is the proposer's word, not the approver's
        said = [[each["attestation"][name] for name in ("text", "attested_by")] for each in (alone, together)]
        assert said[0] == said[1]
    assert seeded.sound()


def test_one_person_opens_no_population(guarded: SeededLedger) -> None:
    before = len(_populations(guarded))
    asked = _asked(guarded, TERMS, "admin").json()
    for role in ("admin", "budget_admin"):
        is_refused(_approve(guarded, asked["id"], role), 403, "permission_denied")
    assert put(guarded, {"approvers_to_create_population": 1}, role="admin").status_code == 201
    assert put(guarded, {}, role="admin").status_code == 422
    reject = guarded.ledger.post(f"/v1/proposals/{asked['id']}/reject", {}, "privacy_officer")
    assert (reject.status_code, reject.json()["status"], len(_populations(guarded))) == (200, "rejected", before)
    actions = [each["action"] for each in audited(guarded.ledger, f"subject={asked['id']}")]
    assert actions == ["population.proposed", "population.rejected"]


def test_proposal_is_refused_as_the_population_would_be(guarded: SeededLedger) -> None:
    before = guarded.rows()
    wrong: list[dict[str, Any]] = [{"name": "MIMIC"}, {"size": 10**7}, {"attestation": None}]
    codes = [_asked(guarded, TERMS | changed).json()["code"] for changed in wrong]
    assert codes == ["name_taken", "delta_too_large", "invalid_request"]
    assert guarded.rows() == before
    refused = put(guarded, BY_TWO, guarded.population)
    assert (refused.status_code, "organisation's policy" in refused.json()["detail"]) == (422, True)


def test_policies_and_names_of_the_day_of_the_approval_hold(guarded: SeededLedger) -> None:
    asked = _asked(guarded, PLAIN).json()
    assert put(guarded, BY_TWO | {"max_delta": 1e-7}).status_code == 200
    assert is_refused(_approve(guarded, asked["id"]), 403, "policy_violation")["rule"] == "max_delta"
    loosen(guarded, {})
    assert _asked(guarded, PLAIN | {"name": "E_ICU"}).status_code == 201
    is_refused(_approve(guarded, asked["id"]), 409, "name_taken")
    assert guarded.ledger.get(f"/v1/proposals/{asked['id']}").json()["status"] == "open"
    assert guarded.sound()


def _limit(seeded: SeededLedger) -> None:
    assert seeded.ledger.set_limit(seeded.budget, 9.0).status_code == 201


def _run(seeded: SeededLedger) -> None:
    assert put(seeded, {"approval_above_epsilon": 0.1}).status_code == 200
    body = {"name": "large", "budget": seeded.budget, "limit": {"epsilon": 0.5, "delta": 1e-6}}
    seeded.ledger.post("/v1/runs", body, "admin")


def _policy(seeded: SeededLedger) -> None:
    assert put(seeded, {"max_epsilon": 5.0}).status_code == 200
    put(seeded, {"max_epsilon": 6.0}, role="admin")


def _population(seeded: SeededLedger) -> None:
    assert put(seeded, BY_TWO).status_code == 200
    _asked(seeded, PLAIN, "admin")


def _quarantine(seeded: SeededLedger) -> None:
    with tampering(seeded.ledger.database) as tx:
        shift_curve(tx, TEAM, -1)
    assert not seeded.ledger.post("/v1/verifications", None, "admin").json()["sound"]
    seeded.ledger.post(f"/v1/accounts/{seeded.budget}/quarantine/lift", {"reason": "Restored."}, "admin")
    with tampering(seeded.ledger.database) as tx:
        shift_curve(tx, TEAM, 1)


def _allocation(seeded: SeededLedger) -> None:
    unlock = {"type": "by_reservations", "reservations": 10}
    for allocation, status in (({"rule": "first_come", "unlock": unlock}, 200), (None, 201)):
        body = {"allocation": allocation, "reason": "For everybody."}
        assert seeded.ledger.put(f"/v1/accounts/{seeded.population}/allocation", body).status_code == status


def _unarchival(seeded: SeededLedger) -> None:
    seeded.ledger.post(f"/v1/runs/{seeded.run}/complete", None, "admin")
    seeded.ledger.post(f"/v1/accounts/{seeded.budget}/archive", None, "admin")
    assert seeded.ledger.post(f"/v1/accounts/{seeded.budget}/unarchive", None, "admin").status_code == 202


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
    issue(ledger, "own", "privacy_officer")
    assert ledger.get("/v1/proposals", "own").is_success  # a key's first use is recorded
    before = seeded.rows()
    for role in ("admin", "own"):
        refuse = partial(_approve, seeded, proposal["id"], role)
        asked = statements(seeded, lambda ask=refuse: is_refused(ask(), 403, "permission_denied"))  # type: ignore[misc]
        assert not [each for each in asked if each.lstrip().upper().startswith(("INSERT", "UPDATE", "DELETE"))]
    assert seeded.rows() == before
    assert _approve(seeded, proposal["id"]).is_success


@pytest.mark.parametrize("proposer", ["rotator", "successor", "rotated"])
def test_person_who_rotated_the_key_of_another_is_no_second_person(seeded: SeededLedger, proposer: str) -> None:
    """An admin who rotates an officer's key has the new secret: the new key is as good as both persons."""
    ledger, keys = seeded.ledger, seeded.ledger.keys
    officer = keys["hospital", "privacy_officer"]
    rotation = f"/v1/api-keys/{officer.partition('.')[0]}/rotate"
    successor = ledger.post(rotation, {"overlap_seconds": 3600}, "admin").json()["key"]
    roles = {"rotator": keys["hospital", "admin"], "successor": successor, "rotated": officer}
    keys.update({("hospital", role): key for role, key in roles.items()})
    assert put(seeded, {"max_epsilon": 5.0}).status_code == 200
    proposed = put(seeded, {}, role=proposer)
    assert proposed.status_code == 201, proposed.text
    for role in roles:
        if {role, proposer} != {"rotator", "rotated"}:  # the admin does not know the secret of the officer's old key
            is_refused(_approve(seeded, proposed.json()["id"], role), 403, "permission_denied")
