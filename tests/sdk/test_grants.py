"""Steps that are granted ahead: handed out without the network, charged exactly, given back at a clean end."""

from collections.abc import Callable
from typing import Any

import pytest

from epsilon_ledger import (
    BudgetExceededError,
    Event,
    EventCount,
    LedgerError,
    LedgerUnavailableError,
    Limit,
    Run,
    RunStateConflictError,
    gaussian,
)
from tests.sdk.simulation import BUDGET, HUSHED, LOUD, QUIET, TRIES, Simulation
from tests.sdk.wire import Fault

AHEAD: dict[str, dict[str, Any]] = {
    "one by one": {},
    "grants": {"prefetch": 5},
    "in the background": {"prefetch": 5, "prefetch_in_background": True},
}
every_way = pytest.mark.parametrize("ahead", AHEAD.values(), ids=AHEAD)
in_grants = pytest.mark.parametrize("ahead", list(AHEAD.values())[1:], ids=list(AHEAD)[1:])


def until_error(simulation: Simulation, run: Run) -> tuple[int, LedgerError]:
    """Release steps until none is admitted."""
    taken = 0
    while True:
        try:
            simulation.authorize(run)
        except LedgerError as error:
            return taken, error
        taken += 1


def fading(step: int) -> Event:
    """Less noise every third step."""
    return {"type": "gaussian", "noise_multiplier": 60.0 - step // 3}


@pytest.mark.parametrize(("way", "steps"), [*((way, 12) for way in AHEAD), ("grants", 0), ("in the background", 5)])
def test_clean_exit_charges_exactly_what_was_released(simulation: Simulation, way: str, steps: int) -> None:
    with simulation.run(**AHEAD[way]) as run:
        for step in range(steps):
            authorization = simulation.authorize(run)
            assert (authorization.first_step, authorization.next_step, run.next_step) == (step, step + 1, step + 1)
            assert simulation.covers()
    assert run.status == "completed"
    assert simulation.exact(run)
    if (way, steps) == ("grants", 12):
        assert simulation.asked == ["runs", *["reservations"] * 3, "commit", "complete"]


@pytest.mark.parametrize("ahead", [*AHEAD.values(), {"prefetch": 1000}], ids=[*AHEAD, "all at once"])
def test_budget_admits_as_many_steps_in_grants_as_one_by_one(simulation: Simulation, ahead: dict[str, Any]) -> None:
    other = simulation.run(event=gaussian(20.0))
    simulation.authorize(other, 7)
    other.complete()
    with simulation.run(**ahead, event=gaussian(20.0)) as run:
        most = run.state.steps_remaining
        assert most is not None
        assert most > 10
        taken, error = until_error(simulation, run)
        assert (taken, type(error)) == (most, BudgetExceededError)
        assert run.refusal is error
        assert run.refusal.first_step == run.next_step
        assert ahead.get("prefetch", 1) < 1000 or simulation.asked.count("reservations") <= 3
    assert (run.status, run.state.end_reason) == ("completed", "budget_exhausted")
    assert simulation.exact(run, other)


CYCLES: dict[str, list[Event]] = {
    "comes back": [QUIET, LOUD, QUIET, HUSHED],
    # The ledger reserves each event once: what it takes for the first event comes first, whatever stands in between.
    "spellings": [QUIET, LOUD, {**QUIET, "noise_multiplier": 60}, HUSHED, {**QUIET, "clipped": "microbatch"}],
    "tuple": [{"type": "composed", "events": (QUIET, HUSHED)}],
    "many steps": [{"type": "self_composed", "event": QUIET, "count": 3}],
    "decay": [{"type": "decay", "mode": "exp", "decay_rate": 0.01, "steps": 4, "event": QUIET}],
}


@pytest.mark.parametrize(("name", "way"), [(name, "grants") for name in CYCLES] + [("spellings", "in the background")])
def test_schedule_is_charged_for_steps_handed_out_up_to_its_end(simulation: Simulation, name: str, way: str) -> None:
    planned = (CYCLES[name] * 9)[:9]
    with simulation.run(**AHEAD[way], event=None, schedule=lambda step: planned[step]) as run:
        for _ in range(9):
            simulation.authorize(run)
            assert simulation.covers()
        with pytest.raises(IndexError):
            run.authorize()
    assert simulation.exact(run)


def test_steps_of_schedule_that_no_grant_can_hold_are_asked_for_directly(simulation: Simulation) -> None:
    planned = [QUIET, LOUD, QUIET, QUIET]
    with simulation.run(**AHEAD["grants"], schedule=lambda step: planned[step]) as run:
        assert simulation.authorize(run, 4).count == 4
    assert simulation.asked == ["runs", "steps", "complete"]
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
        for event in (QUIET, QUIET, None):
            simulation.authorize(run, event=event)
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
    assert simulation.sound()


@in_grants
@pytest.mark.parametrize("action", ["abort", "pause"])
def test_grant_is_charged_when_run_is_ended_from_outside(
    simulation: Simulation, ahead: dict[str, Any], action: str
) -> None:
    run = simulation.run(**ahead)
    simulation.authorize(run)
    getattr(simulation.client("admin").get_run(run.id), action)()
    with pytest.raises(RunStateConflictError):
        simulation.take(run, 5)
    # In the background the conflict is heard as soon as the next grant is answered.
    assert (3 if ahead.get("prefetch_in_background") else 5) <= simulation.released[run.id].total() <= 5
    assert simulation.covers()
    with pytest.raises(RunStateConflictError):
        simulation.take(run, 6)
    assert simulation.covers()


# The refusal of the last request is remembered until a charge, and decides how the run ends.


@pytest.mark.parametrize("ahead", [{}, AHEAD["in the background"]], ids=["one by one", "in the background"])
def test_charge_after_refusal_resets_it(simulation: Simulation, ahead: dict[str, Any]) -> None:
    with simulation.run(**ahead) as run:
        requests: list[Callable[[], object]] = [
            lambda: run.authorize(10**6),
            lambda: run.charge_training(gaussian(0.01), steps=3),
            *([] if ahead else [lambda: run.reserve([EventCount(event=LOUD, count=10**6)])]),
        ]
        for request in requests:
            simulation.authorize(run)
            assert run.refusal is None
            with pytest.raises(BudgetExceededError) as refused:
                request()
            assert run.refusal is refused.value
        simulation.authorize(run)
        with pytest.raises(BudgetExceededError):
            run.preview(10**6)
    assert (run.refusal, run.state.end_reason) == (None, "finished")
    assert simulation.exact(run)


def test_refusal_that_settle_finds_counts(simulation: Simulation) -> None:
    run = simulation.run()
    simulation.fails(*[Fault.UNHEARD] * TRIES)
    with pytest.raises(LedgerUnavailableError):
        run.authorize(10**6)
    for _ in range(2):
        assert run.resolve_in_doubt() is None
        assert run.refusal is not None
    run.complete()
    assert run.state.end_reason == "budget_exhausted"


# The limit is lowered while a trainer holds steps.


def lower(simulation: Simulation, epsilon: float) -> None:
    found = simulation.ledger.get(f"/v1/budgets?path={BUDGET}", "admin").json()["items"][0]["id"]
    body = {"limit": {"epsilon": epsilon, "delta": 1e-5}, "reason": "the study was narrowed"}
    reply = simulation.ledger.post(f"/v1/accounts/{found}/limit", body, "admin", If_Match="*")
    assert reply.status_code == 200, reply.text


def test_run_with_reservation_hears_refusal_that_names_lowered_limit(simulation: Simulation) -> None:
    with simulation.run() as run:
        run.reserve([{"event": LOUD, "count": 90}])
        simulation.take(run, 5)
        lower(simulation, 0.5)
        taken, error = until_error(simulation, run)
        assert isinstance(error, BudgetExceededError)
        assert error.limit_change is not None
        assert (error.limit_change.before, error.limit) == (Limit(1.0, 1e-5), Limit(0.5, 1e-5))
        assert error.limit_change.actor in str(error)
        assert 0 < taken < 85
        run.complete(5 + taken)
    assert simulation.exact(run)


@in_grants
def test_lowered_limit_ends_steps_after_those_in_hand(simulation: Simulation, ahead: dict[str, Any]) -> None:
    """Steps in hand when the limit changes are charged, also above it; the next call ends them."""
    run = simulation.run(**ahead)
    simulation.authorize(run, 30)
    simulation.authorize(run)
    lower(simulation, 0.2)
    taken, error = until_error(simulation, run)
    assert taken <= 2 * ahead.get("prefetch", 0)
    assert isinstance(error, BudgetExceededError)
    assert error.limit_change is not None
    assert simulation.charged(run) == simulation.released[run.id]
    assert run.refresh().status == ("overdrawn" if taken else "active")
