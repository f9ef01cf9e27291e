"""A grant has a lease: a slow trainer renews it, and a silent one is charged for all that it may have released."""

from collections import Counter
from typing import Any

import pytest

from app.accounting.events import canonical, event_from_dict
from epsilon_ledger import BudgetExceededError, LedgerUnavailableError, ReservationClosedError
from tests.sdk.test_grants import in_grants
from tests.sdk.world import LOUD, TRIES, Fault, World

LONG = 700.0
"""More than a lease."""


def steps(count: int) -> Counter[bytes]:
    return Counter({canonical(event_from_dict(LOUD)): count})


@in_grants
def test_a_slow_trainer_is_no_silent_one(world: World, ahead: dict[str, Any]) -> None:
    with world.run(**ahead | {"authorize_every": 50}) as run:
        for _ in range(30):
            world.authorize(run)
            world.pass_time(run, 150.0)
    assert world.exact(run)


@in_grants
def test_a_slow_trainer_keeps_its_last_grant(world: World, ahead: dict[str, Any]) -> None:
    other, run = world.run(), world.run(**ahead | {"authorize_every": 20})
    most = other.state.steps_remaining
    assert most is not None
    world.authorize(other, most - 20)
    with run:
        for _ in range(20):
            world.authorize(run)
            world.pass_time(run, 150.0)
        with pytest.raises(BudgetExceededError):
            run.authorize()
    assert world.exact(run, other)


@in_grants
def test_while_the_ledger_is_away_a_slow_trainer_goes_on_until_its_lease_runs_out(
    world: World, ahead: dict[str, Any]
) -> None:
    run = world.run(**ahead | {"authorize_every": 50})
    world.authorize(run)
    world.wire.fails(*[Fault.LOST] * 1000)
    for _ in range(5):
        world.pass_time(run, 110.0)
        world.authorize(run)
    world.pass_time(run, 110.0)
    with pytest.raises(LedgerUnavailableError):
        run.authorize()
    world.wire.faults.clear()
    world.authorize(run)
    assert world.charged(run) >= steps(50)
    run.complete()
    assert world.covers()
    assert world.sound()


@in_grants
@pytest.mark.parametrize("then", ["authorize", "preview", "complete", "pause", "list"])
def test_a_silent_trainer_is_charged_for_its_whole_grant_and_may_go_on(
    world: World, ahead: dict[str, Any], then: str
) -> None:
    run = world.run(**ahead)
    world.authorize(run, 2)
    world.clock.wait(LONG)
    if then == "authorize":
        assert world.authorize(run).first_step == 0
    elif then == "list":
        run.authorize(events=[{"event": LOUD, "count": 1}])
        world.note(run, [LOUD])
    else:
        getattr(run, then)()
    if then in {"authorize", "list", "preview"}:
        world.authorize(run, 2)
    run.complete()
    assert world.charged(run) == steps(5 + {"authorize": 3, "list": 3, "preview": 2}.get(then, 0))
    assert world.covers()
    assert world.sound()


@in_grants
def test_a_grant_that_ended_in_another_way_is_not_handed_out_any_more(world: World, ahead: dict[str, Any]) -> None:
    """Somebody gives it back, against every rule; from the moment on that the trainer hears of it, it stops."""
    run = world.run(**ahead)
    world.authorize(run)
    thief = world.client().get_run(run.id, with_plan=True)
    thief.void()
    world.wire.fails(Fault.NONE, *[Fault.LOST] * TRIES)
    with pytest.raises(LedgerUnavailableError):
        run.preview()
    assert run._protocol.grants.allocate(1, None) is None
    with pytest.raises(ReservationClosedError):
        thief.commit(1)
    run.authorize(4)
    run.complete()
    assert world.charged(run) == steps(4)


@in_grants
def test_a_lease_that_the_ledger_sees_ending_first(world: World, ahead: dict[str, Any]) -> None:
    """Clocks differ: for the trainer the grant is good for some time yet."""
    with world.run(**ahead) as run:
        world.authorize(run, 2)
        world.clock.wait(LONG)
        world.clock.seconds = 0.0
        for _ in range(8):
            world.authorize(run)
            assert world.covers()
    assert world.exact(run)


def test_a_grant_that_arrives_when_its_lease_is_over_is_not_handed_out(world: World) -> None:
    run = world.run(authorize_every=5)
    world.wire.after = lambda _: world.clock.wait(LONG)
    world.authorize(run)
    world.wire.after = lambda _: None
    world.authorize(run)
    assert world.covers()
    run.complete()
    assert world.charged(run) == steps(5 + 2)
