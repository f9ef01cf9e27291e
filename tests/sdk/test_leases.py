"""A grant has a lease: a slow trainer renews it, and a silent one is charged for all that it may have released."""

from collections import Counter
from datetime import timedelta
from typing import Any

import pytest

from app.accounting.events import canonical, event_from_dict
from app.service.maintenance import expire_reservations
from epsilon_ledger import BudgetExceededError, LedgerUnavailableError, ReservationClosedError
from tests.sdk.simulation import LOUD, TRIES, Simulation
from tests.sdk.test_grants import AHEAD, in_grants
from tests.sdk.wire import Fault
from tests.soak import in_turns

LONG = 700.0
"""More than a lease."""


def steps(count: int) -> Counter[bytes]:
    return Counter({canonical(event_from_dict(LOUD)): count})


@in_grants
def test_slow_trainer_keeps_its_last_grant(simulation: Simulation, ahead: dict[str, Any]) -> None:
    other, run = simulation.run(), simulation.run(**ahead | {"prefetch": 10})
    most = other.state.steps_remaining
    assert most is not None
    simulation.authorize(other, most - 10)
    with run:
        for _ in range(10):
            simulation.authorize(run)
            simulation.pass_time(run, 150.0)
        with pytest.raises(BudgetExceededError):
            run.authorize()
    assert simulation.exact(run, other)


@in_grants
def test_slow_trainer_goes_on_without_ledger_until_lease_runs_out(
    simulation: Simulation, ahead: dict[str, Any]
) -> None:
    run = simulation.run(**ahead | {"prefetch": 50})
    simulation.authorize(run)
    simulation.fails(*[Fault.LOST] * 1000)
    for _ in range(5):
        simulation.pass_time(run, 110.0)
        simulation.authorize(run)
    simulation.pass_time(run, 110.0)
    with pytest.raises(LedgerUnavailableError):
        run.authorize()
    simulation.faults.clear()
    simulation.authorize(run)
    assert simulation.charged(run) >= steps(50)
    run.complete()
    assert simulation.covers()


@pytest.mark.parametrize(
    ("then", "way"), in_turns(["authorize", "preview", "complete", "pause", "list"], ["grants", "in the background"])
)
def test_silent_trainer_is_charged_for_its_whole_grant_and_may_go_on(
    simulation: Simulation, way: str, then: str
) -> None:
    run = simulation.run(**AHEAD[way])
    simulation.authorize(run, 2)
    simulation.clock.sleep(LONG)
    if then == "authorize":
        assert simulation.authorize(run).first_step == 0
    elif then == "list":
        run.authorize(events=[{"event": LOUD, "count": 1}])
        simulation.note(run, [LOUD])
    else:
        getattr(run, then)()
    if then in {"authorize", "list", "preview"}:
        simulation.authorize(run, 2)
    run.complete()
    assert simulation.charged(run) == steps(5 + {"authorize": 3, "list": 3, "preview": 2}.get(then, 0))
    assert simulation.covers()
    assert simulation.sound()


@in_grants
def test_grant_that_ended_in_another_way_is_not_handed_out_any_more(
    simulation: Simulation, ahead: dict[str, Any]
) -> None:
    """Somebody gives it back, against every rule; from the moment on that the trainer hears of it, it stops."""
    run = simulation.run(**ahead)
    simulation.authorize(run)
    thief = simulation.client().get_run(run.id, with_reservation=True)
    thief.void()
    simulation.fails(Fault.NONE, *[Fault.LOST] * TRIES)
    with pytest.raises(LedgerUnavailableError):
        run.preview()
    assert run._protocol.grants.allocate(1, None) is None
    with pytest.raises(ReservationClosedError):
        thief.commit(1)
    run.authorize(4)
    run.complete()
    assert simulation.charged(run) == steps(4)


@in_grants
def test_lease_that_ledger_sees_ending_first_is_charged_and_trainer_goes_on(
    simulation: Simulation, ahead: dict[str, Any]
) -> None:
    """Clocks differ: for the trainer the grant is good for some time yet."""
    with simulation.run(**ahead) as run:
        simulation.authorize(run, 2)
        expire_reservations(simulation.ledger.database, simulation.clock.now() + timedelta(seconds=LONG))
        simulation.take(run, 8)
    # A grant that was fetched meanwhile may end, too, and what it holds is charged as if it had been released.
    assert simulation.covers() if ahead.get("prefetch_in_background") else simulation.exact(run)
