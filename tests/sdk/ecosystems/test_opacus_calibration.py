"""Noise for a loop of Opacus, calibrated before its account is opened."""

import uuid

import pytest
from opacus import PrivacyEngine
from opacus.accountants.utils import get_noise_multiplier

from epsilon_ledger import BudgetExceededError, EventCount, LedgerClient, Limit, gaussian, poisson_sampled
from epsilon_ledger.opacus import UnsupportedTrainingError, attach, plan_training
from tests.sdk.ecosystems.conftest import BATCH, HOOKS_WARN, SEARCH_WARNS, N, make_private, small_loader

EPOCHS = 2


@HOOKS_WARN
@SEARCH_WARNS
def test_a_planned_loop_fits_its_limit_with_less_noise_than_opacus_finds(
    engine: PrivacyEngine, admin: LedgerClient, trainer: LedgerClient
) -> None:
    loader = small_loader()
    plan = plan_training(trainer, loader, epochs=EPOCHS, target_epsilon=2.0, target_delta=1e-5)
    theirs = get_noise_multiplier(
        target_epsilon=2.0, target_delta=1e-5, sample_rate=BATCH / N, epochs=EPOCHS, accountant="rdp"
    )
    assert plan.planned == {"event": poisson_sampled(BATCH / N, gaussian(plan.noise_multiplier)), "count": plan.steps}
    assert plan.noise_multiplier_without_plan is not None
    assert plan.noise_multiplier < 0.97 * theirs < plan.noise_multiplier_without_plan
    population = f"people-{uuid.uuid4().hex[:8]}"
    limit = Limit(epsilon=2.0, delta=1e-5)
    admin.create_population(
        population,
        privacy_unit="person",
        neighboring_relation="add_or_remove_one",
        limit=limit,
        planned=[plan.planned],
    )
    budget = admin.create_budget("digits", parent=population, limit=limit, planned=[plan.planned]).path
    with trainer.create_run("digits", budget=budget) as run:
        attach(engine, run)
        training = make_private(engine, loader, noise_multiplier=plan.noise_multiplier)
        assert sum(training.epoch() for _ in range(EPOCHS)) == plan.steps
        with pytest.raises(BudgetExceededError):
            training.epoch()


def test_a_loop_that_no_noise_lets_fit_is_refused(trainer: LedgerClient) -> None:
    others = [EventCount(event=gaussian(0.1), count=1)]
    with pytest.raises(UnsupportedTrainingError, match="The other planned events alone exceed"):
        plan_training(
            trainer, small_loader(), epochs=EPOCHS, target_epsilon=2.0, target_delta=1e-5, other_events=others
        )
