"""What waits for another person, as the page tells it."""

from app.service.auth.authentication import CLI_ACTOR
from app.service.verification import verify
from app.service.verification.requests import apply_quarantines
from tests.conftest import Ledger
from tests.dashboard.html_reader import visit, words
from tests.login_helpers import signed_in
from tests.service.reservation_rows import NOW
from tests.service.tampering import ALL, TEAM, shift_curve, tampering


def test_a_quarantine_that_would_be_lifted_is_told_with_what_was_found(ledger: Ledger) -> None:
    ledger.population()
    budget = ledger.budget()["id"]
    assert ledger.post(f"/v1/runs/{ledger.run()}/steps", {"count": 2}).status_code == 200
    with tampering(ledger.database) as tx:
        shift_curve(tx, TEAM, -1)
    apply_quarantines(ledger.database, verify(ledger.database), CLI_ACTOR, NOW)
    reason = {"reason": "The backup of the night is back."}
    assert ledger.post(f"/v1/accounts/{budget}/quarantine/lift", reason, "auditor").status_code == 201
    answer = words(visit(ledger, "/approvals", signed_in(ledger)))
    assert f"The quarantine of {TEAM} and of all accounts under it would be lifted" in answer
    assert "its spent curve is not the sum of its charges" in answer
    assert "The backup of the night is back." in answer


def test_a_population_of_disjoint_parts_is_told_with_what_was_attested(ledger: Ledger) -> None:
    rule = {"policy": {"approvers_to_create_population": 2}, "reason": "Two persons."}
    assert ledger.http.put("/v1/policy", json=rule, headers=ledger.headers("admin") | {"If-Match": "*"}).is_success
    parts = {
        "composition": "parallel",
        "max_partitions_per_unit": 2,
        "attestation": "A patient is treated at two sites at most.",
        "replacement_assumption": "stay_in_their_parts",
    }
    terms = {"name": "lung", "privacy_unit": "patient", "neighboring_relation": "replace_one"}
    limit = {"limit": {"epsilon": 1.0, "delta": 1e-5}}
    assert ledger.post("/v1/populations", terms | limit | parts).status_code == 202
    answer = words(visit(ledger, "/approvals", signed_in(ledger)))
    assert "A patient is treated at two sites at most. A unit is in at most 2 of them." in answer
    assert "Replaced units: stay in their parts." in answer


def test_a_quarantine_above_is_told_on_the_pages_of_all_accounts_under_it(ledger: Ledger) -> None:
    ledger.population()
    budget, run = ledger.budget()["id"], ledger.run()
    assert ledger.post(f"/v1/runs/{run}/steps", {"count": 2}).status_code == 200
    with tampering(ledger.database) as tx:
        shift_curve(tx, ALL, -1)
    apply_quarantines(ledger.database, verify(ledger.database), CLI_ACTOR, NOW)
    assert ledger.post(f"/v1/runs/{run}/steps", {}).json()["code"] == "account_quarantined"
    for page in (f"/runs/{run}", f"/accounts/{budget}"):
        assert f"Quarantined, no charges accepted: {ALL}" in words(visit(ledger, page, signed_in(ledger)))
