"""The ledger's epsilon beside Opacus' own, on a real server."""

import math

import pytest
from opacus import PrivacyEngine
from opacus.accountants import RDPAccountant
from opacus.accountants.analysis import rdp as opacus_rdp

from epsilon_ledger import BudgetExceededError, EventCount, LedgerClient, gaussian, poisson_sampled
from epsilon_ledger.opacus import LedgerAccountant, attach
from tests.frameworks.conftest import HOOKS_WARN, make_private
from tests.sdk.fake_runs import BATCH, N, open_budget
from tests.soak import thinned

PLANS = [  # sampling probability, noise multiplier, steps, delta
    (256 / 60_000, 1.1, 14_040, 1e-5),  # Opacus' MNIST example, 60 epochs
    (512 / 50_000, 1.0, 8_790, 1e-5),
    (0.01, 1.1, 1_000, 1e-5),
    (0.01, 0.7, 500, 1e-5),
    (0.01, 4.0, 20_000, 1e-6),
    (0.001, 0.6, 10_000, 1e-6),
    (0.001, 1.0, 100_000, 1e-7),
    (0.001, 0.8, 50_000, 1e-8),
    (1e-4, 0.5, 20_000, 1e-6),
    (1e-4, 0.7, 1_000_000, 1e-9),
    (1e-5, 0.4, 100_000, 1e-6),
    (0.02, 1.5, 300, 1e-4),
    (0.05, 2.0, 2_000, 1e-5),
    (0.05, 0.9, 100, 1e-3),
    (0.1, 3.0, 500, 1e-5),
    (0.125, 1.0, 80, 1e-5),
    (0.25, 5.0, 400, 1e-5),
    (0.5, 10.0, 100, 1e-6),
    (1.0, 20.0, 200, 1e-5),
    (1.0, 4.0, 3, 1e-5),
]


def plan(q: float, z: float, steps: int) -> list[EventCount]:
    event = gaussian(z) if q == 1.0 else poisson_sampled(q, gaussian(z))
    return [EventCount(event=event, count=steps)]


def opacus_epsilon(q: float, z: float, steps: int, delta: float, order: float) -> float:
    (rdp,) = opacus_rdp.compute_rdp(q=q, noise_multiplier=z, steps=steps, orders=[order])
    return float(rdp) + math.log1p(-1 / order) - (math.log(delta) + math.log(order)) / (order - 1)


@pytest.mark.parametrize("plans", thinned([PLANS[::3], PLANS], 2), ids=["some", "all"])
def test_epsilon_of_ledger_is_opacus_own_at_its_order_and_no_order_is_much_better(
    trainer: LedgerClient, plans: list[tuple[float, float, int, float]]
) -> None:
    gaps = []
    for q, z, steps, delta in plans:
        ours = trainer.compute_epsilon(plan(q, z, steps), delta=delta)
        order = ours.optimal_order
        assert order is not None
        # Both formulas are one; the ledger rounds each step up by 1e-9 of itself and keeps 2^-44 nats.
        theirs = opacus_epsilon(q, z, steps, delta, order)
        assert theirs < ours.epsilon < theirs * (1 + 5e-9)
        # What remains is which orders are tried. docs/explanation/accounting.md: the grid costs 0.1 % at most.
        best = min(opacus_epsilon(q, z, steps, delta, order * (1 + k / 1_000)) for k in range(-50, 51))
        assert best <= ours.epsilon <= best * 1.001
        accountant = RDPAccountant()
        accountant.history = [(z, q, steps)]
        gaps.append(ours.epsilon / accountant.get_epsilon(delta) - 1)
    # Measured: below Opacus in 16 of the 20 plans, by up to 0.19 %, equal in one, above in 3, by up to 0.018 %: there
    # Opacus' decimal order lies nearer to the best one (4.4 beside 4.396, and the curve is steep).
    assert sum(gap > 1e-9 for gap in gaps) <= 3
    assert max(gaps) < 2e-4
    assert sum(gaps) < 0


@HOOKS_WARN
def test_real_training_is_stopped_at_its_budget(
    engine: PrivacyEngine, admin: LedgerClient, trainer: LedgerClient
) -> None:
    with trainer.create_run("digits", budget=open_budget(admin, 2.0)) as run:
        engine.accountant = LedgerAccountant(run, client=trainer)
        attach(engine, run)
        training = make_private(engine, noise_multiplier=4.0)
        with pytest.raises(BudgetExceededError) as refusal:
            sum(training.epoch() for _ in range(100))
    taken = refusal.value.first_step
    assert training.is_unchanged()
    assert taken == len(engine.accountant) > 20
    state = trainer.get_run(run.id).state
    assert (state.status, state.next_step) == ("completed", taken)
    assert engine.get_epsilon(1e-5) == state.epsilon <= 2.0
    expected = trainer.compute_epsilon(plan(BATCH / N, 4.0, taken), delta=1e-6).epsilon
    assert engine.get_epsilon(1e-6) == expected
    resumed = LedgerAccountant(trainer.get_run(run.id), client=trainer)
    with pytest.raises(ValueError, match=f"it saw 0 of the run's {taken} steps"):
        resumed.get_epsilon(1e-6)
