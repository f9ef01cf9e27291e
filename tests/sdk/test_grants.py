"""Steps that are granted ahead: handed out without the network, charged exactly, given back at a clean end."""

from typing import Any

import pytest

from epsilon_ledger import (
    BudgetExceededError,
    Event,
    EventCount,
    LedgerUnavailableError,
    Run,
    RunStateConflictError,
    gaussian,
)
from tests.sdk.simulation import HUSHED, LOUD, QUIET, TRIES, Fault, Simulation

AHEAD: dict[str, dict[str, Any]] = {
    "one by one": {},
    "grants": {"authorize_every": 5},
    "in the background": {"authorize_every": 5, "background": True},
}
every_way = pytest.mark.parametrize("ahead", AHEAD.values(), ids=AHEAD)
in_grants = pytest.mark.parametrize("ahead", list(AHEAD.values())[1:], ids=list(AHEAD)[1:])


def take(simulation: Simulation, run: Run, steps: int) -> None:
    for _ in range(steps):
        simulation.authorize(run)


def until_refused(simulation: Simulation, run: Run) -> int:
    taken = 0
    try:
        while True:
            simulation.authorize(run)
            taken += 1
    except BudgetExceededError:
        return taken


def fading(step: int) -> Event:
    """Less noise every third step."""
    return {"type": "gaussian", "noise_multiplier": 60.0 - step // 3}


@every_way
@pytest.mark.parametrize("steps", [0, 4, 5, 12])
def test_clean_exit_charges_exactly_what_was_released(
    simulation: Simulation, ahead: dict[str, Any], steps: int
) -> None:
    with simulation.run(**ahead) as run:
        for step in range(steps):
            authorization = simulation.authorize(run)
            assert (authorization.first_step, authorization.next_step, run.next_step) == (step, step + 1, step + 1)
            assert simulation.covers()
    assert run.status == "completed"
    assert simulation.exact(run)


def test_grant_is_handed_out_without_network(simulation: Simulation) -> None:
    run = simulation.run(authorize_every=5)
    for _ in range(5):
        simulation.authorize(run)
    assert simulation.wire.asked == ["runs", "reservations"]
    simulation.authorize(run)
    assert simulation.wire.asked == ["runs", "reservations", "reservations"]


@pytest.mark.parametrize("ahead", [*AHEAD.values(), {"authorize_every": 1000}], ids=[*AHEAD, "all at once"])
def test_budget_admits_as_many_steps_in_grants_as_one_by_one(simulation: Simulation, ahead: dict[str, Any]) -> None:
    other = simulation.run(event=gaussian(20.0))
    simulation.authorize(other, 7)
    other.complete()
    with simulation.run(**ahead, event=gaussian(20.0)) as run:
        most = run.state.steps_remaining
        assert most is not None
        assert most > 10
        assert until_refused(simulation, run) == most
        assert ahead.get("authorize_every", 1) < 1000 or simulation.wire.asked.count("reservations") <= 3
    assert simulation.exact(run, other)


CYCLES: dict[str, list[Event]] = {
    "comes back": [QUIET, LOUD, QUIET, HUSHED],
    # The ledger plans each event once: what it takes for the first event comes first, whatever stands in between.
    "spellings": [QUIET, LOUD, {**QUIET, "noise_multiplier": 60}, HUSHED, {**QUIET, "clipped": "microbatch"}],
    "tuple": [{"type": "composed", "events": (QUIET, HUSHED)}],
    "many steps": [{"type": "self_composed", "event": QUIET, "count": 3}],
    "decay": [{"type": "decay", "mode": "exp", "decay_rate": 0.01, "steps": 4, "event": QUIET}],
}


@in_grants
@pytest.mark.parametrize("name", CYCLES)
def test_schedule_is_charged_for_steps_handed_out_up_to_its_end(
    simulation: Simulation, name: str, ahead: dict[str, Any]
) -> None:
    planned = (CYCLES[name] * 9)[:9]
    with simulation.run(**ahead, event=None, schedule=lambda step: planned[step]) as run:
        for _ in range(9):
            simulation.authorize(run)
            assert simulation.covers()
        with pytest.raises(IndexError):
            run.authorize()
    assert simulation.exact(run)


@in_grants
def test_schedule_that_changes_its_mind_is_charged_for_what_was_granted(
    simulation: Simulation, ahead: dict[str, Any]
) -> None:
    noise = dict(LOUD)
    with simulation.run(**ahead, schedule=lambda _: noise) as run:
        simulation.authorize(run, 2)
        noise["noise_multiplier"] = 90.0
        simulation.wire.fails(*[Fault.UNHEARD] * TRIES)
        if run._background:
            simulation.authorize(run, event=LOUD)
        else:
            with pytest.raises(LedgerUnavailableError):
                run.authorize(4)
            simulation.authorize(run, event=LOUD)
        assert run.next_step == 3
        simulation.authorize(run, 2, event=LOUD)
        for _ in range(4):
            simulation.authorize(run)
            assert simulation.covers()
    assert simulation.exact(run)


@in_grants
def test_event_that_its_owner_changes_afterwards_is_charged_as_it_was(
    simulation: Simulation, ahead: dict[str, Any]
) -> None:
    mine = dict(LOUD)
    with simulation.run(**ahead, event=None) as run:
        simulation.authorize(run, event=mine)
        mine["noise_multiplier"] = 90.0
        for _ in range(8):
            simulation.authorize(run, event=dict(LOUD))
            assert simulation.covers()
        simulation.authorize(run, event=mine)
    assert simulation.exact(run)


@in_grants
def test_grant_is_ended_before_request_that_does_not_go_with_it(simulation: Simulation, ahead: dict[str, Any]) -> None:
    with simulation.run(**ahead) as run:
        simulation.authorize(run, 2)
        assert run.preview(3).first_step == 2
        assert run.preview().dry_run
        simulation.authorize(run)
        several = [EventCount(event=LOUD, count=1), EventCount(event=QUIET, count=2)]
        run.authorize(events=several)
        simulation.note(run, [LOUD, QUIET, QUIET])
        simulation.authorize(run, event=QUIET)
        simulation.authorize(run, event=QUIET)
        simulation.authorize(run)
        simulation.authorize(run, 12)
        run.report(2, event=HUSHED)
        simulation.note(run, [HUSHED] * 2)
        simulation.authorize(run)
        run.pause()
        with pytest.raises(RunStateConflictError):
            simulation.authorize(run)
        run.resume()
        simulation.authorize(run)
        cut = run.authorize(10_000, truncate=True)
        simulation.note(run, [LOUD] * cut.count)
        assert cut.requested_count == 10_000
        with pytest.raises(BudgetExceededError):
            run.authorize()
    assert simulation.exact(run)


def test_refusal_in_background_leaves_what_was_granted(simulation: Simulation) -> None:
    other = simulation.run()
    with simulation.run(authorize_every=4, background=True) as run:
        simulation.authorize(run)
        most = other.state.steps_remaining
        assert most is not None
        simulation.authorize(other, most - 4)
        for _ in range(3):
            simulation.authorize(run)
        with pytest.raises(BudgetExceededError):
            run.authorize()
        assert simulation.covers()
    other.complete()
    assert simulation.exact(run, other)


@in_grants
def test_grant_is_charged_when_run_is_ended_from_outside(simulation: Simulation, ahead: dict[str, Any]) -> None:
    for action in ("abort", "pause"):
        run = simulation.run(**ahead)
        simulation.authorize(run)
        getattr(simulation.client("admin").get_run(run.id), action)()
        with pytest.raises(RunStateConflictError):
            take(simulation, run, 5)
        # Whoever asks ahead is told ahead, as soon as that is answered.
        at_least = 3 if ahead.get("background") else 5
        assert at_least <= simulation.released[run.id].total() <= 5
        assert simulation.covers()
        with pytest.raises(RunStateConflictError):
            take(simulation, run, 6)
        assert simulation.covers()
