"""Placing a quarantine is an entry of the audit log: nobody takes it away unseen, whatever they may write."""

from typing import Any

import pytest
from sqlalchemy import delete, update

from app.persistence.database import ALL_TENANTS
from app.persistence.tables import accounts, audit_entries
from app.service.verification import verify
from tests.api.trainer import Trainer, hired, is_refused
from tests.conftest import Ledger
from tests.persistence.dump import changed, dump
from tests.service.full_ledger import taken_up
from tests.service.quarantine_lifts import REASON, lift
from tests.service.tampering import MODEL, TEAM, account, restore, set_account, shift_curve, tampering


@pytest.fixture
def trainer(ledger: Ledger) -> Trainer:
    """Somebody whose run was charged."""
    found = hired(ledger)
    assert found.steps(count=3).status_code == 200
    return found


def shift(ledger: Ledger, units: int, path: str = TEAM) -> None:
    with tampering(ledger.database) as tx:
        shift_curve(tx, path, units)


def verified(ledger: Ledger) -> dict[str, Any]:
    found: dict[str, Any] = ledger.post("/v1/verifications", None, "auditor").json()
    return found


def audit_events(ledger: Ledger, action: str) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = ledger.get(f"/v1/audit-events?order=oldest&action={action}", "admin").json()["items"]
    return found


def set_quarantine(ledger: Ledger, sentence: str | None) -> None:
    with tampering(ledger.database) as tx:
        set_account(tx, TEAM, quarantine_reason=sentence)


def test_who_found_what_and_when_stands_in_the_audit_log(trainer: Trainer) -> None:
    ledger = trainer.ledger
    shift(ledger, -1)
    found = verified(ledger)
    [audit_event] = audit_events(ledger, "quarantine.placed")
    [discrepancy] = found["discrepancies"]
    assert (audit_event["subject"], audit_event["before"], audit_event["after"]) == (
        discrepancy["account"],
        None,
        {"quarantine": discrepancy["detail"]},
    )
    [auditor] = {
        each["id"] for each in ledger.get("/v1/api-keys", "admin").json()["items"] if each["role"] == "auditor"
    }
    assert audit_event["actor"] == auditor
    assert verified(ledger)["discrepancies"] == [discrepancy]
    assert len(audit_events(ledger, "quarantine.placed")) == 1
    with tampering(ledger.database) as tx:
        set_account(tx, TEAM, name_skeleton="another")
    other = verified(ledger)["discrepancies"][0]["detail"]
    [_, audit_event] = audit_events(ledger, "quarantine.placed")
    assert (audit_event["before"], audit_event["after"]) == (
        {"quarantine": discrepancy["detail"]},
        {"quarantine": other},
    )


def test_whoever_restores_the_cell_and_clears_the_quarantine_is_found(trainer: Trainer) -> None:
    ledger = trainer.ledger
    shift(ledger, -1)
    verified(ledger)
    shift(ledger, 1)
    set_quarantine(ledger, None)
    assert trainer.steps().status_code == 200  # nobody has looked yet
    found = verified(ledger)
    assert "no audit event of its organisation has lifted it" in found["discrepancies"][0]["detail"]
    is_refused(trainer.steps(), 409, "account_quarantined")
    again = verified(ledger)
    assert (again["sound"], again["quarantined"][0]["liftable"]) == (True, True)
    lift(ledger, TEAM)
    assert trainer.steps().status_code == 200
    assert verified(ledger)["quarantined"] == []


@pytest.mark.parametrize("before", [None, "found"])
def test_a_quarantine_that_no_verification_placed_is_found(trainer: Trainer, before: str | None) -> None:
    ledger = trainer.ledger
    if before:
        shift(ledger, -1)
        verified(ledger)
        shift(ledger, 1)
    set_quarantine(ledger, "because somebody wrote so")
    assert not verified(ledger)["sound"]
    is_refused(trainer.steps(), 409, "account_quarantined")
    assert verified(ledger)["sound"]
    lift(ledger, TEAM)
    assert trainer.steps().status_code == 200


def test_a_broken_chain_keeps_nobody_from_being_stopped_or_from_being_named_in_it(trainer: Trainer) -> None:
    ledger = trainer.ledger
    shift(ledger, -1)
    with tampering(ledger.database) as tx:
        tx.execute(update(audit_entries).where(audit_entries.c.position == 1).values(reason="another"))
    found = verified(ledger)
    assert {discrepancy["account"] is None for discrepancy in found["discrepancies"]} == {True, False}
    is_refused(trainer.steps(), 409, "account_quarantined")
    assert len(audit_events(ledger, "quarantine.placed")) == 1
    shift(ledger, 1)
    [kept] = verified(ledger)["quarantined"]
    assert not kept["liftable"]  # nothing is proven while the chain is broken
    with tampering(ledger.database) as tx:
        tx.execute(update(audit_entries).where(audit_entries.c.position == 1).values(reason=None))
    [kept] = verified(ledger)["quarantined"]
    assert kept["liftable"]
    lift(ledger, TEAM)
    assert trainer.steps().status_code == 200


