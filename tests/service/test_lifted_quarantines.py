"""A quarantine is an entry of the audit log, and ends by two persons where verification finds nothing any more."""

import json
from pathlib import Path
from typing import Any

import httpx2
import pytest
from sqlalchemy import update

from app.persistence.database import ALL_TENANTS
from app.persistence.tables import audit_entries
from app.service.verification.verify import verify
from tests.api.trainer import LOUD, Trainer, audited, is_refused
from tests.conftest import Ledger, open_ledger
from tests.dashboard.page_visitor import visitor
from tests.service.cli_runner import commands
from tests.service.tampering import MODEL, REASON, TEAM, account, lift, shift, tampering, write_account

STOPPED = (409, "account_quarantined")


@pytest.fixture
def trainer(trainer: Trainer) -> Trainer:
    assert trainer.steps(count=3).status_code == 200
    return trainer


@pytest.fixture
def stopped(trainer: Trainer) -> Trainer:
    """A trainer whose budget was tampered with, and quarantined."""
    shift(trainer.ledger, -1)
    assert not verified(trainer)["sound"]
    return trainer


def verified(trainer: Trainer) -> dict[str, Any]:
    found: dict[str, Any] = trainer.ledger.post("/v1/verifications", None, "auditor").json()
    return found


def events(trainer: Trainer, action: str) -> list[dict[str, Any]]:
    return audited(trainer.ledger, f"action=quarantine.{action}")


def goes_on_once_lifted(trainer: Trainer) -> bool:
    is_refused(trainer.steps(), *STOPPED)
    lift(trainer.ledger, TEAM)
    return trainer.steps().status_code == 200 and verified(trainer)["quarantined"] == []


def test_audit_log_has_who_placed_a_quarantine_and_why(trainer: Trainer) -> None:
    shift(trainer.ledger, -1)
    [discrepancy] = verified(trainer)["discrepancies"]
    [event] = events(trainer, "placed")
    first = {"quarantine": discrepancy["detail"]}
    assert (event["subject"], event["before"], event["after"]) == (discrepancy["account"], None, first)
    keys = trainer.ledger.get("/v1/api-keys", "admin").json()["items"]
    assert [event["actor"]] == [each["id"] for each in keys if each["role"] == "auditor"]
    assert verified(trainer)["discrepancies"] == [discrepancy]
    assert len(events(trainer, "placed")) == 1
    write_account(trainer.ledger.database, TEAM, name_skeleton="another")
    other = verified(trainer)["discrepancies"][0]["detail"]
    _, event = events(trainer, "placed")
    assert (event["before"], event["after"]) == (first, {"quarantine": other})


def test_quarantine_that_was_cleared_by_hand_is_found(stopped: Trainer) -> None:
    shift(stopped.ledger, 1)
    write_account(stopped.ledger.database, TEAM, quarantine_reason=None)
    assert stopped.steps().status_code == 200  # it was not verified yet
    assert "no audit event of its organisation has lifted it" in verified(stopped)["discrepancies"][0]["detail"]
    again = verified(stopped)
    assert (again["sound"], again["quarantined"][0]["liftable"]) == (True, True)
    assert goes_on_once_lifted(stopped)


@pytest.mark.parametrize("before", [(), (-1, 1)])
def test_quarantine_that_no_verification_placed_is_found(trainer: Trainer, before: tuple[int, ...]) -> None:
    for units in before:
        verified(trainer)
        shift(trainer.ledger, units)
    write_account(trainer.ledger.database, TEAM, quarantine_reason="because somebody wrote so")
    assert [verified(trainer)["sound"] for _ in range(2)] == [False, True]
    assert goes_on_once_lifted(trainer)


