"""Reservations: what is held, used, returned and forfeited is balanced, and whatever was tampered with is named."""

from collections.abc import Callable
from dataclasses import dataclass

import pytest
from sqlalchemy import Connection, delete, update

from app.accounting.events import Gaussian, fingerprint
from app.ledger.reservations import PlannedItem, commit, forfeit, void
from app.ledger.step_events import StepEvent
from app.persistence.database import ALL_TENANTS
from app.persistence.tables import decisions, reservation_items, reservations
from app.service.verification import verify
from tests.api.trainer import LOUD as WIRED
from tests.api.trainer import Trainer, hired
from tests.conftest import Ledger
from tests.persistence.dump import dump
from tests.service.reservation_rows import Reserver
from tests.service.tampering import (
    ALL,
    MODEL,
    TEAM,
    balance,
    set_balance,
    set_decision,
    set_plan,
    set_reservation,
    set_run,
    shift_curve,
    tampering,
    whole,
)

LOUD, QUIET = Gaussian(60.0), Gaussian(90.0)


@dataclass(frozen=True)
class Reserved:
    """A ledger, and the trainer that has reserved in it."""

    ledger: Ledger
    trainer: Reserver


@pytest.fixture
def reserved(ledger: Ledger) -> Reserved:
    """A run with two charged steps and an active plan of 5 loud and 3 quiet steps, 2 of the loud ones used."""
    ledger.population()
    ledger.budget()
    run = ledger.run(limit={"epsilon": 1.0, "delta": 1e-6})
    ledger.post(f"/v1/runs/{run}/steps", {"event": {"type": "gaussian", "noise_multiplier": 60.0}, "count": 2})
    trainer = Reserver(ledger.database, run)
    trainer.reserve(StepEvent(LOUD, 5), StepEvent(QUIET, 3))
    trainer.spend(StepEvent(LOUD, 2))
    return Reserved(ledger, trainer)


def test_what_is_held_for_a_plan_is_sound(reserved: Reserved) -> None:
    before = dump(reserved.ledger.database)
    found = verify(reserved.ledger.database)
    assert (found.problems, found.checked["reservations"], found.checked["steps"]) == ((), 1, 4)
    assert dump(reserved.ledger.database) == before


@pytest.mark.parametrize("executed", [2, 3, 6, 8])
def test_a_committed_plan_is_sound(reserved: Reserved, executed: int) -> None:
    trainer = reserved.trainer
    with reserved.ledger.database.read(ALL_TENANTS) as tx:
        active = trainer._active(tx)
    trainer.close(commit(active, executed))
    found = verify(reserved.ledger.database)
    assert (found.problems, found.checked["steps"]) == ((), 2 + executed)
    trainer.reserve(StepEvent(QUIET, 1))
    assert verify(reserved.ledger.database).problems == ()


def test_a_forfeited_plan_is_sound_and_charged(reserved: Reserved) -> None:
    with reserved.ledger.database.read(ALL_TENANTS) as tx:
        active = reserved.trainer._active(tx)
    reserved.trainer.close(forfeit(active))
    found = verify(reserved.ledger.database)
    assert not found.problems
    assert (found.checked["steps"], found.checked["charges"]) == (4, 4)  # forfeited steps are charged, not taken
    with reserved.ledger.database.read(ALL_TENANTS) as tx:
        assert len({whole(tx, path) for path in (MODEL, TEAM, ALL)}) == 1


def test_a_voided_plan_leaves_nothing(reserved: Reserved) -> None:
    with reserved.ledger.database.read(ALL_TENANTS) as tx:
        active = reserved.trainer._active(tx)
    reserved.trainer.close(commit(active, 2))
    with reserved.ledger.database.read(ALL_TENANTS) as tx:
        before = whole(tx, ALL)
    reserved.trainer.close(void(reserved.trainer.reserve(StepEvent(LOUD, 7))))
    assert verify(reserved.ledger.database).problems == ()
    with reserved.ledger.database.read(ALL_TENANTS) as tx:
        after = balance(tx, ALL)
        assert (after.spent.to_bytes(), after.held.is_zero) == (before, True)


def test_two_runs_may_hold_something_of_one_budget(reserved: Reserved) -> None:
    other = Reserver(reserved.ledger.database, reserved.ledger.run(name="other"))
    other.reserve(StepEvent(QUIET, 4))
    other.spend(StepEvent(QUIET, 4))
    found = verify(reserved.ledger.database)
    assert (found.problems, found.checked["reservations"]) == ((), 2)


