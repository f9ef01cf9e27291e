"""Quarantine: nothing is ledger to an account whose balance is not proven, until it is."""

import subprocess
import sys
from dataclasses import replace
from datetime import UTC, datetime
from threading import Event, Thread, current_thread
from typing import Any

import pytest

from app.ledger.verification import Discrepancy
from app.persistence.database import ALL_TENANTS, Database
from app.service.auth.authentication import CLI_ACTOR
from app.service.auth.request_context import service_context
from app.service.verification import requests
from app.service.verification.report import VerificationReport
from app.service.verification.requests import apply_quarantines, place_quarantines, verification_lock
from app.service.verification.verify import verify
from tests.api.trainer import Trainer, gaussian, is_refused
from tests.conftest import Ledger
from tests.persistence.dump import changed, dump
from tests.service.prepared_ledgers import compose
from tests.service.tampering import MODEL, TEAM, account, lift, set_balance, set_decision, shift, tampering

ELSEWHERE = "mimic/other-team/model"
PATIENCE_SECONDS = 30
NOW = datetime(2026, 12, 1, 12, tzinfo=UTC)


def charge_two_budgets(ledger: Ledger) -> None:
    """Two budgets, a run with steps under each, of which the first has a refusal, too, and an idle run beside it."""
    ledger.population()
    for budget in ("icu-team", "other-team"):
        ledger.budget(budget)
        run = ledger.run(f"mimic/{budget}")
        assert ledger.post(f"/v1/runs/{run}/steps", {"count": 2}).status_code == 200
        loud = {"event": {"type": "gaussian", "noise_multiplier": 60.0}, "count": 10**6}
        assert ledger.post(f"/v1/runs/{run}/steps", loud).status_code == 403
    ledger.run(name="neighbour")


FURNISHED = {"ledger": charge_two_budgets}


def step(ledger: Ledger, path: str = MODEL) -> int:
    with ledger.database.read(ALL_TENANTS) as tx:
        run = account(tx, path).id
    reply = ledger.post(f"/v1/runs/{run}/steps", {})
    assert reply.status_code != 409 or reply.json()["code"] == "account_quarantined"
    return reply.status_code


def enforce(ledger: Ledger, found: VerificationReport | None = None) -> VerificationReport:
    return apply_quarantines(ledger.database, found or verify(ledger.database), CLI_ACTOR, NOW)


def reason(ledger: Ledger, path: str) -> str | None:
    with ledger.database.read(ALL_TENANTS) as tx:
        found: str | None = account(tx, path).quarantine_reason
    return found


def test_writes_stop_where_a_balance_is_unproven_and_nowhere_else(ledger: Ledger) -> None:
    sound = dump(ledger.database)
    enforce(ledger)
    assert dump(ledger.database) == sound
    shift(ledger, -1)
    before = dump(ledger.database)
    verify(ledger.database)
    assert dump(ledger.database) == before
    enforce(ledger)
    after = dump(ledger.database)
    assert changed(before, after) == {"accounts", "audit_entries"}
    enforce(ledger)
    assert dump(ledger.database) == after
    assert (step(ledger), step(ledger, ELSEWHERE)) == (409, 200)
    assert (reason(ledger, TEAM) or "").startswith(f"{TEAM} (bud_")
    assert reason(ledger, "mimic") is None
    shift(ledger, 1)
    lift(ledger, TEAM)
    with tampering(ledger.database) as tx:
        set_decision(tx, 1, refusal_details="{}")  # a broken chain stops its run only
    enforce(ledger)
    assert (step(ledger), step(ledger, f"{TEAM}/neighbour")) == (409, 200)


@pytest.mark.parametrize("placed", [False, True], ids=["restored", "placed and lifted"])
def test_stale_verification_stops_nothing_that_was_restored(ledger: Ledger, *, placed: bool) -> None:
    shift(ledger, -1)
    stale = verify(ledger.database)
    if placed:
        enforce(ledger)
    shift(ledger, 1)
    if placed:
        lift(ledger, TEAM)
    now = enforce(ledger, stale)
    assert (stale.sound, now.sound, now.quarantined) == (False, True, {})
    assert now.checked["accounts"] == stale.checked["accounts"]
    assert step(ledger) == 200


