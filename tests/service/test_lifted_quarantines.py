"""A quarantine ends by two persons with a reason, and only where verification finds nothing any more."""

import json
from typing import Any

import httpx2
import pytest

from app.persistence.database import ALL_TENANTS
from app.service.verification import verify
from tests.api.trainer import LOUD, Trainer, hired, is_refused
from tests.conftest import Ledger
from tests.dashboard.html_reader import visit, without_breaks, words
from tests.login_helpers import signed_in
from tests.service.cli_runner import commands
from tests.service.quarantine_lifts import REASON, STOPPED, lift, shift
from tests.service.tampering import TEAM, account, tampering


@pytest.fixture
def stopped(ledger: Ledger) -> Trainer:
    """A trainer whose budget was tampered with, and quarantined."""
    trainer = hired(ledger)
    assert trainer.steps(count=3).status_code == 200
    shift(ledger, -1)
    assert not ledger.post("/v1/verifications", None, "admin").json()["sound"]
    is_refused(trainer.steps(), *STOPPED)
    return trainer


def team(ledger: Ledger) -> str:
    with ledger.database.read(ALL_TENANTS) as tx:
        return str(account(tx, TEAM).id)


def propose(ledger: Ledger, role: str = "auditor") -> httpx2.Response:
    return ledger.post(f"/v1/accounts/{team(ledger)}/quarantine/lift", REASON, role)


def proposed(ledger: Ledger, role: str = "auditor") -> str:
    reply = propose(ledger, role)
    assert reply.status_code == 201, reply.text
    answer: dict[str, Any] = reply.json()
    assert (answer["kind"], answer["status"]) == ("quarantine", "open")
    assert list(answer["proposed"]["quarantined"]) == [team(ledger)]
    return str(answer["id"])


def approve(ledger: Ledger, proposal: str, role: str = "admin") -> httpx2.Response:
    return ledger.post(f"/v1/proposals/{proposal}/approve", {"reason": "I looked at the rows."}, role)


def lifted(ledger: Ledger) -> list[dict[str, Any]]:
    audit_events = ledger.get("/v1/audit-events?order=oldest&action=quarantine.lifted", "admin").json()["items"]
    return list(audit_events)


def test_quarantine_is_lifted_by_two_persons_once_verification_is_sound(stopped: Trainer) -> None:
    ledger = stopped.ledger
    proposal = proposed(ledger)
    answer = is_refused(approve(ledger, proposal), *STOPPED)
    assert answer["account"] == team(ledger)
    [discrepancy] = answer["discrepancies"]
    assert TEAM in discrepancy
    assert ledger.get(f"/v1/proposals/{proposal}").json()["status"] == "open"
    is_refused(stopped.steps(), *STOPPED)
    assert lifted(ledger) == []
    shift(ledger, 1)
    for role in ("auditor", "planner"):  # who proposed it, and who may not
        is_refused(approve(ledger, proposal, role), 403, "insufficient_scope")
    assert approve(ledger, proposal).json()["status"] == "approved"
    assert stopped.steps().status_code == 200
    [audit_event] = lifted(ledger)
    assert (audit_event["subject"], audit_event["reason"]) == (team(ledger), REASON["reason"])
    assert audit_event["after"]["proposed_by"] != audit_event["after"]["approved_by"] == audit_event["actor"]
    assert list(audit_event["before"]["quarantined"]) == [team(ledger)]
    assert verify(ledger.database).sound


def test_quarantine_is_not_lifted_by_its_proposer(stopped: Trainer) -> None:
    proposal = proposed(stopped.ledger, "admin")
    shift(stopped.ledger, 1)
    is_refused(approve(stopped.ledger, proposal), 403, "insufficient_scope")
    assert approve(stopped.ledger, proposal, "privacy_officer").status_code == 200


