"""Statements and checkpoints: signed, complete, and plain about what they do not say."""

import json
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import delete, select, update

from app.ledger.audit import audit_entry_hash, audit_genesis, canonical
from app.ledger.errors import InvalidInputError
from app.persistence.repositories.audit import all_entries
from app.persistence.tables import api_keys, audit_entries, checkpoints, decisions, run_anchors, runs
from app.service.audit.checkpoints import sign_due
from app.service.auth.authentication import CLI_ACTOR
from app.service.json_values import read_object
from app.service.signing.ed25519 import is_signed_by, key_id_of, load_public_key
from app.service.signing.signatures import require_signer, signer_of
from app.service.verification.requests import apply_quarantines
from app.service.verification.trusted_checkpoints import Evidence, TrustedCheckpoint, trusted_checkpoint_of
from app.service.verification.verify import verify
from tests.api.conftest import SeededLedger
from tests.api.trainer import audited, is_refused, issue
from tests.conftest import SAMPLED, open_ledger, signing_key
from tests.forged_documents import forged_documents
from tests.ledgers import new_signing_key
from tests.service.tampering import shift_curve, tampering

NOISE = {"type": "gaussian", "noise_multiplier": 80.0}


def _stated(seeded: SeededLedger, path: str) -> dict[str, Any]:
    reply = seeded.ledger.get(path).raise_for_status()
    document: dict[str, Any] = reply.json()
    assert is_signed_by(document, signing_key()[1].read_bytes())
    return dict(document["payload"])


def test_statement_of_a_run_has_its_mechanisms_and_loss(seeded: SeededLedger) -> None:
    bodies: list[dict[str, Any]] = [{"count": 4}, {"event": NOISE, "count": 2}, {"count": 10**6}]
    assert [seeded.steps(**body).status_code for body in bodies] == [200, 200, 403]
    seeded.ledger.post(f"/v1/runs/{seeded.run}/complete", None, "trainer")
    said = _stated(seeded, f"/v1/runs/{seeded.run}/statement")
    run = seeded.ledger.get(f"/v1/runs/{seeded.run}").json()
    assert (said["run"]["status"], said["run"]["final"], said["run"]["path"]) == ("completed", True, run["path"])
    declared = {"privacy_unit": "patient", "neighboring_relation": "add_or_remove_one", "size": None}
    written = {"display_name": None, "description": None, "difference": "with or without one patient's records"}
    assert said["protected"] == [{"population": seeded.population, "name": "mimic"} | declared | written]
    assert [(each["event"], each["count"]) for each in said["mechanisms"]] == [(SAMPLED, 5), (NOISE, 2)]
    assert (said["steps"], said["mechanisms_in_all"]) == (7, 2)
    assert said["decisions"] == {"admitted": 3, "refused": 1}
    loss = said["loss"]
    assert loss["limit"] == {"epsilon": 1.0, "delta": 1e-5}
    assert (loss["epsilon"], 0 < loss["used"] < 1) == (run["epsilon"], True)
    assert (loss["proven"], loss["exceeded"], "limit_needed" in loss) == (loss["limit"], None, False)
    assert [account["path"] for account in said["accounts"]] == ["mimic", "mimic/icu-team"]
    history = seeded.ledger.get(f"/v1/runs/{seeded.run}/history").json()
    assert (said["chain"]["decisions"], said["chain"]["head"]) == (4, history["points"][-1]["hash"])
    assert (said["versions"]["grid"], bool(said["covered"]), bool(said["not_covered"])) == (1, True, True)


def test_statement_of_a_population_names_every_charged_run(seeded: SeededLedger) -> None:
    other, idle = (seeded.ledger.run(name=name) for name in ("other", "idle"))
    assert seeded.steps(run=other, count=3).status_code == 200
    said = _stated(seeded, f"/v1/populations/{seeded.population}/statement")
    assert ({run["id"] for run in said["runs"]}, said["runs_in_all"]) == ({seeded.run, other}, 2)
    assert idle not in str(said["runs"])
    population = seeded.ledger.get(f"/v1/populations/{seeded.population}").json()
    assert (said["loss"]["epsilon"], said["loss"]["limit"]) == (population["epsilon"], population["limit"])
    assert (said["steps"], said["mechanisms_in_all"], said["totals"]) == (4, 1, [])


