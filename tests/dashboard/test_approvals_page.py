"""What waits for another person, as the page tells it."""

from app.service.verification import enforce, verify
from tests.conftest import Ledger
from tests.dashboard.reading import visit, words
from tests.service.reserving import NOW
from tests.service.tampering import TEAM, shift_curve, tampering
from tests.signed_in import signed_in


def test_a_quarantine_that_would_be_lifted_is_told_with_what_was_found(ledger: Ledger) -> None:
    ledger.population()
    budget = ledger.budget()["id"]
    assert ledger.post(f"/v1/runs/{ledger.run()}/steps", {"count": 2}).status_code == 200
    with tampering(ledger.database) as tx:
        shift_curve(tx, TEAM, -1)
    enforce(ledger.database, verify(ledger.database), NOW)
    reason = {"reason": "The backup of the night is back."}
    assert ledger.post(f"/v1/accounts/{budget}/quarantine/lift", reason, "auditor").status_code == 201
    told = words(visit(ledger, "/approvals", signed_in(ledger)))
    assert f"The quarantine of {TEAM} would be lifted" in told
    assert "its spent curve is not the sum of its charges" in told
    assert "The backup of the night is back." in told
