"""The refusal of a run's last request is remembered until a charge, and decides how the run ends."""

import asyncio
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import pytest

from epsilon_ledger import BudgetExceededError, LedgerUnavailableError, Run, gaussian
from tests.sdk.fake_ledger import RUN_ID, TRIES, FakeLedger
from tests.sdk.simulation import BUDGET, LOUD, Fault, Simulation
from tests.sdk.test_grants import every_way, until_refused


def reason_of(ledger: FakeLedger) -> object:
    assert ledger.requests[-1].url.path == f"/v1/runs/{RUN_ID}/complete"
    return ledger.bodies[-1].get("reason")


def kept(run: Run) -> BudgetExceededError | None:
    """The refusal that a run has kept."""
    return run.refusal


def caught(request: Callable[[], object]) -> BudgetExceededError:
    """The refusal of a request, caught as an adapter does that ends its training without an exception."""
    with pytest.raises(BudgetExceededError) as refused:
        request()
    return refused.value


@every_way
def test_run_ends_exhausted_after_refusal_that_its_program_caught(
    simulation: Simulation, ahead: dict[str, Any]
) -> None:
    with simulation.run(**ahead, event=gaussian(20)) as run:
        assert until_refused(simulation, run) > 10
        assert run.refusal is not None
        assert run.refusal.first_step == run.next_step
    assert (run.status, run.state.end_reason) == ("completed", "budget_exhausted")


@every_way
def test_charge_after_refusal_resets_it(simulation: Simulation, ahead: dict[str, Any]) -> None:
    with simulation.run(**ahead) as run:
        simulation.authorize(run)
        refusal = caught(lambda: run.authorize(10**6))
        assert kept(run) is refusal
        simulation.authorize(run)
        assert kept(run) is None
    assert (run.status, run.state.end_reason) == ("completed", "finished")
    assert simulation.exact(run)


def test_refused_training_and_refused_reservation_count_as_requests(simulation: Simulation) -> None:
    with simulation.run() as run:
        caught(lambda: run.charge_training(gaussian(0.01), steps=3))
    assert run.state.end_reason == "budget_exhausted"
    with simulation.run() as run:
        caught(lambda: run.reserve([{"event": LOUD, "count": 10**6}]))
    assert run.state.end_reason == "budget_exhausted"


def test_preview_requests_nothing(run: Run, ledger: FakeLedger) -> None:
    with run:
        caught(lambda: run.preview(11))
        assert kept(run) is None
    assert reason_of(ledger) is None


def test_refusal_that_settle_finds_counts(simulation: Simulation) -> None:
    run = simulation.run()
    simulation.wire.fails(*[Fault.UNHEARD] * TRIES)
    with pytest.raises(LedgerUnavailableError):
        run.authorize(10**6)
    assert kept(run) is None
    simulation.wire.faults.clear()
    assert run.settle() is None
    assert kept(run) is not None
    assert run.settle() is None
    run.complete()
    assert run.state.end_reason == "budget_exhausted"


def test_end_of_awaited_run_has_reason_that_it_states(simulation: Simulation) -> None:
    async def end(reason: str | None = None) -> str | None:
        async with simulation.async_client() as client:
            run = await client.create_run("model", budget=BUDGET, event=LOUD)
            with suppress(BudgetExceededError):
                await run.authorize(10**6)
            await run.complete(reason=reason)
        return run.state.end_reason

    assert asyncio.run(end()) == "budget_exhausted"
    assert asyncio.run(end(reason="finished")) == "finished"