def test_quarantine_is_lifted_in_spite_of_a_discrepancy_elsewhere(stopped: Trainer) -> None:
    ledger = stopped.ledger
    ledger.budget("other-team")
    other = Trainer(ledger, ledger.run("mimic/other-team", name="other", event=LOUD))
    assert other.steps().status_code == 200
    shift(ledger, -1, "mimic/other-team")
    shift(ledger, 1)
    assert approve(ledger, proposed(ledger)).status_code == 200
    assert stopped.steps().status_code == 200
    assert not verify(ledger.database).sound


def test_quarantine_is_kept_while_the_audit_log_is_broken(stopped: Trainer) -> None:
    """Accounts are not held against a broken log: nothing is proven then."""
    proposal = proposed(stopped.ledger)
    shift(stopped.ledger, 1)
    with tampering(stopped.ledger.database) as tx:
        tx.exec_driver_sql("UPDATE audit_entries SET reason = 'another' WHERE position = 1")
    is_refused(approve(stopped.ledger, proposal), *STOPPED)


def test_quarantine_that_was_lifted_is_not_lifted_again(stopped: Trainer) -> None:
    ledger = stopped.ledger
    proposal = proposed(ledger)
    is_refused(propose(ledger), 422, "invalid_request")
    shift(ledger, 1)
    lift(ledger, "mimic")  # and all that lies under it
    answer = is_refused(approve(ledger, proposal), 412, "precondition_failed")
    assert "another proposal lifted it" in answer["detail"]
    ledger.post(f"/v1/proposals/{proposal}/reject", None, "admin")
    assert "is quarantined" in is_refused(propose(ledger), 422, "invalid_request")["detail"]


def test_command_line_is_one_of_the_two_persons(
    stopped: Trainer, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], database_url: str
) -> None:
    ledger, run = stopped.ledger, commands(monkeypatch, capsys, database_url)
    command = ("quarantine", "lift", TEAM, "--org", "hospital", "--reason", "restored")
    assert TEAM in run("quarantine", "list", "--org", "hospital").out
    made = run(*command, "--json")
    facts = json.loads(made.out)
    assert (made.status, facts["status"], facts["account"]) == (0, "open", team(ledger))
    shift(ledger, 1)
    own = run(*command)
    assert (own.status, "another person" in own.err) == (2, True)
    assert approve(ledger, facts["proposal"]).status_code == 200
    shift(ledger, -1)
    assert not ledger.post("/v1/verifications", None, "admin").json()["sound"]
    proposed(ledger, "admin")
    refused = run(*command)
    assert (refused.status, "still finds" in refused.err) == (2, True)
    shift(ledger, 1)
    assert "is lifted" in run(*command).out
    assert json.loads(run("quarantine", "list", "--org", "hospital", "--json").out) == {"quarantined": {}}
    assert stopped.steps().status_code == 200


def test_pages_show_why_an_account_is_stopped_and_how_that_ends(stopped: Trainer) -> None:
    ledger, cookie = stopped.ledger, signed_in(stopped.ledger, "auditor")
    page = f"/accounts/{team(ledger)}"
    shown = visit(ledger, page, cookie)
    assert "Quarantined, no charges accepted: mimic/icu-team (bud_" in words(shown)
    assert f'data-call="POST /v1/accounts/{team(ledger)}/quarantine/lift"' in shown.text
    other = visit(ledger, page, signed_in(ledger, "viewer"))
    assert "two people lift the quarantine" in words(other)
    assert "quarantine/lift" not in other.text
    shift(ledger, 1)
    audit = visit(ledger, "/audit?verify=true", cookie, **{"Sec-Fetch-Site": "same-origin"})
    assert "until two people lift it" in words(audit)
    assert f'<li><a href="{page}">{TEAM}</a>: ' in without_breaks(audit.text)
    proposal = proposed(ledger)
    assert "The ledger is verified first" in visit(ledger, "/approvals", signed_in(ledger, "admin")).text
    assert approve(ledger, proposal).status_code == 200
    assert "Quarantined" not in words(visit(ledger, page, cookie))
    assert "lifted the quarantine of mimic/icu-team" in words(visit(ledger, "/audit", cookie))
