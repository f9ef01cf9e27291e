"""Checkpoints: whoever kept one, and has the public key, sees that history was rewritten, however well."""

import json
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import delete, select, update

from app.ledger.audit import audit_entry_hash, audit_genesis
from app.ledger.errors import InvalidInputError
from app.persistence.repositories.audit import all_entries
from app.persistence.tables import api_keys, audit_entries, checkpoints, decisions, run_anchors, runs
from app.service.audit.checkpoints import sign_due
from app.service.ed25519 import is_signed_by
from app.service.signatures import require_signer, signer_of
from app.service.verification import verify
from app.service.verification.trusted_checkpoints import TrustedCheckpoint, trusted_checkpoint_of
from tests.api.conftest import SeededLedger
from tests.conftest import open_ledger, signing_key
from tests.ledgers import new_signing_key
from tests.service.tampering import reseal, tampering


def _made(seeded: SeededLedger) -> dict[str, Any]:
    reply = seeded.ledger.post("/v1/checkpoints", None, "auditor")
    assert reply.status_code == 201, reply.text
    made: dict[str, Any] = reply.json()
    return made


def _witness(document: dict[str, Any]) -> TrustedCheckpoint:
    return trusted_checkpoint_of(document, signing_key()[1].read_bytes(), "the kept checkpoint")


def test_a_checkpoint_is_signed_and_its_public_key_is_told(seeded: SeededLedger) -> None:
    made = _made(seeded)
    answer = seeded.ledger.get("/v1/signing-key").json()
    assert answer["public_key"] == signing_key()[1].read_text()
    assert made["signature"]["key_id"] == answer["key_id"]
    assert is_signed_by(made, answer["public_key"].encode())
    last = seeded.ledger.get("/v1/audit-events?order=oldest&limit=200", "auditor").json()["items"][-1]
    assert (last["action"], last["hash"], last["position"] + 1) == (
        "runs.anchored",
        made["payload"]["audit_head"],
        made["payload"]["audit_length"],
    )
    assert last["after"]["runs"][seeded.run][0] == 1
    assert seeded.ledger.get("/v1/checkpoints", "auditor").json() == {"items": [made], "next": None}


def test_where_nothing_has_happened_there_is_no_other_checkpoint(seeded: SeededLedger) -> None:
    first = _made(seeded)
    assert _made(seeded) == first
    seeded.ledger.post(f"/v1/runs/{seeded.run}/steps", {}, "trainer")
    second = _made(seeded)
    assert second["payload"]["audit_length"] == first["payload"]["audit_length"] + 1
    assert verify(seeded.ledger.database, witnesses=[_witness(first), _witness(second)]).sound


def test_another_key_signs_anew_and_the_chain_names_both(seeded: SeededLedger, tmp_path: Path) -> None:
    first = _made(seeded)
    signer = require_signer(signer_of(str(new_signing_key(tmp_path)[0])))
    database, later = seeded.ledger.database, datetime.now(UTC) + timedelta(hours=2)
    assert sign_due(database, signer, 3600, later) == 2  # the clinic had none
    assert sign_due(database, signer, 3600, later + timedelta(hours=2)) == 0
    second, _ = seeded.ledger.get("/v1/checkpoints", "auditor").json()["items"]
    assert is_signed_by(second, signer.public_key.encode())
    last = seeded.ledger.get("/v1/audit-events?order=oldest&limit=200", "auditor").json()["items"][-1]
    assert (last["action"], last["before"], last["after"]) == (
        "signing_key.changed",
        {"key_id": first["signature"]["key_id"]},
        {"key_id": signer.key_id},
    )
    by_new_key = trusted_checkpoint_of(second, signer.public_key.encode(), "the one by the new key")
    assert verify(database, witnesses=[_witness(first), by_new_key]).sound


@pytest.mark.parametrize("name", ["audit_length", "audit_head", "organisation", "created_at"])
def test_a_changed_checkpoint_is_not_signed(seeded: SeededLedger, name: str) -> None:
    made = _made(seeded)
    made["payload"][name] = 1 if name == "audit_length" else "0" * 64
    with pytest.raises(InvalidInputError, match="was not signed with this key"):
        _witness(made)


def _rewrite_audit_events(seeded: SeededLedger) -> None:
    """Change an audit event, and make every hash fit again."""
    with tampering(seeded.ledger.database) as tx:
        here = audit_entries.c.subject == seeded.population
        tx.execute(update(audit_entries).where(here).values(reason="Approved by the board."))
        heads: dict[str, bytes] = {}
        for kept in list(all_entries(tx)):
            owner, position = kept.organisation_id, kept.position
            heads[owner] = audit_entry_hash(heads.get(owner, audit_genesis(owner)), kept)
            at = (audit_entries.c.organisation_id == owner) & (audit_entries.c.position == position)
            tx.execute(update(audit_entries).where(at).values(entry_hash=heads[owner]))
        tx.execute(delete(checkpoints))