TAMPERINGS: dict[str, tuple[Callable[[Connection], object], str]] = {
    "a population's held curve lowered": (lambda tx: shift_curve(tx, ALL, -1, "held"), ALL),
    "a budget's held curve raised": (lambda tx: shift_curve(tx, TEAM, 1, "held"), TEAM),
    "a run's held curve emptied": (lambda tx: set_balance(tx, MODEL, held_curve=b""), MODEL),
    "a run's held delta raised": (lambda tx: set_balance(tx, MODEL, held_delta=1), MODEL),
    "a reserved curve": (lambda tx: set_reservation(tx, reserved_curve=whole(tx, MODEL)), MODEL),
    "a reserved delta": (lambda tx: set_reservation(tx, reserved_delta=1), MODEL),
    "a plan made longer": (lambda tx: set_plan(tx, count=6), MODEL),
    "more used of a plan than was charged": (lambda tx: set_plan(tx, authorized_count=3), MODEL),
    "less used of a plan than was charged": (lambda tx: set_plan(tx, authorized_count=0), MODEL),
    "a plan of another event": (lambda tx: set_plan(tx, event_fingerprint=fingerprint(Gaussian(70.0))), MODEL),
    "a plan forgotten": (lambda tx: tx.execute(delete(reservation_items)), MODEL),
    "a reservation forgotten": (lambda tx: tx.execute(delete(reservations)), MODEL),
    "a reservation ended": (lambda tx: set_reservation(tx, status="committed", steps_executed=2), MODEL),
    "a reservation voided": (lambda tx: set_reservation(tx, status="voided"), MODEL),
    "a reservation forfeited": (lambda tx: set_reservation(tx, status="forfeited"), MODEL),
    "an attestation before the end": (lambda tx: set_reservation(tx, steps_executed=2), MODEL),
    "a run that no longer knows of its reservation": (lambda tx: set_run(tx, MODEL, reservation_id=None), MODEL),
    "a charge taken out of its reservation": (lambda tx: set_decision(tx, 1, reservation_id=None), MODEL),
    "a charge put under the reservation": (
        lambda tx: tx.execute(update(decisions).values(reservation_id="res_x")),
        MODEL,
    ),
}


@pytest.mark.parametrize("what", TAMPERINGS)
def test_what_was_tampered_with_is_named(reserved: Reserved, what: str) -> None:
    tamper, named = TAMPERINGS[what]
    with tampering(reserved.ledger.database) as tx:
        tamper(tx)
    problems = verify(reserved.ledger.database).problems
    assert any(problem.startswith(f"{named} (") for problem in problems), problems


@pytest.mark.parametrize("executed", [1, 3])
def test_an_attestation_that_is_not_what_was_charged_is_named(reserved: Reserved, executed: int) -> None:
    with reserved.ledger.database.read(ALL_TENANTS) as tx:
        active = reserved.trainer._active(tx)
    reserved.trainer.close(commit(active, 2))
    with tampering(reserved.ledger.database) as tx:
        set_reservation(tx, steps_executed=executed)
    [problem] = verify(reserved.ledger.database).problems
    assert f"attests {executed} steps; 2 were charged" in problem


def test_a_forfeit_taken_back_is_named(reserved: Reserved) -> None:
    with reserved.ledger.database.read(ALL_TENANTS) as tx:
        active = reserved.trainer._active(tx)
    reserved.trainer.close(forfeit(active))
    with tampering(reserved.ledger.database) as tx:
        set_reservation(tx, status="committed", steps_executed=2)
    [problem] = verify(reserved.ledger.database).problems
    assert "is not what was forfeited" in problem


@pytest.fixture
def lowered(ledger: Ledger) -> Trainer:
    """A run with a plan of which a lowered limit has revoked a part."""
    trainer = hired(ledger)
    trainer.reserved((WIRED, 160))
    headers = {"If_Match": "*"}
    body = {"limit": {"epsilon": 0.5, "delta": 1e-5}, "reason": "the study was narrowed"}
    assert ledger.post(f"/v1/accounts/{trainer.path()[1].id}/limit", body, **headers).status_code == 200
    assert verify(ledger.database).problems == ()
    return trainer


def test_what_a_lowered_limit_has_revoked_is_proven(lowered: Trainer) -> None:
    with tampering(lowered.ledger.database) as tx:
        set_plan(tx, revoked_count=0)
    problems = verify(lowered.ledger.database).problems
    assert any(problem.endswith("differs from the audit log of lowered limits.") for problem in problems)
    assert any(
        "mimic/icu-team (bud_" in problem and "active plans may take more than its limit allows" in problem
        for problem in problems
    )


def test_a_step_that_a_lowered_limit_had_revoked_is_named(lowered: Trainer, monkeypatch: pytest.MonkeyPatch) -> None:
    """As a service would have let it through that takes no notice of it."""
    monkeypatch.setattr(PlannedItem, "left", PlannedItem.unused)
    assert lowered.steps(count=160).json()["reservation"] is not None
    [problem] = verify(lowered.ledger.database).problems
    assert problem.endswith("that a lowered limit had revoked.")
