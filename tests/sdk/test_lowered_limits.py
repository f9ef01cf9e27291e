"""A limit that is lowered while a trainer holds steps: it hears a refusal that names the change."""

from typing import Any

import pytest

from epsilon_ledger import BudgetExceededError, LedgerError
from tests.sdk.simulation import BUDGET, LOUD, Simulation
from tests.sdk.test_grants import AHEAD, take


def lower(simulation: Simulation, epsilon: float) -> None:
    """Lower the limit of the budget."""
    found = simulation.ledger.get(f"/v1/budgets?path={BUDGET}", "admin").json()["items"][0]["id"]
    body = {"limit": {"epsilon": epsilon, "delta": 1e-5}, "reason": "the study was narrowed"}
    reply = simulation.ledger.post(f"/v1/accounts/{found}/limit", body, "admin", If_Match="*")
    assert reply.status_code == 200, reply.text


def until_error(simulation: Simulation, run: Any) -> tuple[int, LedgerError]:  # noqa: ANN401 - either kind of run
    taken = 0
    while True:
        try:
            simulation.authorize(run)
        except LedgerError as error:
            return taken, error
        taken += 1


def test_run_with_plan_sees_budget_refusal(simulation: Simulation) -> None:
    with simulation.run() as run:
        run.reserve([{"event": LOUD, "count": 90}])
        take(simulation, run, 5)
        lower(simulation, 0.5)
        taken, error = until_error(simulation, run)
        assert isinstance(error, BudgetExceededError)
        assert error.limit_change is not None
        assert (error.limit_change.epsilon_before, error.epsilon_limit) == (1.0, 0.5)
        assert error.limit_change.actor in str(error)
        assert 0 < taken < 85
        run.complete(5 + taken)
    assert simulation.exact(run)


@pytest.mark.parametrize("ahead", AHEAD.values(), ids=AHEAD)
def test_lowered_limit_ends_steps_after_those_in_hand(simulation: Simulation, ahead: dict[str, Any]) -> None:
    """Steps in hand when the limit changes are charged, also above it; the next call ends them."""
    run = simulation.run(**ahead)
    take(simulation, run, 31)
    lower(simulation, 0.2)
    taken, error = until_error(simulation, run)
    assert taken <= 2 * ahead.get("authorize_every", 0)
    assert isinstance(error, BudgetExceededError)
    assert error.limit_change is not None
    assert simulation.charged(run) == simulation.released[run.id]
    assert run.refresh().status == ("overdrawn" if taken else "active")
    assert simulation.sound()