def _rewrite_decisions(seeded: SeededLedger) -> None:
    """Change a decision, and make every hash of its run's chain and of the audit events fit again."""
    with tampering(seeded.ledger.database) as tx:
        tx.execute(update(decisions).values(epsilon=0.001))
        reseal(tx)
        tx.execute(delete(checkpoints))


def test_rewritten_audit_events_are_found_by_a_checkpoint_that_was_kept(seeded: SeededLedger) -> None:
    witness = _witness(_made(seeded))
    _rewrite_audit_events(seeded)
    assert verify(seeded.ledger.database).sound
    [problem] = verify(seeded.ledger.database, witnesses=[witness]).problems
    assert "the kept checkpoint signed another history of the first" in problem


def test_rewritten_decisions_are_found_by_what_the_audit_events_are_tied_to(seeded: SeededLedger) -> None:
    _made(seeded)
    _rewrite_decisions(seeded)
    problems = verify(seeded.ledger.database).problems
    assert any("was rewritten" in problem and seeded.run in problem for problem in problems)


def test_decisions_cut_off_are_found_though_the_run_s_head_was_set_back(seeded: SeededLedger) -> None:
    seeded.ledger.post(f"/v1/runs/{seeded.run}/steps", {"count": 10**6}, "trainer")
    _made(seeded)
    with tampering(seeded.ledger.database) as tx:
        first = tx.execute(select(decisions.c.entry_hash).where(decisions.c.position == 0)).scalar_one()
        tx.execute(delete(decisions).where(decisions.c.position > 0))
        tx.execute(update(runs).where(runs.c.account_id == seeded.run).values(decision_count=1, chain_head=first))
    problems = verify(seeded.ledger.database).problems
    assert any("tied to 2 of them" in problem for problem in problems)


def test_a_chain_that_was_cut_off_is_found_by_a_checkpoint_that_was_kept(seeded: SeededLedger) -> None:
    key = seeded.ledger.post("/v1/api-keys", {"role": "viewer"}).json()["id"]
    witness = _witness(_made(seeded))
    with tampering(seeded.ledger.database) as tx:
        tx.execute(delete(audit_entries).where(audit_entries.c.position >= witness.audit_length - 2))
        tx.execute(delete(api_keys).where(api_keys.c.id == key))
        tx.execute(delete(checkpoints))
        tx.execute(delete(run_anchors))
    assert verify(seeded.ledger.database).sound
    [problem] = verify(seeded.ledger.database, witnesses=[witness]).problems
    assert "it was cut" in problem


def test_a_kept_row_of_a_checkpoint_must_say_what_its_document_says(seeded: SeededLedger) -> None:
    _made(seeded)
    with tampering(seeded.ledger.database) as tx:
        tx.execute(update(checkpoints).values(document=json.dumps({"payload": {}})))
    [problem] = verify(seeded.ledger.database).problems
    assert "cannot be read" in problem


def test_what_is_no_checkpoint_is_not_believed(seeded: SeededLedger) -> None:
    for document in ({}, {"payload": {}, "signature": {"value": "?"}}, {"payload": {}, "signature": {"value": ""}}):
        with pytest.raises(InvalidInputError):
            _witness(document)
    with pytest.raises(InvalidInputError, match="no public key"):
        trusted_checkpoint_of(_made(seeded), b"-----BEGIN", "x")


def test_a_service_without_a_key_says_so(tmp_path: Path) -> None:
    with open_ledger(tmp_path, signing_key_file="") as ledger:
        for reply in (ledger.post("/v1/checkpoints", None), ledger.get("/v1/signing-key")):
            assert (reply.status_code, reply.json()["code"]) == (409, "signing_not_configured")


def test_a_checkpoint_is_signed_where_one_is_due_and_nowhere_else(seeded: SeededLedger) -> None:
    signer = signer_of(str(signing_key()[0]))
    assert signer is not None
    now = datetime.now(UTC)
    assert sign_due(seeded.ledger.database, signer, 3600, now) == 2
    assert sign_due(seeded.ledger.database, signer, 3600, now + timedelta(minutes=59)) == 0
    assert sign_due(seeded.ledger.database, signer, 3600, now + timedelta(minutes=61)) == 0
    seeded.ledger.post(f"/v1/runs/{seeded.run}/steps", {}, "trainer")
    assert sign_due(seeded.ledger.database, signer, 3600, now + timedelta(minutes=59)) == 0
    assert sign_due(seeded.ledger.database, signer, 3600, now + timedelta(minutes=61)) == 1
