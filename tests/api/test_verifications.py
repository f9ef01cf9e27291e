"""Verifications: by admins and auditors, of their own organisation only, and kept."""

from datetime import UTC, datetime

import pytest

from app.persistence.database import ALL_TENANTS
from app.persistence.repositories import verification_results
from app.service.verification import requests, verify
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


@pytest.mark.both_databases
def test_a_sound_ledger_is_called_sound(charged: Ledger) -> None:
    reply = charged.post("/v1/verifications", None, role="admin")
    assert reply.status_code == 201
    made = reply.json()
    assert {name: made.pop(name)[:4] for name in ("id", "actor", "created_at")} == {
        "id": "ver_",
        "actor": "key_",
        "created_at": f"{datetime.now(UTC):%Y}",
    }
    assert made == {
        "sound": True,
        "accounts": 3,
        "runs": 1,
        "decisions": 1,
        "reservations": 0,
        "charges": 1,
        "steps": 3,
        "audit_events": 11,
        "discrepancy_count": 0,
        "discrepancies": [],
        "quarantined_count": 0,
        "quarantined": [],
    }


@pytest.mark.both_databases
def test_what_does_not_agree_is_named_and_writes_to_it_stop(charged: Ledger) -> None:
    with tampering(charged.database) as tx:
        set_run(tx, chain_head=b"x" * 32)
        run = account(tx, MODEL).id
    found = charged.post("/v1/verifications", None, role="admin").json()
    [discrepancy] = found["discrepancies"]
    assert (found["sound"], discrepancy["account"], discrepancy["position"]) == (False, run, 1)
    assert MODEL in discrepancy["detail"]
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


def test_verifications_are_kept_and_listed_newest_first(charged: Ledger) -> None:
    made = [charged.post("/v1/verifications", None, role="admin").json()]
    with tampering(charged.database) as tx:
        shift_curve(tx, "mimic", 1)
    made += [charged.post("/v1/verifications", None, role="auditor").json() for _ in range(2)]
    assert [each["sound"] for each in made] == [True, False, False]
    assert len({each["id"] for each in made}) == 3
    first = charged.get("/v1/verifications?limit=2", "auditor").json()
    assert first["items"] == made[:0:-1]
    rest = charged.get(f"/v1/verifications?limit=2&after={first['next']}", "auditor").json()
    assert rest == {"items": made[:1], "next": None}
    for each in made:
        assert charged.get(f"/v1/verifications/{each['id']}", "auditor").json() == each
    missing = charged.get("/v1/verifications/ver_1", "auditor")
    assert (missing.status_code, missing.json()["code"]) == (404, "not_found")


def test_a_verification_finds_the_same_whether_one_was_kept_or_not(charged: Ledger) -> None:
    before = verify(charged.database)
    assert charged.post("/v1/verifications", None, role="admin").status_code == 201
    assert verify(charged.database) == before


def test_a_verification_lists_its_first_discrepancies_and_counts_all(
    charged: Ledger, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(requests, "MAX_LISTED", 1)
    with tampering(charged.database) as tx:
        for path in ("mimic", "mimic/icu-team"):
            shift_curve(tx, path, 1)
    found = charged.post("/v1/verifications", None, role="admin").json()
    assert (found["discrepancy_count"], len(found["discrepancies"])) == (2, 1)
    assert (found["quarantined_count"], len(found["quarantined"])) == (2, 1)


@pytest.mark.both_databases
def test_the_oldest_verifications_are_deleted(charged: Ledger, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(verification_results, "KEPT", 2)
    charged.http.post("/v1/verifications", headers=charged.headers("admin", "clinic"))
    made = [charged.post("/v1/verifications", None, role="admin").json() for _ in range(4)]
    assert charged.get("/v1/verifications", "auditor").json()["items"] == [made[3], made[2]]
    theirs = charged.http.get("/v1/verifications", headers=charged.headers("admin", "clinic")).json()
    assert len(theirs["items"]) == 1


@pytest.mark.parametrize("role", ["viewer", "trainer"])
def test_only_an_admin_may_verify(charged: Ledger, role: str) -> None:
    refused = charged.post("/v1/verifications", None, role=role)
    assert (refused.status_code, refused.json()["code"]) == (403, "insufficient_scope")