def test_document_with_something_that_is_not_signed_is_refused(seeded: SeededLedger) -> None:
    public = signing_key()[1].read_bytes()
    made = _made(seeded)
    assert _sound(json.dumps(made), public)
    assert [name for name, text in forged_documents(made).items() if _sound(text, public)] == []


def _sound(text: str, public: bytes) -> bool:
    try:
        return is_signed_by(read_object(text.encode()), public)
    except (ValueError, InvalidInputError):
        return False


def test_statements_cover_released_steps_of_an_open_plan(seeded: SeededLedger) -> None:
    plan = {"events": [{"event": NOISE, "count": 24}]}
    assert seeded.ledger.post(f"/v1/runs/{seeded.run}/reservations", plan, "trainer").is_success
    assert seeded.steps(event=NOISE, count=24).status_code == 200
    run = _stated(seeded, f"/v1/runs/{seeded.run}/statement")
    whole = _stated(seeded, f"/v1/populations/{seeded.population}/statement")
    epsilons = {each["path"]: each["epsilon"] for each in run["accounts"]}
    assert whole["loss"]["epsilon"] == epsilons["mimic"] == run["totals"][0]["epsilon"] == epsilons["mimic/icu-team"]
    assert whole["loss"]["epsilon"] >= run["loss"]["epsilon"] > 0, "by its curve, as long as something is reserved"


def test_statement_out_of_scope_or_of_a_quarantined_account_is_refused(seeded: SeededLedger) -> None:
    seeded.ledger.budget("other")
    issue(seeded.ledger, "bound", "viewer", "mimic/other")
    for path in (f"runs/{seeded.run}/statement", f"populations/{seeded.population}/statement.html"):
        is_refused(seeded.ledger.get(f"/v1/{path}", "bound"), 403, "permission_denied")
    with tampering(seeded.ledger.database) as tx:
        shift_curve(tx, "mimic", 1)
    found = apply_quarantines(seeded.ledger.database, verify(seeded.ledger.database), CLI_ACTOR, datetime.now(UTC))
    assert not found.sound
    for path in (f"runs/{seeded.run}/statement", f"populations/{seeded.population}/statement"):
        is_refused(seeded.ledger.get(f"/v1/{path}"), 409, "account_quarantined")


def test_statement_without_a_signing_key_is_refused(tmp_path: Path) -> None:
    with open_ledger(tmp_path, signing_key_file="") as ledger:
        ledger.population()
        ledger.budget()
        is_refused(ledger.get(f"/v1/runs/{ledger.run()}/statement"), 409, "signing_not_configured")


def _made(seeded: SeededLedger) -> dict[str, Any]:
    return dict(seeded.ledger.post("/v1/checkpoints", None, "auditor").raise_for_status().json())


def _witness(document: dict[str, Any]) -> TrustedCheckpoint:
    return trusted_checkpoint_of(document, signing_key()[1].read_bytes(), "the kept checkpoint")


def test_checkpoint_is_signed_with_the_published_key_and_made_again_for_a_new_event(seeded: SeededLedger) -> None:
    made = _made(seeded)
    answer = seeded.ledger.get("/v1/signing-key").json()
    assert answer["public_key"] == signing_key()[1].read_text()
    assert made["signature"]["key_id"] == answer["key_id"]
    assert is_signed_by(made, answer["public_key"].encode())
    last, signed = audited(seeded.ledger)[-1], made["payload"]
    named = ("chains.anchored", signed["audit_head"], signed["audit_length"])
    assert (last["action"], last["hash"], last["position"] + 1) == named
    assert last["after"]["runs"][seeded.run][0] == 1
    assert seeded.ledger.get("/v1/checkpoints", "auditor").json() == {"items": [made], "next": None}
    first = _made(seeded)
    assert _made(seeded) == first
    assert seeded.steps().status_code == 200
    second = _made(seeded)
    assert second["payload"]["audit_length"] == first["payload"]["audit_length"] + 1
    assert verify(seeded.ledger.database, evidence=Evidence([_witness(first), _witness(second)])).sound


