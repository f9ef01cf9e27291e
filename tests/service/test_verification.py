"""Verification: a sound ledger is called sound, and whatever was tampered with is named."""

import gc
import json
import tracemalloc
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from sqlalchemy import Connection, delete, update

from app.accounting.curves import EXHAUSTED, GRID_VERSION, RdpCurve
from app.accounting.events import Laplace, NeighboringRelation, canonical, fingerprint
from app.accounting.rdp import FORMULA_VERSION, event_curve
from app.persistence.repositories.dp_events import CostTable, StoredCost
from app.persistence.tables import (
    account_ancestors,
    attempts,
    balances,
    decision_events,
    decision_ranges,
    event_costs,
    populations,
    runs,
)
from app.service import verification
from app.service.verification import report, verify
from app.service.verification.balances import price_problem
from tests.api.trainer import LOUD, Trainer
from tests.conftest import SAMPLED, Ledger
from tests.persistence.dump import dump
from tests.service.tampering import (
    ALL,
    MODEL,
    TEAM,
    forget,
    renoise,
    reprice,
    run_of,
    sampled_fingerprint,
    set_account,
    set_attempt,
    set_balance,
    set_decision,
    set_item,
    set_run,
    shift_curve,
    shift_since,
    shift_weights,
    swap_weights,
    swell_weights,
    tampering,
    thin_reserve,
    whole,
)

NOISE = {"type": "gaussian", "noise_multiplier": 60.0}
OTHER = {"type": "gaussian", "noise_multiplier": 70.0}


SURVEY = {"type": "randomized_response", "noise_parameter": 0.5, "num_buckets": 2}
UNPRICED = [{"event": SURVEY, "count": 1}]  # it has no bound where a record may be missing


def _charge(ledger: Ledger) -> None:
    """A population `mimic` with two budgets and three runs, admitted and refused."""
    ledger.population(planned=[{"event": NOISE, "count": 5}])
    ledger.budget()
    ledger.budget("planned", planned=[{"event": SAMPLED}])
    run = ledger.run()
    for body in ({"count": 4}, {"event": NOISE, "count": 2}, {"count": 10**6}, {"events": [{"event": NOISE}] * 3}):
        ledger.post(f"/v1/runs/{run}/steps", body)
    other = ledger.run("mimic/planned", name="other", limit={"epsilon": 1.0, "delta": 1e-5})
    ledger.post(f"/v1/runs/{other}/steps", {"count": 7})
    ledger.run("mimic/planned", name="idle", event=OTHER)


FURNISHED = {"charged": _charge}


@pytest.fixture
def charged(ledger: Ledger) -> Ledger:
    """As furnished."""
    return ledger


