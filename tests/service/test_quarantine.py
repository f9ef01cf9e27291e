"""Quarantine: nothing is charged to an account whose balance is not proven, until it is."""

import subprocess
import sys
import time
from collections.abc import Iterator
from threading import Event, Thread, current_thread

import pytest
from sqlalchemy import text

from app.persistence.database import ALL_TENANTS, Database
from app.persistence.repositories import raw_rows
from app.persistence.repositories.locks import lock
from app.service.auth.authentication import CLI_ACTOR
from app.service.verification import VerificationReport, requests, verify
from app.service.verification.requests import apply_quarantines, verification_lock
from tests.conftest import Ledger
from tests.persistence.dump import changed, dump
from tests.service.quarantine_lifts import NOW, lift, shift
from tests.service.tampering import MODEL, TEAM, account, set_decision, tampering

ELSEWHERE = "mimic/other-team/model"
PATIENCE_SECONDS = 30


def charge_two_budgets(ledger: Ledger) -> None:
    """Two budgets, a run with steps under each."""
    ledger.population()
    for budget in ("icu-team", "other-team"):
        ledger.budget(budget)
        run = ledger.run(f"mimic/{budget}")
        assert ledger.post(f"/v1/runs/{run}/steps", {"count": 2}).status_code == 200


FURNISHED = {"charged": charge_two_budgets}


@pytest.fixture
def charged(ledger: Ledger) -> Ledger:
    """As furnished."""
    return ledger


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


def test_writes_stop_where_a_balance_is_unproven_and_nowhere_else(charged: Ledger) -> None:
    before = dump(charged.database)
    enforce(charged)
    assert dump(charged.database) == before
    shift(charged, -1)
    before = dump(charged.database)
    verify(charged.database)
    assert dump(charged.database) == before
    enforce(charged)
    after = dump(charged.database)
    assert changed(before, after) == {"accounts", "audit_entries"}
    enforce(charged)
    assert dump(charged.database) == after
    assert (step(charged), step(charged, ELSEWHERE)) == (409, 200)
    assert (reason(charged, TEAM) or "").startswith(f"{TEAM} (bud_")
    assert reason(charged, "mimic") is None


def test_sound_verification_does_not_end_a_quarantine(charged: Ledger) -> None:
    with charged.database.read(ALL_TENANTS) as tx:
        team = account(tx, TEAM)
    shift(charged, -1)
    enforce(charged)
    shift(charged, 1)
    before = dump(charged.database)
    for _ in range(2):
        now = enforce(charged)
        key = (team.organisation_id, team.id)
        assert (now.sound, list(now.quarantined), now.liftable) == (True, [key], now.quarantined)
    again = charged.post("/v1/verifications", None, "admin").json()
    [stopped] = again["quarantined"]
    assert (again["sound"], stopped["account"], stopped["liftable"]) == (True, team.id, True)
    assert dump(charged.database) | {"verifications": before["verifications"]} == before
    assert step(charged) == 409
    lift(charged, TEAM)
    assert step(charged) == 200
    found = verify(charged.database)
    assert (found.sound, found.quarantined) == (True, {})


def test_broken_chain_stops_its_run_only(charged: Ledger) -> None:
    with charged.database.read(ALL_TENANTS) as tx:
        run = account(tx, MODEL).id
    loud = {"event": {"type": "gaussian", "noise_multiplier": 60.0}, "count": 10**6}
    assert charged.post(f"/v1/runs/{run}/steps", loud).status_code == 403
    charged.run(name="neighbour")
    with tampering(charged.database) as tx:
        set_decision(tx, 1, refusal_details="{}")
    enforce(charged)
    assert (step(charged), step(charged, f"{TEAM}/neighbour")) == (409, 200)


@pytest.mark.parametrize("placed", [False, True], ids=["restored", "placed and lifted"])
def test_stale_verification_stops_nothing_that_was_restored(charged: Ledger, *, placed: bool) -> None:
    shift(charged, -1)
    stale = verify(charged.database)
    if placed:
        enforce(charged)
    shift(charged, 1)
    if placed:
        lift(charged, TEAM)
    now = enforce(charged, stale)
    assert (stale.sound, now.sound, now.quarantined) == (False, True, {})
    assert now.checked["accounts"] == stale.checked["accounts"]
    assert step(charged) == 200


def test_account_that_is_charged_all_the_time_is_stopped(charged: Ledger) -> None:
    shift(charged, -1)
    found = verify(charged.database)
    assert [step(charged) for _ in range(3)] == [200, 200, 200]
    enforce(charged, found)
    assert step(charged) == 409


