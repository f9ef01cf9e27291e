"""Grants on budgets for which others wait, or that are for plans only: no step too many, no request without end."""

from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest

from epsilon_ledger import AccountAllocation, LedgerUnavailableError, PlanRequiredError, PlansWaitingError, Run
from tests.api import trainer
from tests.sdk.simulation import LOUD, TRIES, Fault, Simulation
from tests.sdk.test_grants import in_grants
from tests.sdk.test_plan_takeovers import left_behind
from tests.sdk.waits import Waits

DAY = timedelta(days=1)


@pytest.fixture
def waits(simulation: Simulation) -> Waits:
    return Waits(simulation)


def in_order(waits: Waits) -> None:
    """Let no plan be overtaken; the population is then for plans only."""
    office = waits.simulation.client("admin")
    allocation = office.replace_allocation("mimic", {"aging_seconds": 0}, reason="In order of arrival.")
    assert isinstance(allocation, AccountAllocation)
    assert allocation.plans_only


def requests(simulation: Simulation, act: Callable[[], object]) -> list[str]:
    """What is requested during an act."""
    before = len(simulation.wire.requests)
    act()
    return simulation.wire.asked[before:]


def test_budget_for_plans_only_says_so(waits: Waits) -> None:
    run = waits.simulation.run()
    in_order(waits)
    with pytest.raises(PlanRequiredError, match="Register the run with a `plan`") as caught:
        run.authorize()
    assert caught.value.account_path == "mimic"
    assert waits.simulation.wire.asked[-1] == "steps"
    run.reserve([{"event": LOUD, "count": 2}])
    waits.simulation.authorize(run, 2)
    run.complete(2)
    assert waits.simulation.exact(run)


@in_grants
def test_steps_are_asked_for_one_by_one_while_others_are_first(waits: Waits, ahead: dict[str, Any]) -> None:
    simulation = waits.simulation
    left_behind(waits, wait_until=(trainer.Clock.now(tz=None).astimezone() + 30 * DAY).isoformat())
    for _ in range(2):  # after a week it is overtaken no more
        simulation.clock.wait((4 * DAY).total_seconds())
        waits.holder.renew()
    run = simulation.run(**ahead)
    assert requests(simulation, lambda: simulation.authorize(run)) == ["reservations", "steps"]
    assert requests(simulation, lambda: simulation.authorize(run)) == ["reservations", "steps"]
    run.complete()
    assert simulation.exact(run)


@in_grants
def test_trainer_is_told_of_earlier_plans_where_only_plans_are_admitted(waits: Waits, ahead: dict[str, Any]) -> None:
    simulation = waits.simulation
    in_order(waits)
    first = left_behind(waits)
    with pytest.raises(PlansWaitingError, match="other plans wait for the same budget"), simulation.run(**ahead) as run:
        run.authorize()
    assert simulation.wire.asked[-2:] == ["reservations", "steps"]
    assert run.refresh().status == "active"
    simulation.client().get_run(first).abort()
    with run:
        simulation.authorize(run)
    assert simulation.exact(run)


def granted(waits: Waits, ahead: dict[str, Any]) -> Run:
    """A run with four more steps of a grant, when others begin to wait."""
    run = waits.simulation.run(**ahead)
    waits.simulation.authorize(run)
    left_behind(waits)
    return run


@in_grants
def test_grant_is_used_and_renewed_while_others_wait(waits: Waits, ahead: dict[str, Any]) -> None:
    simulation = waits.simulation
    in_order(waits)
    run = granted(waits, ahead)
    simulation.pass_time(run, 301.0)
    asked = requests(simulation, lambda: [simulation.authorize(run) for _ in range(4)])
    assert asked.count("reservations") <= 2
    assert simulation.covers()
    with pytest.raises(PlansWaitingError):
        run.authorize()
    run.complete()
    assert simulation.exact(run)


def test_grant_in_doubt_that_is_refused_so_is_given_up(waits: Waits) -> None:
    simulation = waits.simulation
    in_order(waits)
    run = granted(waits, {"authorize_every": 5})
    for _ in range(4):
        simulation.authorize(run)
    simulation.wire.fails(*[Fault.LOST] * TRIES)
    with pytest.raises(LedgerUnavailableError):
        run.authorize()
    with pytest.raises(PlansWaitingError):
        run.authorize()
    run.complete()
    assert simulation.exact(run)
