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
from tests.service.quarantine_lifts import REASON, STOPPED, lift, shift
from tests.service.tampering import MODEL, TEAM, account, restore, set_account, tampering


@pytest.fixture
def trainer(ledger: Ledger) -> Trainer:
    """Somebody whose run was charged."""
    found = hired(ledger)
    assert found.steps(count=3).status_code == 200
    return found


def verified(trainer: Trainer) -> dict[str, Any]:
    found: dict[str, Any] = trainer.ledger.post("/v1/verifications", None, "auditor").json()
    return found


def placed(trainer: Trainer) -> list[dict[str, Any]]:
    """What the audit log has of quarantines, the oldest first."""
    path = "/v1/audit-events?order=oldest&action=quarantine.placed"
    return list(trainer.ledger.get(path, "admin").json()["items"])


def set_quarantine(trainer: Trainer, reason: str | None) -> None:
    with tampering(trainer.ledger.database) as tx:
        set_account(tx, TEAM, quarantine_reason=reason)


def goes_on_once_lifted(trainer: Trainer) -> bool:
    is_refused(trainer.steps(), *STOPPED)
    lift(trainer.ledger, TEAM)
    return trainer.steps().status_code == 200 and verified(trainer)["quarantined"] == []


def test_audit_log_has_who_placed_a_quarantine_and_why(trainer: Trainer) -> None:
    shift(trainer.ledger, -1)
    [discrepancy] = verified(trainer)["discrepancies"]
    [event] = placed(trainer)
    first = {"quarantine": discrepancy["detail"]}
    assert (event["subject"], event["before"], event["after"]) == (discrepancy["account"], None, first)
    keys = trainer.ledger.get("/v1/api-keys", "admin").json()["items"]
    assert [event["actor"]] == [each["id"] for each in keys if each["role"] == "auditor"]
    assert verified(trainer)["discrepancies"] == [discrepancy]
    assert len(placed(trainer)) == 1
    with tampering(trainer.ledger.database) as tx:
        set_account(tx, TEAM, name_skeleton="another")
    other = verified(trainer)["discrepancies"][0]["detail"]
    _, event = placed(trainer)
    assert (event["before"], event["after"]) == (first, {"quarantine": other})


def test_quarantine_that_was_cleared_by_hand_is_found(trainer: Trainer) -> None:
    shift(trainer.ledger, -1)
    verified(trainer)
    shift(trainer.ledger, 1)
    set_quarantine(trainer, None)
    assert trainer.steps().status_code == 200  # it was not verified yet
    assert "no audit event of its organisation has lifted it" in verified(trainer)["discrepancies"][0]["detail"]
    again = verified(trainer)
    assert (again["sound"], again["quarantined"][0]["liftable"]) == (True, True)
    assert goes_on_once_lifted(trainer)


@pytest.mark.parametrize("before", [False, True])
def test_quarantine_that_no_verification_placed_is_found(trainer: Trainer, *, before: bool) -> None:
    if before:
        shift(trainer.ledger, -1)
        verified(trainer)
        shift(trainer.ledger, 1)
    set_quarantine(trainer, "because somebody wrote so")
    assert [verified(trainer)["sound"] for _ in range(2)] == [False, True]
    assert goes_on_once_lifted(trainer)


def test_account_is_stopped_and_audited_although_the_log_is_broken(trainer: Trainer) -> None:
    first = update(audit_entries).where(audit_entries.c.position == 1)
    shift(trainer.ledger, -1)
    with tampering(trainer.ledger.database) as tx:
        tx.execute(first.values(reason="another"))
    assert {each["account"] is None for each in verified(trainer)["discrepancies"]} == {True, False}
    is_refused(trainer.steps(), *STOPPED)
    assert len(placed(trainer)) == 1
    shift(trainer.ledger, 1)
    assert not verified(trainer)["quarantined"][0]["liftable"]  # nothing is proven while the log is broken
    with tampering(trainer.ledger.database) as tx:
        tx.execute(first.values(reason=None))
    assert verified(trainer)["quarantined"][0]["liftable"]
    assert goes_on_once_lifted(trainer)


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


def test_account_without_a_row_is_named_and_not_stopped_again(trainer: Trainer) -> None:
    with tampering(trainer.ledger.database) as tx:
        tx.execute(delete(accounts).where(accounts.c.path == MODEL))
    assert not verified(trainer)["sound"]
    before = dump(trainer.ledger.database)
    assert not verified(trainer)["sound"]
    assert changed(before, dump(trainer.ledger.database)) == {"verifications"}


def test_quarantine_found_since_the_proposal_is_not_lifted_with_it(trainer: Trainer) -> None:
    ledger = trainer.ledger
    shift(ledger, -1)
    [discrepancy] = verified(trainer)["discrepancies"]
    proposal = ledger.post(f"/v1/accounts/{discrepancy['account']}/quarantine/lift", REASON, "auditor").json()["id"]
    shift(ledger, 1)
    shift(ledger, -1, MODEL)
    assert len(verified(trainer)["quarantined"]) == 2
    shift(ledger, 1, MODEL)
    answer = is_refused(ledger.post(f"/v1/proposals/{proposal}/approve", {}, "admin"), 412, "precondition_failed")
    assert MODEL in answer["detail"]
    assert ledger.post(f"/v1/proposals/{proposal}/reject", {}, "admin").status_code == 200
    assert goes_on_once_lifted(trainer)


@pytest.mark.both_databases
def test_replica_with_a_cached_account_notices_quarantine_and_lift(trainer: Trainer) -> None:
    url = trainer.ledger.database.engine.url.render_as_string(hide_password=False)
    with taken_up(url, trainer.ledger.keys) as other:
        there = Trainer(other, trainer.run)
        assert there.steps().status_code == 200  # it has the account in memory
        shift(trainer.ledger, -1)
        verified(trainer)
        is_refused(there.steps(), *STOPPED)
        shift(trainer.ledger, 1)
        assert goes_on_once_lifted(trainer)
        assert there.steps().status_code == 200


def test_restored_backup_has_the_quarantines_of_its_time(trainer: Trainer) -> None:
    """Rows and log are restored together, so nothing is missing."""
    ledger = trainer.ledger
    sound = dump(ledger.database)
    shift(ledger, -1)
    verified(trainer)
    shift(ledger, 1)
    stopped = dump(ledger.database)
    restore(ledger.database, sound)
    assert verified(trainer)["quarantined"] == []
    assert trainer.steps().status_code == 200
    restore(ledger.database, stopped)
    assert verified(trainer)["quarantined"][0]["liftable"]
    is_refused(trainer.steps(), *STOPPED)