def test_account_is_stopped_and_audited_although_the_log_is_broken(trainer: Trainer) -> None:
    first = update(audit_entries).where(audit_entries.c.position == 1)
    shift(trainer.ledger, -1)
    with tampering(trainer.ledger.database) as tx:
        tx.execute(first.values(reason="another"))
    assert {each["account"] is None for each in verified(trainer)["discrepancies"]} == {True, False}
    is_refused(trainer.steps(), *STOPPED)
    assert len(events(trainer, "placed")) == 1
    shift(trainer.ledger, 1)
    assert not verified(trainer)["quarantined"][0]["liftable"]  # nothing is proven while the log is broken
    proposal = proposed(trainer)
    is_refused(approve(trainer, proposal), *STOPPED)
    with tampering(trainer.ledger.database) as tx:
        tx.execute(first.values(reason=None))
    assert verified(trainer)["quarantined"][0]["liftable"]
    assert approve(trainer, proposal).status_code == 200


def test_account_is_stopped_although_the_end_of_the_log_is_unreadable(trainer: Trainer) -> None:
    ledger = trainer.ledger
    shift(ledger, -1)
    with tampering(ledger.database) as tx:  # PostgreSQL keeps a position a number
        last = audit_entries.select().order_by(audit_entries.c.position.desc()).limit(1)
        position = tx.execute(last).one().position
        tx.exec_driver_sql("UPDATE audit_entries SET position = 'last' WHERE position = ?", (position,))
    assert not verify(ledger.database).sound
    assert ledger.post("/v1/verifications", None, "auditor").status_code == 201
    with ledger.database.read(ALL_TENANTS) as tx:
        assert account(tx, TEAM).quarantine_reason is not None
    is_refused(trainer.steps(), *STOPPED)
    shift(ledger, 1)
    with tampering(ledger.database) as tx:
        tx.exec_driver_sql("UPDATE audit_entries SET position = ? WHERE position = 'last'", (position,))
    assert "no audit event of its organisation does" in verified(trainer)["discrepancies"][0]["detail"]
    assert goes_on_once_lifted(trainer)


def test_quarantine_found_since_the_proposal_is_not_lifted_with_it(stopped: Trainer) -> None:
    ledger, proposal = stopped.ledger, proposed(stopped)
    shift(ledger, 1)
    shift(ledger, -1, MODEL)
    assert len(verified(stopped)["quarantined"]) == 2
    shift(ledger, 1, MODEL)
    assert MODEL in is_refused(approve(stopped, proposal), 412, "precondition_failed")["detail"]
    assert ledger.post(f"/v1/proposals/{proposal}/reject", {}, "admin").status_code == 200
    assert goes_on_once_lifted(stopped)


@pytest.mark.both_databases
def test_replica_with_a_cached_account_notices_quarantine_and_lift(
    trainer: Trainer, database_url: str, tmp_path: Path
) -> None:
    with open_ledger(tmp_path, database_url) as other:
        there = Trainer(other, trainer.run)
        assert there.steps().status_code == 200  # it has the account in memory
        shift(trainer.ledger, -1)
        verified(trainer)
        is_refused(there.steps(), *STOPPED)
        shift(trainer.ledger, 1)
        assert goes_on_once_lifted(trainer)
        assert there.steps().status_code == 200


def team(ledger: Ledger) -> str:
    with ledger.database.read(ALL_TENANTS) as tx:
        return str(account(tx, TEAM).id)


def propose(trainer: Trainer, role: str = "auditor") -> httpx2.Response:
    return trainer.ledger.post(f"/v1/accounts/{team(trainer.ledger)}/quarantine/lift", REASON, role)


def proposed(trainer: Trainer, role: str = "auditor") -> str:
    answer: dict[str, Any] = propose(trainer, role).json()
    assert (answer["kind"], answer["status"]) == ("quarantine", "open")
    assert list(answer["proposed"]["quarantined"]) == [team(trainer.ledger)]
    return str(answer["id"])


def approve(trainer: Trainer, proposal: str, role: str = "admin") -> httpx2.Response:
    return trainer.ledger.post(f"/v1/proposals/{proposal}/approve", {"reason": "I looked at the rows."}, role)


