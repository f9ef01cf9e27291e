"""Replies are lost, come late or make no sense: what was released is charged, and in the end nothing else is."""

import math
from collections.abc import Callable
from typing import Any

import pytest

from epsilon_ledger import (
    BudgetExceededError,
    InvalidRequestError,
    LedgerError,
    LedgerUnavailableError,
    Run,
    RunStateConflictError,
)
from tests.reliability.conftest import ROUNDS
from tests.sdk.test_grants import AHEAD, every_way, fading, in_grants
from tests.sdk.world import LOUD, QUIET, TRIES, Fault, World

FAULTS = [fault for fault in Fault if fault is not Fault.NONE]


def insisting(ask: Callable[[], object]) -> None:
    """Ask until the answer is no problem of the line."""
    for _ in range(5):
        try:
            ask()
        except LedgerError as error:
            if isinstance(error, (BudgetExceededError, RunStateConflictError)):
                raise
        else:
            return
    raise AssertionError("nothing fails so often here")


def train(world: World, run: Run, steps: int = 9) -> None:
    """Steps, with something else between them."""
    for step in range(steps):
        insisting(lambda: world.authorize(run))
        if step == 3:
            insisting(lambda: world.authorize(run, 2, event=QUIET))
        if step == 6:
            insisting(run.preview)
            assert world.covers()
    insisting(run.complete)


@every_way
@pytest.mark.parametrize("fault", FAULTS)
def test_whatever_fails_at_whichever_request(world: World, ahead: dict[str, Any], fault: Fault) -> None:
    for round_ in range(ROUNDS):
        run = world.run(**ahead, schedule=fading)
        for well in (0, 1, 2, 1 + round_ % 5):
            world.wire.fails(fault, *[Fault.NONE] * well, *[fault] * TRIES, *[Fault.NONE] * (1 + well))
        train(world, run)
        assert world.exact(run)
        world.wire.faults.clear()
        world.wire.deliver()
        assert world.exact(run)


@in_grants
def test_a_message_that_was_on_its_way_for_long_changes_nothing(world: World, ahead: dict[str, Any]) -> None:
    """Nobody hears of the run's end, so it goes on; then the end arrives after all."""
    run = world.run(**ahead)
    world.authorize(run, 2)
    world.wire.fails(*[Fault.NONE] * (len(world.wire.late) + 1), *[Fault.LATE] * 10)
    with pytest.raises(LedgerUnavailableError):
        run.complete()
    world.wire.faults.clear()
    for _ in range(4):
        world.authorize(run)
    world.wire.deliver()
    assert world.covers()
    assert run.refresh().status == "active"
    run.complete()
    assert world.exact(run)


def test_a_refused_answer_after_an_unheard_one_does_not_hide_what_the_unheard_one_granted(world: World) -> None:
    with world.run(**AHEAD["grants"]) as run:
        world.authorize(run, 3)
        stranger = world.client("admin").get_run(run.id)
        world.wire.fails(Fault.UNHEARD)
        world.wire.after = lambda _: None
        paused: list[str] = []

        def pause_before_the_second_try(_: object) -> None:
            if len(world.wire.requests) > tried and not paused:
                paused.append(run.id)
                stranger.pause()

        tried = len(world.wire.requests) + 1
        world.wire.before = pause_before_the_second_try
        world.authorize(run, 3)
        world.wire.before = lambda _: None
        assert run.state.reservation is not None
        stranger.resume()
        world.authorize(run, 2)
    assert world.exact(run)


def test_an_end_that_is_unheard_is_not_undone_by_a_step(world: World) -> None:
    run = world.run(**AHEAD["grants"])
    world.authorize(run, 2)
    world.wire.fails(*[Fault.NONE], *[Fault.UNHEARD] * TRIES)
    with pytest.raises(LedgerUnavailableError):
        run.complete()
    with pytest.raises(RunStateConflictError):
        run.authorize()
    run.complete()
    assert world.exact(run)


@in_grants
@pytest.mark.parametrize("fault", [Fault.LATE, Fault.CRASHED])
@pytest.mark.parametrize("refused", ["a report", "a pause"])
def test_a_run_that_takes_no_steps_can_be_completed_whatever_was_unanswered(
    world: World, ahead: dict[str, Any], refused: str, fault: Fault
) -> None:
    run = world.run(**ahead)
    world.authorize(run, 2)
    if refused == "a report":
        assert run.report(10_000).overdrawn
        world.note(run, [LOUD] * 10_000)
    else:
        world.client().get_run(run.id).pause()
        world.authorize(run, 3)
    world.wire.fails(fault)
    with pytest.raises(LedgerError):
        run.authorize()
    world.wire.faults.clear()
    run.complete()
    world.wire.deliver()
    assert (world.charged(run), run.status) == (world.released[run.id], "completed")


@in_grants
@pytest.mark.parametrize(
    ("noise", "error"), [(1e-9, InvalidRequestError), (math.nan, ValueError), (None, InvalidRequestError)]
)
def test_what_is_planned_too_far_ahead_is_no_reason_to_stop(
    world: World, ahead: dict[str, Any], noise: float | None, error: type[Exception]
) -> None:
    planned = [LOUD, LOUD, QUIET, QUIET, {"type": "gaussian", "noise_multiplier": noise}]
    with world.run(**ahead, schedule=lambda step: planned[step]) as run:
        for _ in range(4):
            world.authorize(run)
        with pytest.raises(error):
            run.authorize()
    assert world.exact(run)