TAMPERINGS: dict[str, tuple[Callable[[Connection], object], str]] = {
    "a run's curve lowered": (lambda tx: shift_curve(tx, MODEL, -1), MODEL),
    "a run's curve raised": (lambda tx: shift_curve(tx, MODEL, 1), MODEL),
    "a budget's curve lowered": (lambda tx: shift_curve(tx, TEAM, -1), TEAM),
    "a budget's curve raised": (lambda tx: shift_curve(tx, TEAM, 10**12), TEAM),
    "a population's curve lowered": (lambda tx: shift_curve(tx, ALL, -1), ALL),
    "a population's curve emptied": (lambda tx: set_balance(tx, ALL, spent_curve=bytes(8 * 1387)), ALL),
    "an idle run's curve raised": (lambda tx: shift_curve(tx, "mimic/planned/idle", 1), "mimic/planned/idle"),
    "what a run was charged since counted up": (lambda tx: shift_since(tx, MODEL, 1), MODEL),
    "what a population was charged since counted down": (lambda tx: shift_since(tx, ALL, -1), ALL),
    "what a run was charged since forgotten": (lambda tx: set_account(tx, MODEL, uncompacted_charges="{}"), MODEL),
    "what a run was charged since broken": (lambda tx: set_account(tx, MODEL, uncompacted_charges="[1]"), MODEL),
    "a charge since of a text that is no event": (
        lambda tx: set_account(tx, MODEL, uncompacted_charges='{"x": [1, 1]}'),
        MODEL,
    ),
    "a charge since of an event that is not known": (
        lambda tx: set_account(tx, MODEL, uncompacted_charges=json.dumps({"f" * 64: [1, 1]})),
        MODEL,
    ),
    "a balance forgotten": (lambda tx: tx.execute(delete(balances)), ALL),
    "a charge's count lowered": (lambda tx: set_decision(tx, 1, event_count=1), MODEL),
    "a charge's count raised": (lambda tx: set_decision(tx, 1, event_count=3), MODEL),
    "a charge's event changed": (
        lambda tx: set_decision(tx, 1, event_fingerprint=sampled_fingerprint(tx)),
        MODEL,
    ),
    "a charge's event unknown": (lambda tx: set_decision(tx, 1, event_fingerprint="0" * 64), MODEL),
    "a further charge's count raised": (lambda tx: set_item(tx, 3, count=3), MODEL),
    "a further charge's event changed": (
        lambda tx: set_item(tx, 3, event_fingerprint=sampled_fingerprint(tx)),
        MODEL,
    ),
    "a further charge's event unknown": (lambda tx: set_item(tx, 3, event_fingerprint="0" * 64), MODEL),
    "the further charges deleted": (lambda tx: tx.execute(delete(decision_events)), MODEL),
    "a charge deleted": (lambda tx: forget(tx, 1), MODEL),
    "the last charge deleted": (lambda tx: forget(tx, 3), MODEL),
    "a charged event made noisier": (lambda tx: renoise(tx, "60.0", "61.0"), "event "),
    "the default event made noisier before any charge": (lambda tx: renoise(tx, "70.0", "700.0"), "event "),
    "an event's text respelled": (lambda tx: renoise(tx, "60.0", " 60.0"), "event "),
    "an event's text broken": (lambda tx: renoise(tx, "60.0", "x"), "event "),
    "a price halved": (lambda tx: reprice(tx, 2), "event "),
    "a price a little lower": (lambda tx: reprice(tx, 1.000001), "event "),
    "a price of nothing": (lambda tx: reprice(tx, 1e30), "event "),
    "prices forgotten": (lambda tx: tx.execute(delete(event_costs)), MODEL),
    "prices under another relation": (
        lambda tx: tx.execute(update(event_costs).values(neighboring_relation="replace_special")),
        MODEL,
    ),
    "the next step put back": (lambda tx: set_run(tx, MODEL, next_step=0), MODEL),
    "the next step put forward": (lambda tx: set_run(tx, MODEL, next_step=10), MODEL),
    "an idle run's next step put forward": (lambda tx: set_run(tx, f"{ALL}/planned/idle", next_step=1), "idle"),
    "a decision's steps moved": (lambda tx: set_decision(tx, 1, step_count=3), MODEL),
    "the number of decisions lowered": (lambda tx: set_run(tx, MODEL, decision_count=1), MODEL),
    "weights over delta": (lambda tx: swell_weights(tx, TEAM), TEAM),
    "a reserve that is no remainder": (lambda tx: thin_reserve(tx, TEAM), TEAM),
    "weights moved to other orders": (lambda tx: shift_weights(tx, TEAM), TEAM),
    "weights forgotten": (lambda tx: set_account(tx, TEAM, filter_weights=None), TEAM),
    "weights broken": (lambda tx: set_account(tx, TEAM, filter_weights="x"), TEAM),
    "weights at an order that there is not": (lambda tx: swap_weights(tx, TEAM, 9999), TEAM),
    "weights at an order before the first": (lambda tx: swap_weights(tx, TEAM, -1), TEAM),
    "weights at half an order": (lambda tx: swap_weights(tx, TEAM, 7.5), TEAM),
    "a limit raised": (lambda tx: set_account(tx, TEAM, epsilon_limit=1.0001), TEAM),
    "a run's own limit raised": (lambda tx: set_account(tx, f"{ALL}/planned/other", epsilon_limit=2.0), "other"),
    "a run's own limit taken away": (
        lambda tx: set_account(tx, f"{ALL}/planned/other", epsilon_limit=None, delta_limit=None),
        f"{ALL}/planned (",
    ),
    "a limit lowered below what is spent": (lambda tx: set_account(tx, TEAM, epsilon_limit=0.01), TEAM),
    "a delta lowered below the weights": (lambda tx: set_account(tx, TEAM, delta_limit=1e-9), TEAM),
    "something held that nobody reserved": (
        lambda tx: set_balance(tx, TEAM, held_curve=whole(tx, TEAM)),
        TEAM,
    ),
    "a delta spent that no charge took": (lambda tx: set_balance(tx, TEAM, spent_delta=1), TEAM),
    "a delta held that nobody reserved": (lambda tx: set_balance(tx, TEAM, held_delta=1), TEAM),
    "a price with a delta": (lambda tx: tx.execute(update(event_costs).values(curve_delta=10**9)), "event "),
    "a plan that has no price": (lambda tx: set_account(tx, ALL, planned_events=json.dumps(UNPRICED)), ALL),
    "a curve with a negative value": (lambda tx: shift_curve(tx, TEAM, -(2**62)), TEAM),
    "a curve of another length": (lambda tx: set_balance(tx, TEAM, spent_curve=bytes(8), held_curve=bytes(8)), TEAM),
    "a curve that is exhausted": (
        lambda tx: set_balance(tx, ALL, spent_curve=np.full(1387, EXHAUSTED).tobytes()),
        ALL,
    ),
    "a grid that is not known": (lambda tx: set_account(tx, TEAM, grid_version=99), TEAM),
    "the population forgotten": (lambda tx: tx.execute(delete(populations)), ALL),
    "a run forgotten": (lambda tx: tx.execute(delete(runs)), MODEL),
    "an ancestor left out of what is charged": (
        lambda tx: tx.execute(
            delete(account_ancestors).where(
                account_ancestors.c.account_id == run_of(tx), account_ancestors.c.depth == 0
            )
        ),
        MODEL,
    ),
    "a range of decisions forgotten": (lambda tx: tx.execute(delete(decision_ranges)), MODEL),
    "a range of decisions moved": (lambda tx: tx.execute(update(decision_ranges).values(first_position=1)), MODEL),
    "a range of decisions by another": (lambda tx: tx.execute(update(decision_ranges).values(actor="key_1")), MODEL),
    "a run's attempt forgotten": (lambda tx: tx.execute(delete(attempts)), MODEL),
    "a run's attempt begun later": (lambda tx: set_attempt(tx, first_step=1), MODEL),
    "another attempt made the current one": (lambda tx: set_run(tx, MODEL, attempt=2), MODEL),
    "a reservation that is not there": (lambda tx: set_run(tx, MODEL, reservation_id="res_x"), MODEL),
    "a budget put elsewhere": (
        lambda tx: set_account(tx, TEAM, parent_id=run_of(tx, "mimic/planned")),
        "as it was opened: parent",
    ),
}


