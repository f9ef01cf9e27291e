"""POST /v1/verifications: for admins, and of their own organisation only."""

import pytest

from app.persistence.database import ALL_TENANTS
from tests.api.trainer import HUGE, LOUD, QUIET, Trainer
from tests.conftest import Ledger
from tests.service.tampering import MODEL, account, set_run, shift_curve, tampering


@pytest.fixture
def charged(ledger: Ledger) -> Ledger:
    """A run with three steps."""
    ledger.population()
    ledger.budget()
    assert ledger.post(f"/v1/runs/{ledger.run()}/steps", {"count": 3}).status_code == 200
    return ledger


def test_a_sound_ledger_is_called_sound(charged: Ledger) -> None:
    reply = charged.post("/v1/verifications", None, role="admin")
    assert reply.status_code == 200
    assert reply.json() == {
        "sound": True,
        "accounts": 3,
        "runs": 1,
        "decisions": 1,
        "reservations": 0,
        "charges": 1,
        "steps": 3,
        "audit_events": 11,
        "discrepancies": [],
        "quarantined": [],
    }


def test_what_does_not_agree_is_named_and_writes_to_it_stop(charged: Ledger) -> None:
    with tampering(charged.database) as tx:
        set_run(tx, chain_head=b"x" * 32)
        run = account(tx, MODEL).id
    found = charged.post("/v1/verifications", None, role="admin").json()
    [fault] = found["discrepancies"]
    assert (found["sound"], fault["account"], fault["position"]) == (False, run, 1)
    assert MODEL in fault["detail"]
    refused = charged.post(f"/v1/runs/{run}/steps", {})
    assert (refused.status_code, refused.json()["code"]) == (409, "account_quarantined")


def test_a_run_may_report_on_after_a_verification_of_what_it_reported(ledger: Ledger) -> None:
    ledger.population()
    ledger.budget()
    trainer = Trainer(ledger, ledger.run(event=LOUD))
    assert trainer.steps(mode="report", event=HUGE).json()["overdrawn"]
    assert ledger.post("/v1/verifications", None, role="admin").json()["discrepancies"] == []
    assert trainer.steps(mode="report", event=QUIET).status_code == 200


def test_an_organisation_sees_nothing_of_anothers_ledger(charged: Ledger) -> None:
    with tampering(charged.database) as tx:
        shift_curve(tx, "mimic", 1)
    theirs = charged.http.post("/v1/verifications", headers=charged.headers("admin", "clinic")).json()
    assert (theirs["sound"], theirs["accounts"]) == (True, 0)
    with charged.database.read(ALL_TENANTS) as tx:
        assert account(tx, "mimic").quarantine_reason is None
    assert not charged.post("/v1/verifications", None, role="admin").json()["sound"]


@pytest.mark.parametrize("role", ["viewer", "trainer"])
def test_only_an_admin_may_verify(charged: Ledger, role: str) -> None:
    refused = charged.post("/v1/verifications", None, role=role)
    assert (refused.status_code, refused.json()["code"]) == (403, "insufficient_scope")
