"""Quarantine: nothing is charged to an account whose balance is not proven, until it is."""

import subprocess
import sys
import time
from collections.abc import Iterator
from threading import Event, Thread, current_thread
from typing import Any

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
from tests.service.quarantine_lifts import lift
from tests.service.reservation_rows import NOW
from tests.service.tampering import MODEL, TEAM, account, set_decision, shift_curve, tampering


@pytest.fixture
def charged(ledger: Ledger) -> Ledger:
    """Two budgets, a run with steps under each."""
    ledger.population()
    for budget in ("icu-team", "other-team"):
        ledger.budget(budget)
        run = ledger.run(f"mimic/{budget}")
        assert ledger.post(f"/v1/runs/{run}/steps", {"count": 2}).status_code == 200
    return ledger


def _step(ledger: Ledger, path: str) -> int:
    with ledger.database.read(ALL_TENANTS) as tx:
        run = account(tx, path).id
    reply = ledger.post(f"/v1/runs/{run}/steps", {})
    if reply.status_code == 409:
        assert reply.json()["code"] == "account_quarantined"
    return reply.status_code


def _enforce(ledger: Ledger) -> None:
    apply_quarantines(ledger.database, verify(ledger.database), CLI_ACTOR, NOW)


def _shift(ledger: Ledger, units: int) -> None:
    with tampering(ledger.database) as tx:
        shift_curve(tx, TEAM, units)


def _key(ledger: Ledger) -> tuple[str, str]:
    with ledger.database.read(ALL_TENANTS) as tx:
        team = account(tx, TEAM)
    return team.organisation_id, team.id


def _placed(ledger: Ledger) -> list[dict[str, Any]]:
    """What the audit log says of quarantines that were placed."""
    found: list[dict[str, Any]] = ledger.get("/v1/audit-events?order=oldest&action=quarantine.placed", "admin").json()[
        "items"
    ]
    return found


def test_writes_stop_where_a_balance_is_not_proven_and_nowhere_else(charged: Ledger) -> None:
    with tampering(charged.database) as tx:
        shift_curve(tx, TEAM, -1)
    _enforce(charged)
    assert _step(charged, MODEL) == 409
    assert _step(charged, "mimic/other-team/model") == 200
    with charged.database.read(ALL_TENANTS) as tx:
        assert account(tx, TEAM).quarantine_reason.startswith(f"{TEAM} (bud_")
        assert account(tx, "mimic").quarantine_reason is None


def test_no_verification_lets_writes_pass_again(charged: Ledger) -> None:
    _shift(charged, -1)
    _enforce(charged)
    _shift(charged, 1)
    before = dump(charged.database)
    for _ in range(2):
        now = apply_quarantines(charged.database, verify(charged.database), CLI_ACTOR, NOW)
        assert (now.sound, list(now.quarantined), now.liftable) == (True, [_key(charged)], now.quarantined)
    again = charged.post("/v1/verifications", None, "admin").json()
    [stopped] = again["quarantined"]
    assert (again["sound"], stopped["account"], stopped["liftable"]) == (True, _key(charged)[1], True)
    assert dump(charged.database) | {"verifications": before["verifications"]} == before
    assert _step(charged, MODEL) == 409
    lift(charged, TEAM)
    assert _step(charged, MODEL) == 200
    found = verify(charged.database)
    assert (found.sound, found.quarantined) == (True, {})


def test_a_broken_chain_stops_its_run_only(charged: Ledger) -> None:
    with charged.database.read(ALL_TENANTS) as tx:
        run = account(tx, MODEL).id
    assert charged.post(f"/v1/runs/{run}/steps", {"count": 10**6}).status_code == 403
    other = charged.run(name="neighbour")
    with tampering(charged.database) as tx:
        set_decision(tx, 1, refusal_details="{}")
    _enforce(charged)
    assert _step(charged, MODEL) == 409
    assert charged.post(f"/v1/runs/{other}/steps", {}).status_code == 200


def test_a_verification_that_finds_nothing_new_writes_nothing(charged: Ledger) -> None:
    before = dump(charged.database)
    _enforce(charged)
    assert dump(charged.database) == before
    with tampering(charged.database) as tx:
        shift_curve(tx, TEAM, -1)
    before = dump(charged.database)
    verify(charged.database)
    assert dump(charged.database) == before
    _enforce(charged)
    after = dump(charged.database)
    assert changed(before, after) == {"accounts", "audit_entries"}
    _enforce(charged)
    assert dump(charged.database) == after