@pytest.mark.parametrize("what", TAMPERINGS)
def test_what_was_tampered_with_is_named(charged: Ledger, what: str) -> None:
    tamper, named = TAMPERINGS[what]
    with tampering(charged.database) as tx:
        tamper(tx)
    found = verify(charged.database)
    assert not found.sound
    assert any(named in problem for problem in found.problems), found.problems


def test_a_sound_ledger_is_called_sound_and_counted(charged: Ledger) -> None:
    before = dump(charged.database)
    found = verify(charged.database)
    assert (found.sound, found.problems) == (True, ())
    assert found.checked.items() >= {"accounts": 6, "runs": 3, "decisions": 5, "charges": 6, "steps": 16}.items()
    assert dump(charged.database) == before


def test_an_empty_ledger_is_sound(ledger: Ledger) -> None:
    found = verify(ledger.database)
    assert found.sound
    assert found.checked.items() >= {"accounts": 0, "runs": 0, "charges": 0, "steps": 0}.items()


def test_prices_are_read_piece_by_piece(charged: Ledger, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(report, "PRICES_AT_ONCE", 1)
    monkeypatch.setattr(verification, "ROWS_AT_ONCE", 1)
    found = verify(charged.database)
    assert (found.problems, found.checked["accounts"], found.checked["charges"]) == ((), 6, 6)


def test_a_run_takes_little_memory(ledger: Ledger, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of its three curves, 11 KB each, none is kept."""
    monkeypatch.setattr(verification, "ROWS_AT_ONCE", 2)
    ledger.population(limit={"epsilon": 100.0, "delta": 1e-5})
    ledger.budget(limit={"epsilon": 100.0, "delta": 1e-5})

    def peak(runs: range) -> int:
        for number in runs:
            trainer = Trainer(ledger, ledger.run(name=f"run-{number}", event=LOUD))
            trainer.reserved((LOUD, 2))
            assert trainer.steps().status_code == 200
        verify(ledger.database)
        gc.collect()
        tracemalloc.start()
        assert verify(ledger.database).checked["runs"] == runs.stop
        _, found = tracemalloc.get_traced_memory()
        tracemalloc.stop()
        return found

    # Beyond the 128 latest statements that psycopg keeps: each run is read by a cursor with a name of its own.
    first = 130 if ledger.database.dialect == "postgresql" else 10
    few = peak(range(first))
    assert peak(range(first, first + 25)) - few < 25 * 5_000


def test_a_ledger_at_its_brim_is_sound(ledger: Ledger) -> None:
    ledger.population()
    ledger.budget()
    run = ledger.run(limit={"epsilon": 1.0, "delta": 1e-6})
    for event in (SAMPLED, NOISE, {"type": "gaussian", "noise_multiplier": 1e4}):
        refused = ledger.post(f"/v1/runs/{run}/steps", {"event": event, "count": 10**9}).json()
        if refused["max_count_that_fits"]:
            body = {"event": event, "count": refused["max_count_that_fits"]}
            assert ledger.post(f"/v1/runs/{run}/steps", body).json()["steps_remaining"] == 0
    assert ledger.post(f"/v1/runs/{run}/steps", {}).status_code == 403
    assert verify(ledger.database).sound


@pytest.mark.parametrize(
    ("factor", "version"),
    [(1.0, FORMULA_VERSION), (1.1, FORMULA_VERSION), (0.999, FORMULA_VERSION), (1.0, 2), (1.0, 0)],
)
def test_a_price_is_that_of_the_formulas_of_now(factor: float, version: int) -> None:
    event = Laplace(5.0)
    curve = event_curve(event, NeighboringRelation.ADD_OR_REMOVE_ONE)
    prices = CostTable("org_1", NeighboringRelation.ADD_OR_REMOVE_ONE, GRID_VERSION)
    kept = RdpCurve((curve.values * factor).astype(np.int64))
    problem = price_problem(StoredCost(fingerprint(event), canonical(event), prices, kept, version))
    assert (problem is None) == (factor == 1.0 and version == FORMULA_VERSION)


def test_every_organisation_is_verified(charged: Ledger) -> None:
    limit = {"epsilon": 1.0, "delta": 1e-5}
    population = {
        "name": "mimic",
        "privacy_unit": "patient",
        "neighboring_relation": "replace_one",
        "limit": limit,
    }
    made: dict[str, Any] = {}
    for path, body in (
        ("/v1/populations", population),
        ("/v1/budgets", {"name": "clinic-team", "parent": "mimic", "limit": limit}),
        ("/v1/runs", {"name": "model", "budget": "mimic/clinic-team", "event": NOISE}),
    ):
        made = charged.http.post(path, json=body, headers=charged.headers("admin", "clinic")).json()
    charged.http.post(f"/v1/runs/{made['id']}/steps", json={}, headers=charged.headers("admin", "clinic"))
    assert verify(charged.database).checked["accounts"] == 9
    assert verify(charged.database).sound
    with tampering(charged.database) as tx:
        shift_curve(tx, "mimic/clinic-team", -1)
    (problem,) = verify(charged.database).problems
    assert "mimic/clinic-team (bud_" in problem


def test_several_problems_are_all_named(charged: Ledger) -> None:
    with tampering(charged.database) as tx:
        shift_curve(tx, TEAM, 1)
        set_run(tx, MODEL, next_step=0)
    problems = verify(charged.database).problems
    assert len(problems) == 2
    assert {MODEL, TEAM} == {problem.partition(" (")[0] for problem in problems}
