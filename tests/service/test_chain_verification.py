"""Chains: whatever is changed in a decision, or left out, is named by the first bad row."""

import re
from collections.abc import Callable
from datetime import datetime, timedelta

import pytest
from sqlalchemy import Connection, select, update

from app.persistence.database import ALL_TENANTS
from app.persistence.tables import decision_events, decisions, runs
from app.service.verification import verify
from tests.conftest import SAMPLED, Ledger
from tests.service.tampering import MODEL, account, forget, reseal, run_of, set_decision, set_item, set_run, tampering

NOISE = {"type": "gaussian", "noise_multiplier": 60.0}
LOUD = {"type": "gaussian", "noise_multiplier": 50.0}


def _chain(ledger: Ledger) -> None:
    """A run with five decisions: admitted, refused, admitted, admitted with three events, admitted."""
    ledger.population()
    ledger.budget()
    run = ledger.run()
    bodies: list[dict[str, object]] = [
        {"count": 4},
        {"count": 10**6},
        {"event": NOISE, "count": 2},
        {"events": [{"event": NOISE}, {"event": SAMPLED, "count": 3}, {"event": LOUD}]},
        {},
    ]
    for number, body in enumerate(bodies):
        ledger.post(f"/v1/runs/{run}/steps", body, Idempotency_Key=f"key-{number}")


FURNISHED = {"chained": _chain}


@pytest.fixture
def chained(ledger: Ledger) -> Ledger:
    """As furnished."""
    return ledger


CHANGES: dict[str, tuple[int, dict[str, object]]] = {
    "an attempt": (2, {"attempt": 2}),
    "an outcome": (2, {"outcome": "reported"}),
    "a key": (2, {"idempotency_key": "other"}),
    "a key taken away": (0, {"idempotency_key": None}),
    "a fingerprint of a request": (4, {"request_fingerprint": "f" * 64}),
    "a first step": (2, {"first_step": 5}),
    "a number of steps": (2, {"step_count": 1}),
    "a number of steps asked": (1, {"requested_count": 2 * 10**6}),
    "its event": (2, {"event_fingerprint": "f" * 64}),
    "how often its event": (2, {"event_count": 1}),
    "a reservation": (3, {"reservation_id": "res_x"}),
    "an epsilon": (2, {"epsilon": 0.001}),
    "a delta": (2, {"delta": 1e-6}),
    "an epsilon's limit": (1, {"epsilon_limit": 2.0}),
    "steps left": (3, {"steps_remaining": 1}),
    "a refusal": (1, {"refusal_details": "{}"}),
    "a hash": (2, {"entry_hash": bytes(32)}),
}


def _first_bad(ledger: Ledger) -> int | None:
    return next(
        discrepancy.position
        for discrepancy in verify(ledger.database).discrepancies
        if discrepancy.position is not None
    )


@pytest.mark.parametrize("what", CHANGES)
def test_a_changed_decision_is_the_first_bad_row(chained: Ledger, what: str) -> None:
    position, values = CHANGES[what]
    with tampering(chained.database) as tx:
        set_decision(tx, position, **values)
    assert _first_bad(chained) == position


@pytest.mark.parametrize(
    "tamper",
    [
        lambda tx: set_decision(tx, 3, binding_account_id=run_of(tx)),
        lambda tx: tx.execute(
            update(decisions)
            .where(decisions.c.position == 3)
            .values(created_at=_moment(tx) + timedelta(microseconds=1))
        ),
        lambda tx: set_item(tx, 3, count=2),
        lambda tx: set_item(tx, 3, 2, item=-1),
    ],
)
def test_whatever_else_a_decision_says_is_in_its_hash(chained: Ledger, tamper: Callable[[Connection], object]) -> None:
    with tampering(chained.database) as tx:
        tamper(tx)
    assert _first_bad(chained) == 3


def _moment(tx: Connection) -> datetime:
    found: datetime = tx.execute(select(decisions.c.created_at).where(decisions.c.position == 3)).scalar_one()
    return found