def test_accounts_charged_meanwhile_are_stopped_piece_by_piece(ledger: Ledger, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(requests, "QUARANTINED_AT_ONCE", 1)
    paths = ("mimic", TEAM, MODEL)
    shift(ledger, -1, *paths)
    found = verify(ledger.database)
    assert [step(ledger) for _ in range(3)] == [200, 200, 200]
    enforce(ledger, found)
    assert all((reason(ledger, path) or "").startswith(f"{path} (") for path in paths)
    assert step(ledger) == 409


@pytest.mark.both_databases
def test_one_verification_at_a_time_stops_writes(
    ledger: Ledger, replica: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    shift(ledger, -1)
    wrong = verify(ledger.database)
    has_looked, may_write = Event(), Event()

    def looking(*arguments: Any) -> VerificationReport:  # noqa: ANN401 - passed on
        found = verify(*arguments)
        if current_thread() is first:
            has_looked.set()
            assert may_write.wait(PATIENCE_SECONDS)
        return found

    monkeypatch.setattr(requests, "verify", looking)
    first = Thread(target=enforce, args=(ledger, wrong))
    first.start()
    assert has_looked.wait(PATIENCE_SECONDS)
    shift(ledger, 1)
    second = Thread(target=apply_quarantines, args=(replica, wrong, CLI_ACTOR, NOW))
    second.start()
    second.join(0.3)
    waited = second.is_alive()
    may_write.set()
    first.join(PATIENCE_SECONDS)
    second.join(PATIENCE_SECONDS)
    assert waited
    placed = ledger.get("/v1/audit-events?order=oldest&action=quarantine.placed", "admin").json()["items"]
    assert len(placed) == 1  # the second has found nothing, and takes nothing back
    assert step(ledger) == 409


HOLDER = """
import sys, time
from app.persistence import postgresql
from app.persistence.database import Database
from app.ledger.verification import Discrepancy
from app.service.verification.requests import verification_lock
postgresql.STATEMENT_TIMEOUT_SECONDS = 1  # a verification takes longer, and is no idle transaction
with verification_lock(Database(sys.argv[1])):
    print("has it", flush=True)
    time.sleep(600)
"""


@pytest.mark.both_databases
def test_turn_to_verify_is_taken_from_a_process_that_dies(ledger: Ledger) -> None:
    url = ledger.database.engine.url.render_as_string(hide_password=False)
    taken = Event()

    def wait() -> None:
        with verification_lock(ledger.database):
            taken.set()

    with subprocess.Popen([sys.executable, "-c", HOLDER, url], stdout=subprocess.PIPE, text=True) as holder:
        try:
            assert holder.stdout and holder.stdout.readline() == "has it\n"  # noqa: PT018 - for mypy
            waiting = Thread(target=wait)
            waiting.start()
            assert not taken.wait(1.5)
            assert step(ledger) == 200  # whoever charges does not notice
        finally:
            holder.kill()
    waiting.join(PATIENCE_SECONDS)
    assert taken.is_set()


def test_part_that_is_not_proven_stops_the_others(ledger: Ledger) -> None:
    """What the whole has lost depends on it; it goes on when the row is restored."""
    compose(ledger)
    [run] = [each["id"] for each in ledger.get("/v1/runs").json()["items"] if each["path"] == "group/south/both"]
    trainer = Trainer(ledger, run)
    with tampering(ledger.database) as tx:
        set_balance(tx, "group/north", spent_delta=1)
    enforce(ledger)
    assert "group/north" in is_refused(trainer.steps(), 409, "account_quarantined")["detail"]
    with tampering(ledger.database) as tx:
        set_balance(tx, "group/north", spent_delta=0)
    lift(ledger, "group/north")
    assert trainer.steps().json()["decision"] == "admitted"
    plan = trainer.reserved((gaussian(60.0), 5))
    assert trainer.end(plan, "commit", 2).status_code == 200
    assert verify(ledger.database).sound


def test_account_without_a_row_is_not_quarantined(ledger: Ledger) -> None:
    with ledger.database.read(ALL_TENANTS) as tx:
        owner = account(tx, TEAM).organisation_id
    missing = Discrepancy(owner, "bud_gone", None, "There is no row.")
    before = dump(ledger.database)
    found = replace(verify(ledger.database), discrepancies=(missing,))
    assert place_quarantines(service_context(ledger.database, owner), found).quarantined == {}
    assert dump(ledger.database) == before
