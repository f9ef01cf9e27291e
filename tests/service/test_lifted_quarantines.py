"""A quarantine ends by two persons with a reason, and only where verification finds nothing any more."""

import json
from typing import Any

import pytest

from app.persistence.database import ALL_TENANTS
from app.service.verification import verify
from tests.api.trainer import LOUD, Trainer, hired, is_refused
from tests.conftest import Ledger
from tests.dashboard.html_reader import visit, without_breaks, words
from tests.login_helpers import signed_in
from tests.service.cli_runner import commands
from tests.service.quarantine_lifts import lift
from tests.service.tampering import TEAM, account, shift_curve, tampering

REASON = {"reason": "The rows were restored from the backup of the night."}


@pytest.fixture
def stopped(ledger: Ledger) -> Trainer:
    """A trainer whose budget was tampered with, and quarantined."""
    trainer = hired(ledger)
    assert trainer.steps(count=3).status_code == 200
    shift(ledger, -1)
    assert not ledger.post("/v1/verifications", None, "admin").json()["sound"]
    is_refused(trainer.steps(), 409, "account_quarantined")
    return trainer


def shift(ledger: Ledger, units: int) -> None:
    with tampering(ledger.database) as tx:
        shift_curve(tx, TEAM, units)


def team(ledger: Ledger) -> str:
    with ledger.database.read(ALL_TENANTS) as tx:
        return str(account(tx, TEAM).id)


def proposed(ledger: Ledger, role: str = "auditor") -> str:
    reply = ledger.post(f"/v1/accounts/{team(ledger)}/quarantine/lift", REASON, role)
    assert reply.status_code == 201, reply.text
    answer: dict[str, Any] = reply.json()
    assert (answer["kind"], answer["status"], list(answer["proposed"]["quarantined"])) == (
        "quarantine",
        "open",
        [team(ledger)],
    )
    return str(answer["id"])


def approved(ledger: Ledger, proposal: str, role: str = "admin") -> Any:  # noqa: ANN401 - a reply
    return ledger.post(f"/v1/proposals/{proposal}/approve", {"reason": "I looked at the rows."}, role)


def lifted(ledger: Ledger) -> list[dict[str, Any]]:
    audit_events = ledger.get("/v1/audit-events?order=oldest&action=quarantine.lifted", "admin").json()["items"]
    return list(audit_events)


def test_two_persons_lift_what_verification_finds_sound(stopped: Trainer) -> None:
    ledger = stopped.ledger
    proposal = proposed(ledger)
    shift(ledger, 1)
    assert approved(ledger, proposal).json()["status"] == "approved"
    assert stopped.steps().status_code == 200
    [audit_event] = lifted(ledger)
    assert (audit_event["subject"], audit_event["reason"]) == (team(ledger), REASON["reason"])
    assert audit_event["after"]["proposed_by"] != audit_event["after"]["approved_by"] == audit_event["actor"]
    assert list(audit_event["before"]["quarantined"]) == [team(ledger)]
    assert verify(ledger.database).sound


def test_it_is_refused_while_the_fault_is_there(stopped: Trainer) -> None:
    ledger = stopped.ledger
    proposal = proposed(ledger)
    answer = is_refused(approved(ledger, proposal), 409, "account_quarantined")
    assert answer["account"] == team(ledger)
    assert answer["discrepancies"] == [answer["discrepancies"][0]]
    assert TEAM in answer["discrepancies"][0]
    assert ledger.get(f"/v1/proposals/{proposal}").json()["status"] == "open"
    is_refused(stopped.steps(), 409, "account_quarantined")
    assert lifted(ledger) == []


def test_one_person_does_not_lift_it(stopped: Trainer) -> None:
    ledger = stopped.ledger
    proposal = proposed(ledger, "admin")
    shift(ledger, 1)
    is_refused(approved(ledger, proposal), 403, "insufficient_scope")
    is_refused(approved(ledger, proposal, "auditor"), 403, "insufficient_scope")
    assert approved(ledger, proposal, "privacy_officer").status_code == 200


def test_a_fault_elsewhere_does_not_keep_it(stopped: Trainer) -> None:
    ledger = stopped.ledger
    ledger.budget("other-team")
    other = Trainer(ledger, ledger.run("mimic/other-team", name="other", event=LOUD))
    assert other.steps().status_code == 200
    with tampering(ledger.database) as tx:
        shift_curve(tx, "mimic/other-team", -1)
    shift(ledger, 1)
    assert approved(ledger, proposed(ledger)).status_code == 200
    assert stopped.steps().status_code == 200
    assert not verify(ledger.database).sound