def test_any_number_of_accounts_is_stopped_piece_by_piece(charged: Ledger, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(requests, "QUARANTINED_AT_ONCE", 1)
    paths = ("mimic", TEAM, MODEL)
    shift(charged, -1, *paths)
    enforce(charged)
    assert all((reason(charged, path) or "").startswith(f"{path} (") for path in paths)


@pytest.fixture
def another(charged: Ledger) -> Iterator[Database]:
    """The same database, as another process opens it."""
    opened = Database(charged.database.engine.url.render_as_string(hide_password=False))
    yield opened
    opened.dispose()


@pytest.mark.both_databases
def test_one_verification_at_a_time_places_quarantines(
    charged: Ledger, another: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    shift(charged, -1)
    wrong = verify(charged.database)
    has_looked, may_write = Event(), Event()

    def looking(db: Database, organisation_id: str | None = None) -> VerificationReport:
        found = verify(db, organisation_id)
        if current_thread() is first:
            has_looked.set()
            assert may_write.wait(PATIENCE_SECONDS)
        return found

    monkeypatch.setattr(requests, "verify", looking)
    first = Thread(target=enforce, args=(charged, wrong))
    first.start()
    assert has_looked.wait(PATIENCE_SECONDS)
    shift(charged, 1)
    second = Thread(target=apply_quarantines, args=(another, wrong, CLI_ACTOR, NOW))
    second.start()
    second.join(0.3)
    waited = second.is_alive()
    may_write.set()
    for thread in (first, second):
        thread.join(PATIENCE_SECONDS)
    assert waited
    placed = charged.get("/v1/audit-events?order=oldest&action=quarantine.placed", "admin").json()["items"]
    assert len(placed) == 1  # the second has found nothing, and takes nothing back
    assert step(charged) == 409


HOLDER = """
import sys, time
from app.persistence.database import Database
from app.service.verification.requests import verification_lock
with verification_lock(Database(sys.argv[1])):
    print("has it", flush=True)
    time.sleep(600)
"""


@pytest.mark.both_databases
def test_turn_to_verify_is_taken_from_a_process_that_dies(charged: Ledger) -> None:
    url = charged.database.engine.url.render_as_string(hide_password=False)
    taken = Event()

    def wait() -> None:
        with verification_lock(charged.database):
            taken.set()

    with subprocess.Popen([sys.executable, "-c", HOLDER, url], stdout=subprocess.PIPE, text=True) as holder:
        try:
            assert holder.stdout is not None
            assert holder.stdout.readline() == "has it\n"
            waiting = Thread(target=wait)
            waiting.start()
            assert not taken.wait(0.3)
            assert step(charged) == 200  # whoever charges does not notice
        finally:
            holder.kill()
    waiting.join(PATIENCE_SECONDS)
    assert taken.is_set()


@pytest.mark.both_databases
def test_accounts_are_stopped_in_the_order_in_which_charges_lock_them(charged: Ledger) -> None:
    with charged.database.read(ALL_TENANTS) as tx:
        population, budget, run = (account(tx, path) for path in ("mimic", TEAM, MODEL))
    failed: list[Exception] = []

    def stop() -> None:
        try:
            with charged.database.write(ALL_TENANTS) as tx:
                sentences = dict.fromkeys((budget.id, population.id, run.id), "why")
                raw_rows.set_quarantine(tx, population.organisation_id, sentences, NOW)
        except Exception as error:  # noqa: BLE001 - it is looked at below
            failed.append(error)

    stopping = Thread(target=stop)
    with charged.database.write(ALL_TENANTS) as tx:
        lock(tx, population.organisation_id, [population.id])
        stopping.start()
        _until_blocked(charged.database)
        lock(tx, population.organisation_id, [budget.id, run.id])  # it would wait for what waits for it
    stopping.join(PATIENCE_SECONDS)
    assert failed == []
    assert step(charged) == 409


def _until_blocked(db: Database) -> None:
    if db.dialect == "sqlite":
        time.sleep(0.2)
        return
    waiting = text("SELECT count(*) FROM pg_stat_activity WHERE wait_event_type = 'Lock'")
    until = time.monotonic() + PATIENCE_SECONDS
    while True:
        with db.read(ALL_TENANTS) as tx:
            if tx.scalar(waiting):
                return
        assert time.monotonic() < until
        time.sleep(0.01)