def test_another_key_signs_anew_and_the_chain_names_both(seeded: SeededLedger, tmp_path: Path) -> None:
    first = _made(seeded)
    signer = require_signer(signer_of(str(new_signing_key(tmp_path)[0])))
    database, later = seeded.ledger.database, datetime.now(UTC) + timedelta(hours=2)
    assert sign_due(database, signer, 3600, later) == 2  # the clinic had none
    assert sign_due(database, signer, 3600, later + timedelta(hours=2)) == 0
    second, _ = seeded.ledger.get("/v1/checkpoints", "auditor").json()["items"]
    assert is_signed_by(second, signer.public_key.encode())
    last = audited(seeded.ledger)[-1]
    assert last["action"] == "signing_key.changed"
    assert [last[side]["key_id"] for side in ("before", "after")] == [first["signature"]["key_id"], signer.key_id]
    by_new_key = trusted_checkpoint_of(second, signer.public_key.encode(), "the one by the new key")
    assert verify(database, evidence=Evidence([_witness(first), by_new_key])).sound


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


def test_decisions_cut_off_are_found_though_the_run_s_head_was_set_back(seeded: SeededLedger) -> None:
    assert seeded.steps(count=10**6).status_code == 403
    _made(seeded)
    with tampering(seeded.ledger.database) as tx:
        first = tx.execute(select(decisions.c.entry_hash).where(decisions.c.position == 0)).scalar_one()
        tx.execute(delete(decisions).where(decisions.c.position > 0))
        tx.execute(update(runs).where(runs.c.account_id == seeded.run).values(decision_count=1, chain_head=first))
    problems = verify(seeded.ledger.database).problems
    assert any("tied to 2 of them" in problem for problem in problems)


def test_history_that_was_cut_or_rewritten_is_found_by_a_checkpoint_that_was_kept(seeded: SeededLedger) -> None:
    key = seeded.ledger.post("/v1/api-keys", {"role": "viewer"}).json()["id"]
    witness = _witness(_made(seeded))
    with tampering(seeded.ledger.database) as tx:
        tx.execute(delete(audit_entries).where(audit_entries.c.position >= witness.audit_length - 2))
        tx.execute(delete(api_keys).where(api_keys.c.id == key))
        tx.execute(delete(checkpoints))
        tx.execute(delete(run_anchors))
    assert seeded.sound()
    [problem] = verify(seeded.ledger.database, evidence=Evidence([witness])).problems
    assert "it was cut" in problem
    witness = _witness(_made(seeded))
    _rewrite_audit_events(seeded)
    assert seeded.sound()
    problems = verify(seeded.ledger.database, evidence=Evidence([witness])).problems
    assert any("the kept checkpoint signed another history of the first" in problem for problem in problems)


def test_document_that_is_no_checkpoint_is_refused(seeded: SeededLedger) -> None:
    for document in ({}, {"payload": {}, "signature": {"value": "?"}}, {"payload": {}, "signature": {"value": ""}}):
        with pytest.raises(InvalidInputError):
            _witness(document)
    with pytest.raises(InvalidInputError, match="no public key"):
        trusted_checkpoint_of(_made(seeded), b"-----BEGIN", "x")


@pytest.mark.parametrize(
    ("place", "value", "by_form"),
    [
        ((), {"note": "all is well"}, True),
        (("payload",), {"note": "all is well"}, True),
        (("signature",), {"algorithm": "none"}, True),
        (("signature",), {"value": None}, True),
        (("signature",), {"value": "AAAA"}, True),
        (("signature",), {"key_id": "x"}, True),
        (("signature",), {"key_id": "0123456789abcdef"}, False),
        (("signature",), {"value": "A" * 86 + "=="}, False),
    ],
    ids=str,
)
def test_changed_document_of_a_checkpoint_is_found(
    seeded: SeededLedger, place: tuple[str, ...], value: dict[str, Any], *, by_form: bool
) -> None:
    made = seeded.ledger.post("/v1/checkpoints", None, "auditor").raise_for_status().json()
    pem = signing_key()[1].read_bytes()
    evidence = Evidence(public_keys={key_id_of(load_public_key(pem)): pem})
    database = seeded.ledger.database
    assert verify(database, evidence=evidence).sound
    changed = made
    for name in place:
        changed = changed[name]
    changed |= value
    with tampering(database) as tx:
        tx.execute(update(checkpoints).values(document=canonical(made)))
    assert verify(database).sound != by_form
    [problem] = verify(database, evidence=evidence).problems
    assert "the checkpoint after" in problem
