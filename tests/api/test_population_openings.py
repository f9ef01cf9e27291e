"""A population is opened by two persons, where the organisation's policy says so."""

from typing import Any

import httpx2
import pytest

from app.service.verification import verify
from tests.api.conftest import SeededLedger
from tests.api.test_policies import GAUSSIAN, loosen, put

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
def test_what_two_persons_open_is_what_one_would_have_opened(seeded: SeededLedger, terms: dict[str, Any]) -> None:
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


def test_nobody_opens_a_population_alone(guarded: SeededLedger) -> None:
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


def test_a_proposal_is_refused_for_what_the_opening_would_be_refused_for(guarded: SeededLedger) -> None:
    before = guarded.rows()
    for changed, code in (
        ({"name": "MIMIC"}, "name_taken"),
        ({"size": 10**7}, "delta_too_large"),
        ({"attestation": None}, "invalid_request"),
    ):
        assert _asked(guarded, TERMS | changed).json()["code"] == code
    assert guarded.rows() == before


def test_two_names_that_look_alike_are_not_proposed_at_once(guarded: SeededLedger) -> None:
    first = _asked(guarded, PLAIN)
    assert first.status_code == 202
    refused = _asked(guarded, PLAIN | {"name": "e-ICU"})
    assert (refused.status_code, refused.json()["name"]) == (409, "eicu")
    assert _asked(guarded, PLAIN | {"name": "other"}).status_code == 202
    assert guarded.ledger.post(f"/v1/proposals/{first.json()['id']}/reject", {}, "admin").status_code == 200
    assert _asked(guarded, PLAIN | {"name": "e-ICU"}).status_code == 202


def test_the_policies_and_names_of_the_day_of_the_approval_count(guarded: SeededLedger) -> None:
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


def test_the_same_request_proposes_once(guarded: SeededLedger) -> None:
    first, again = (_asked(guarded, PLAIN, Idempotency_Key="open") for _ in range(2))
    assert (again.status_code, again.content) == (202, first.content)
    assert again.headers["Idempotent-Replayed"] == "true"


def test_only_the_organisation_says_how_many_open_a_population(seeded: SeededLedger) -> None:
    refused = put(seeded, {"approvers_to_create_population": 2}, seeded.population)
    assert (refused.status_code, "organisation's policy" in refused.json()["detail"]) == (422, True)