@pytest.mark.parametrize("position", range(5))
def test_a_removed_decision_is_missed(chained: Ledger, position: int) -> None:
    with tampering(chained.database) as tx:
        forget(tx, position)
    assert _first_bad(chained) == position


def test_a_removed_last_decision_is_missed_even_if_the_run_says_nothing_of_it(chained: Ledger) -> None:
    with tampering(chained.database) as tx:
        forget(tx, 4)
        set_run(tx, decision_count=4, next_step=11)
    first = verify(chained.database).discrepancies[0]
    assert (first.position, first.account_id) == (4, _run(chained))
    assert "decisions are missing" in first.detail


def test_a_forged_head_is_found(chained: Ledger) -> None:
    with tampering(chained.database) as tx:
        set_run(tx, chain_head=b"x" * 32)
    [discrepancy] = verify(chained.database).discrepancies
    assert (discrepancy.position, discrepancy.account_id) == (5, _run(chained))


def test_a_forged_head_of_a_run_without_decisions_is_found(chained: Ledger) -> None:
    chained.run(name="idle")
    with tampering(chained.database) as tx:
        set_run(tx, "mimic/icu-team/idle", chain_head=b"x" * 32)
    [problem] = verify(chained.database).problems
    assert re.search("idle.* before the first decision", problem)


def test_a_chain_is_not_another_runs(chained: Ledger) -> None:
    other = chained.run(name="other")
    with tampering(chained.database) as tx:
        run = run_of(tx)
        for table in (decisions, decision_events):
            tx.execute(update(table).where(table.c.run_id == run).values(run_id=other))
        whole = tx.execute(select(runs).where(runs.c.account_id == run)).mappings().one()
        names = ("next_step", "decision_count", "chain_head")
        tx.execute(update(runs).where(runs.c.account_id == other).values({name: whole[name] for name in names}))
    named = {
        discrepancy.account_id: discrepancy.position for discrepancy in reversed(verify(chained.database).discrepancies)
    }
    assert named[other] == 0


def test_items_that_do_not_fit_their_decision_are_named_although_the_hash_is_right(chained: Ledger) -> None:
    with tampering(chained.database) as tx:
        set_item(tx, 3, 2, item=5)
    [problem] = verify(chained.database).problems
    assert "decision_events.item" in problem
    with tampering(chained.database) as tx:
        set_decision(tx, 2, event_count=3)
    details = " ".join(verify(chained.database).problems)
    assert "decision 2 is not the one that was made" in details
    assert "decision 2 says that it takes 2 steps; its charges are 3" in details


@pytest.mark.parametrize("first_step", [1, 3, 5, 9])
def test_steps_that_do_not_follow_those_before_are_named_although_every_hash_is_right(
    chained: Ledger, first_step: int
) -> None:
    with tampering(chained.database) as tx:
        set_decision(tx, 2, first_step=first_step)
        reseal(tx)
    assert _first_bad(chained) == 2
    [problem, *_] = verify(chained.database).problems
    assert f"decision 2 begins at step {first_step}; the steps before it end at 4." in problem


@pytest.mark.parametrize(("attempt", "problem"), [(2, "attempt 2 does not follow attempt 1 at step 4."), (1, "")])
def test_a_decision_of_an_attempt_that_was_not_begun_is_named(chained: Ledger, attempt: int, problem: str) -> None:
    with tampering(chained.database) as tx:
        set_decision(tx, 2, attempt=attempt)
        reseal(tx)
    problems = verify(chained.database).problems
    assert any(problem in found for found in problems) if problem else problems == ()


def test_a_decision_that_cannot_be_read_does_not_end_the_verification(chained: Ledger) -> None:
    if chained.database.dialect == "postgresql":
        pytest.skip("its columns take nothing but their type")
    with tampering(chained.database) as tx:
        tx.exec_driver_sql("UPDATE decisions SET created_at = 'yesterday' WHERE position = 2")
    problems = verify(chained.database).problems
    assert any("cannot be read" in problem and MODEL in problem for problem in problems)


def _run(ledger: Ledger) -> str:
    with ledger.database.read(ALL_TENANTS) as tx:
        return str(account(tx, MODEL).id)