PATIENCE_SECONDS = 30


def test_a_stale_verification_stops_nothing_that_was_restored(charged: Ledger) -> None:
    _shift(charged, -1)
    stale = verify(charged.database)
    _shift(charged, 1)
    assert charged.post("/v1/verifications", None, "admin").json()["sound"]
    now = apply_quarantines(charged.database, stale, CLI_ACTOR, NOW)
    assert (stale.sound, now.sound, now.checked["accounts"]) == (False, True, stale.checked["accounts"])
    assert _step(charged, MODEL) == 200


def test_a_stale_verification_places_nothing_that_was_lifted(charged: Ledger) -> None:
    _shift(charged, -1)
    stale = verify(charged.database)
    _enforce(charged)
    _shift(charged, 1)
    lift(charged, TEAM)
    now = apply_quarantines(charged.database, stale, CLI_ACTOR, NOW)
    assert (stale.sound, now.sound, now.quarantined) == (False, True, {})
    assert _step(charged, MODEL) == 200


def test_an_account_that_is_charged_all_the_time_is_stopped(charged: Ledger) -> None:
    _shift(charged, -1)
    found = verify(charged.database)
    before = _version(charged)
    assert [_step(charged, MODEL) for _ in range(3)] == [200, 200, 200]
    assert _version(charged) > before
    apply_quarantines(charged.database, found, CLI_ACTOR, NOW)
    assert _step(charged, MODEL) == 409


def _version(ledger: Ledger) -> int:
    with ledger.database.read(ALL_TENANTS) as tx:
        return int(account(tx, TEAM).version)


@pytest.fixture
def another(charged: Ledger) -> Iterator[Database]:
    """The same database, as another process opens it."""
    opened = Database(charged.database.engine.url.render_as_string(hide_password=False))
    yield opened
    opened.dispose()


def test_one_verification_at_a_time_places_quarantines(
    charged: Ledger, another: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    _shift(charged, -1)
    wrong = verify(charged.database)
    has_looked, may_write = Event(), Event()

    def looking(db: Database, organisation_id: str | None = None) -> VerificationReport:
        found = verify(db, organisation_id)
        if current_thread() is first:
            has_looked.set()
            assert may_write.wait(PATIENCE_SECONDS)
        return found

    monkeypatch.setattr(requests, "verify", looking)
    first = Thread(target=apply_quarantines, args=(charged.database, wrong, CLI_ACTOR, NOW))
    first.start()
    assert has_looked.wait(PATIENCE_SECONDS)
    _shift(charged, 1)
    second = Thread(target=apply_quarantines, args=(another, wrong, CLI_ACTOR, NOW))
    second.start()
    second.join(0.3)
    waited = second.is_alive()
    may_write.set()
    for thread in (first, second):
        thread.join(PATIENCE_SECONDS)
    assert waited
    assert len(_placed(charged)) == 1  # the second has found nothing, and takes nothing back
    assert _step(charged, MODEL) == 409


HOLDER = """
import sys, time
from app.persistence.database import Database
from app.service.verification.requests import verification_lock
with verification_lock(Database(sys.argv[1])):
    print("has it", flush=True)
    time.sleep(600)
"""


def test_the_turn_is_taken_from_a_process_that_dies(charged: Ledger) -> None:
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
            assert _step(charged, MODEL) == 200  # whoever charges does not notice
        finally:
            holder.kill()
    waiting.join(PATIENCE_SECONDS)
    assert taken.is_set()


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
    assert _step(charged, MODEL) == 409


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


def test_any_number_of_accounts_is_stopped_piece_by_piece(charged: Ledger, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(requests, "QUARANTINED_AT_ONCE", 1)
    with tampering(charged.database) as tx:
        for path in ("mimic", TEAM, MODEL):
            shift_curve(tx, path, -1)
    _enforce(charged)
    with charged.database.read(ALL_TENANTS) as tx:
        assert all(account(tx, path).quarantine_reason.startswith(f"{path} (") for path in ("mimic", TEAM, MODEL))