def test_an_account_is_stopped_although_the_end_of_the_chain_cannot_be_read(trainer: Trainer) -> None:
    ledger = trainer.ledger
    if ledger.database.dialect != "sqlite":
        pytest.skip("PostgreSQL keeps a position a number")
    shift(ledger, -1)
    last = audit_entries.c.position.desc()
    with tampering(ledger.database) as tx:
        position = tx.execute(audit_entries.select().order_by(last).limit(1)).one().position
        tx.exec_driver_sql("UPDATE audit_entries SET position = 'last' WHERE position = ?", (position,))
    assert not verify(ledger.database).sound
    assert ledger.post("/v1/verifications", None, "auditor").status_code == 201
    with ledger.database.read(ALL_TENANTS) as tx:
        assert account(tx, TEAM).quarantine_reason is not None
    is_refused(trainer.steps(), 409, "account_quarantined")
    shift(ledger, 1)
    with tampering(ledger.database) as tx:
        tx.exec_driver_sql("UPDATE audit_entries SET position = ? WHERE position = 'last'", (position,))
    assert "no audit event of its organisation does" in verified(ledger)["discrepancies"][0]["detail"]
    lift(ledger, TEAM)
    assert trainer.steps().status_code == 200


def test_what_has_no_row_is_named_and_not_stopped_again_and_again(trainer: Trainer) -> None:
    ledger = trainer.ledger
    with tampering(ledger.database) as tx:
        tx.execute(delete(accounts).where(accounts.c.path == MODEL))
    assert not verified(ledger)["sound"]
    before = dump(ledger.database)
    assert not verified(ledger)["sound"]
    assert changed(before, dump(ledger.database)) == {"verifications"}


def test_what_was_found_since_is_not_lifted_with_it(trainer: Trainer) -> None:
    ledger = trainer.ledger
    shift(ledger, -1)
    [discrepancy] = verified(ledger)["discrepancies"]
    proposal = ledger.post(f"/v1/accounts/{discrepancy['account']}/quarantine/lift", REASON, "auditor").json()["id"]
    shift(ledger, 1)
    shift(ledger, -1, MODEL)
    assert len(verified(ledger)["quarantined"]) == 2
    shift(ledger, 1, MODEL)
    answer = is_refused(ledger.post(f"/v1/proposals/{proposal}/approve", {}, "admin"), 412, "precondition_failed")
    assert MODEL in answer["detail"]
    is_refused(trainer.steps(), 409, "account_quarantined")
    assert ledger.post(f"/v1/proposals/{proposal}/reject", {}, "admin").status_code == 200
    lift(ledger, TEAM)
    assert trainer.steps().status_code == 200


def test_a_replica_that_remembers_the_account_notices_both(trainer: Trainer) -> None:
    ledger = trainer.ledger
    url = ledger.database.engine.url.render_as_string(hide_password=False)
    with taken_up(url, ledger.keys) as other:
        there = Trainer(other, trainer.run)
        assert there.steps().status_code == 200  # it has the account in memory
        shift(ledger, -1)
        verified(ledger)
        is_refused(there.steps(), 409, "account_quarantined")
        is_refused(trainer.steps(), 409, "account_quarantined")
        shift(ledger, 1)
        lift(ledger, TEAM)
        assert there.steps().status_code == 200
        assert trainer.steps().status_code == 200
        assert verify(ledger.database).sound


def test_a_backup_has_the_quarantines_of_its_time(trainer: Trainer) -> None:
    """Rows and chain are restored together, so nothing is missing; a plan that was set aside stays stopped as well."""
    ledger = trainer.ledger
    sound = dump(ledger.database)
    shift(ledger, -1)
    verified(ledger)
    shift(ledger, 1)
    stopped = dump(ledger.database)
    restore(ledger.database, sound)
    assert verified(ledger)["quarantined"] == []
    assert trainer.steps().status_code == 200
    restore(ledger.database, stopped)
    assert verified(ledger)["quarantined"][0]["liftable"]
    is_refused(trainer.steps(), 409, "account_quarantined")