def test_quarantine_is_lifted_by_two_persons_once_verification_is_sound(stopped: Trainer) -> None:
    ledger, proposal = stopped.ledger, proposed(stopped)
    answer = is_refused(approve(stopped, proposal), *STOPPED)
    assert answer["account"] == team(ledger)
    assert TEAM in str(answer["discrepancies"])
    assert ledger.get(f"/v1/proposals/{proposal}").json()["status"] == "open"
    is_refused(stopped.steps(), *STOPPED)
    assert events(stopped, "lifted") == []
    shift(ledger, 1)
    for role in ("auditor", "planner"):  # who proposed it, and who may not
        is_refused(approve(stopped, proposal, role), 403, "permission_denied")
    assert approve(stopped, proposal).json()["status"] == "approved"
    assert stopped.steps().status_code == 200
    [event] = events(stopped, "lifted")
    assert (event["subject"], event["reason"]) == (team(ledger), REASON["reason"])
    assert event["after"]["proposed_by"] != event["after"]["approved_by"] == event["actor"]
    assert list(event["before"]["quarantined"]) == [team(ledger)]
    assert verify(ledger.database).sound


def test_quarantine_is_lifted_in_spite_of_a_discrepancy_elsewhere_and_not_by_its_proposer(stopped: Trainer) -> None:
    ledger = stopped.ledger
    ledger.budget("other-team")
    other = Trainer(ledger, ledger.run("mimic/other-team", name="other", event=LOUD))
    assert other.steps().status_code == 200
    proposal = proposed(stopped, "admin")
    shift(ledger, -1, "mimic/other-team")
    shift(ledger, 1)
    is_refused(approve(stopped, proposal), 403, "permission_denied")
    assert approve(stopped, proposal, "privacy_officer").status_code == 200
    assert stopped.steps().status_code == 200
    assert not verify(ledger.database).sound


def test_quarantine_that_was_lifted_is_not_lifted_again(stopped: Trainer) -> None:
    ledger, proposal = stopped.ledger, proposed(stopped)
    is_refused(propose(stopped), 422, "invalid_request")
    shift(ledger, 1)
    lift(ledger, "mimic")  # and all that lies under it
    answer = is_refused(approve(stopped, proposal), 412, "precondition_failed")
    assert "another proposal lifted it" in answer["detail"]
    ledger.post(f"/v1/proposals/{proposal}/reject", None, "admin")
    assert "is quarantined" in is_refused(propose(stopped), 422, "invalid_request")["detail"]


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
    assert approve(stopped, facts["proposal"]).status_code == 200
    shift(ledger, -1)
    assert not verified(stopped)["sound"]
    proposed(stopped, "admin")
    refused = run(*command)
    assert (refused.status, "still finds" in refused.err) == (2, True)
    shift(ledger, 1)
    assert "is lifted" in run(*command).out
    assert json.loads(run("quarantine", "list", "--org", "hospital", "--json").out) == {"quarantined": {}}
    assert stopped.steps().status_code == 200


def test_pages_show_why_an_account_is_stopped_and_how_that_ends(stopped: Trainer) -> None:
    ledger, auditor = stopped.ledger, visitor(stopped.ledger, "auditor")
    page = f"/accounts/{team(ledger)}"
    assert f'data-call="POST /v1/accounts/{team(ledger)}/quarantine/lift"' in auditor.open(page).reply.text
    assert "two people lift the quarantine" in visitor(ledger).open(page).words
    shift(ledger, 1)
    audit = auditor.open("/audit?verify=true", Sec_Fetch_Site="same-origin")
    assert "until two people lift it" in audit.words
    proposal = proposed(stopped)
    assert "The ledger is verified first" in visitor(ledger, "admin").open("/approvals").reply.text
    assert approve(stopped, proposal).status_code == 200
    assert "Quarantined" not in auditor.open(page).words
    assert "lifted the quarantine of mimic/icu-team" in auditor.open("/audit").words