def test_a_fault_of_the_whole_ledger_keeps_it(stopped: Trainer) -> None:
    """Where the organisation's chain is broken, accounts are not held against it: nothing is proven then."""
    ledger = stopped.ledger
    proposal = proposed(ledger)
    shift(ledger, 1)
    with tampering(ledger.database) as tx:
        tx.exec_driver_sql("UPDATE audit_entries SET reason = 'another' WHERE position = 1")
    is_refused(approved(ledger, proposal), 409, "account_quarantined")


def test_what_is_not_quarantined_cannot_be_lifted(stopped: Trainer) -> None:
    ledger = stopped.ledger
    proposal = proposed(ledger)
    again = ledger.post(f"/v1/accounts/{team(ledger)}/quarantine/lift", REASON, "auditor")
    is_refused(again, 422, "invalid_request")
    shift(ledger, 1)
    lift(ledger, "mimic")  # and all that lies under it
    answer = is_refused(approved(ledger, proposal), 412, "precondition_failed")
    assert "another proposal lifted it" in answer["detail"]
    ledger.post(f"/v1/proposals/{proposal}/reject", None, "admin")
    sound = ledger.post(f"/v1/accounts/{team(ledger)}/quarantine/lift", REASON, "auditor")
    answer = is_refused(sound, 422, "invalid_request")
    assert "is quarantined" in answer["detail"]


def test_the_command_line_is_one_of_the_two(
    stopped: Trainer, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], database_url: str
) -> None:
    ledger, run = stopped.ledger, commands(monkeypatch, capsys, database_url)
    lift = ("quarantine", "lift", TEAM, "--org", "hospital", "--reason", "restored")
    assert TEAM in run("quarantine", "list", "--org", "hospital").out
    made = run(*lift, "--json")
    facts = json.loads(made.out)
    assert (made.status, facts["status"], facts["account"]) == (0, "open", team(ledger))
    shift(ledger, 1)
    own = run(*lift)
    assert own.status == 2
    assert "another person" in own.err
    assert approved(ledger, facts["proposal"]).status_code == 200
    shift(ledger, -1)
    assert not ledger.post("/v1/verifications", None, "admin").json()["sound"]
    proposed(ledger, "admin")
    refused = run(*lift)
    assert refused.status == 2
    assert "still finds" in refused.err
    shift(ledger, 1)
    assert "is lifted" in run(*lift).out
    assert json.loads(run("quarantine", "list", "--org", "hospital", "--json").out) == {"quarantined": {}}
    assert stopped.steps().status_code == 200


def test_the_pages_say_why_an_account_is_stopped_and_how_that_ends(stopped: Trainer) -> None:
    ledger, cookie = stopped.ledger, signed_in(stopped.ledger, "auditor")
    shown = visit(ledger, f"/accounts/{team(ledger)}", cookie)
    assert "Quarantined, no charges accepted: mimic/icu-team (bud_" in words(shown)
    assert f'data-call="POST /v1/accounts/{team(ledger)}/quarantine/lift"' in shown.text
    other = visit(ledger, f"/accounts/{team(ledger)}", signed_in(ledger, "viewer"))
    assert "two people lift the quarantine" in words(other)
    assert "quarantine/lift" not in other.text
    shift(ledger, 1)
    audit = visit(ledger, "/audit?verify=true", cookie, **{"Sec-Fetch-Site": "same-origin"})
    assert "until two people lift it" in words(audit)
    assert f'<li><a href="/accounts/{team(ledger)}">{TEAM}</a>: ' in without_breaks(audit.text)
    assert "Quarantined, no charges accepted" in words(visit(ledger, f"/accounts/{team(ledger)}", cookie))
    proposed(ledger)
    assert "The ledger is verified first" in visit(ledger, "/approvals", signed_in(ledger, "admin")).text
    [proposal] = ledger.get("/v1/proposals?status=open").json()["items"]
    assert approved(ledger, proposal["id"]).status_code == 200
    assert "Quarantined" not in words(visit(ledger, f"/accounts/{team(ledger)}", cookie))
    assert "lifted the quarantine of mimic/icu-team" in words(visit(ledger, "/audit", cookie))
