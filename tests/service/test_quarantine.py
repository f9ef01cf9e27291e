"""Quarantine: nothing is charged to an account whose balance is not proven, until it is."""

import pytest

from app.service.verification import enforce, verify
from tests.conftest import Ledger
from tests.persistence.dump import changed, dump
from tests.service.reserving import NOW
from tests.service.tampering import MODEL, TEAM, account, set_decision, shift_curve, tampering


@pytest.fixture
def charged(ledger: Ledger) -> Ledger:
    """Two budgets, a run with steps beneath each."""
    ledger.population()
    for budget in ("icu-team", "other-team"):
        ledger.budget(budget)
        run = ledger.run(f"mimic/{budget}")
        assert ledger.post(f"/v1/runs/{run}/steps", {"count": 2}).status_code == 200
    return ledger


def _step(ledger: Ledger, path: str) -> int:
    with ledger.database.read() as tx:
        run = account(tx, path).id
    reply = ledger.post(f"/v1/runs/{run}/steps", {})
    if reply.status_code == 409:
        assert reply.json()["code"] == "account_quarantined"
    return reply.status_code


def _enforce(ledger: Ledger) -> None:
    enforce(ledger.database, verify(ledger.database), NOW)


def test_writes_stop_where_a_balance_is_not_proven_and_nowhere_else(charged: Ledger) -> None:
    with tampering(charged.database) as tx:
        shift_curve(tx, TEAM, -1)
    _enforce(charged)
    assert _step(charged, MODEL) == 409
    assert _step(charged, "mimic/other-team/model") == 200
    with charged.database.read() as tx:
        assert account(tx, TEAM).quarantine.startswith(f"{TEAM} (bud_")
        assert account(tx, "mimic").quarantine is None


def test_writes_pass_again_when_the_balance_is_sound(charged: Ledger) -> None:
    with tampering(charged.database) as tx:
        shift_curve(tx, TEAM, -1)
    _enforce(charged)
    with tampering(charged.database) as tx:
        shift_curve(tx, TEAM, 1)
    assert _step(charged, MODEL) == 409  # nobody has looked yet
    _enforce(charged)
    assert _step(charged, MODEL) == 200
    assert verify(charged.database).sound


def test_a_broken_chain_stops_its_run_only(charged: Ledger) -> None:
    with charged.database.read() as tx:
        run = account(tx, MODEL).id
    assert charged.post(f"/v1/runs/{run}/steps", {"count": 10**6}).status_code == 403
    other = charged.run(name="neighbour")
    with tampering(charged.database) as tx:
        set_decision(tx, 1, refusal="{}")
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
    assert changed(before, after) == {"accounts"}
    _enforce(charged)
    assert dump(charged.database) == after
