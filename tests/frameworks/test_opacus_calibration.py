"""Noise for a loop of Opacus, calibrated before its account is opened, or to a run."""

from typing import Any

import pytest
from opacus import PrivacyEngine
from opacus.accountants.utils import get_noise_multiplier

from epsilon_ledger import (
    BudgetExceededError,
    EventCount,
    LedgerClient,
    Limit,
    Run,
    Trial,
    adaptive_clipping,
    gaussian,
    poisson_sampled,
    self_composed,
)
from epsilon_ledger._opacus.calibration import TOLERANCE
from epsilon_ledger.opacus import PlannedTraining, UnsupportedTrainingError, attach, plan_training
from tests.frameworks.conftest import ADAPTIVE, Q, Training, make_private, new_engine, small_loader
from tests.sdk.fake_ledger import BATCH, FakeRun, N, open_budget

EPOCHS = 2
STEPS = EPOCHS * N // BATCH
GOAL: dict[str, Any] = {"epochs": EPOCHS, "target_epsilon": 2.0, "target_delta": 1e-5}


def make_private_with_epsilon(engine: PrivacyEngine, **terms: object) -> Training:
    return make_private(engine, make="make_private_with_epsilon", **GOAL | terms)


def planned_run(admin: LedgerClient, trainer: LedgerClient) -> tuple[PlannedTraining, Run]:
    plan = plan_training(trainer, small_loader(), **GOAL)
    budget, limit = open_budget(admin, 50.0), Limit(epsilon=2.0, delta=1e-5)
    return plan, trainer.create_run("digits", budget=budget, limit=limit, planned=[plan.planned])


@pytest.mark.filterwarnings("ignore:Optimal order is the:UserWarning")  # Opacus tries multipliers until one fits
def test_planned_loop_fits_its_limit_with_less_noise_than_opacus_finds(
    engine: PrivacyEngine, admin: LedgerClient, trainer: LedgerClient
) -> None:
    loader = small_loader()
    plan = plan_training(trainer, loader, **GOAL)
    theirs = get_noise_multiplier(**GOAL, sample_rate=Q, accountant="rdp")
    assert plan.planned == {"event": poisson_sampled(Q, gaussian(plan.noise_multiplier)), "count": plan.steps}
    assert plan.noise_multiplier_without_plan is not None
    assert plan.noise_multiplier < 0.97 * theirs < plan.noise_multiplier_without_plan
    with trainer.create_run("digits", budget=open_budget(admin, 2.0, planned=[plan.planned])) as run:
        attach(engine, run)
        training = make_private(engine, loader, noise_multiplier=plan.noise_multiplier)
        assert sum(training.epoch() for _ in range(EPOCHS)) == plan.steps
        with pytest.raises(BudgetExceededError):
            training.epoch()


def test_engine_takes_noise_that_its_run_has_planned_and_resumed_run_goes_on_with_it(
    engine: PrivacyEngine, admin: LedgerClient, trainer: LedgerClient
) -> None:
    plan, run = planned_run(admin, trainer)
    attach(engine, run)
    training = make_private_with_epsilon(engine)
    assert training.optimizer.noise_multiplier == plan.noise_multiplier
    training.epoch()
    resumed, again = trainer.resume_run(run.id), new_engine()
    attach(again, resumed)
    training = make_private_with_epsilon(again)
    assert training.optimizer.noise_multiplier == plan.noise_multiplier
    training.epoch()
    assert resumed.next_step == STEPS
    assert 1.99 < resumed.refresh().epsilon <= 2.0
    with pytest.raises(BudgetExceededError):
        training.epoch()
    with pytest.raises(UnsupportedTrainingError, match=f"has taken {STEPS} steps, and the loop has {STEPS}"):
        make_private_with_epsilon(again)


def test_run_without_plan_gets_least_noise_that_its_accounts_admit(
    engine: PrivacyEngine, admin: LedgerClient, trainer: LedgerClient
) -> None:
    run = trainer.create_run("digits", budget=open_budget(admin, 2.0))
    attach(engine, run)
    training = make_private_with_epsilon(engine, target_epsilon=50.0)
    noise = training.optimizer.noise_multiplier
    less = poisson_sampled(Q, gaussian(noise * (1 - 2 * TOLERANCE)))
    with pytest.raises(BudgetExceededError):
        run.preview(STEPS, event=less)
    assert sum(training.epoch() for _ in range(EPOCHS)) == STEPS


@pytest.mark.parametrize("kind", ["adaptive", "shared samples"])
def test_noise_is_found_for_very_event_that_is_charged(
    engine: PrivacyEngine, admin: LedgerClient, trainer: LedgerClient, kind: str
) -> None:
    adaptive = kind == "adaptive"
    run = trainer.create_run("digits", budget=open_budget(admin, 2.0))
    attach(engine, run, releases_per_sample=1 if adaptive else 3)
    bounds = {"unclipped_num_std": 4.0, "max_clipbound": 10.0, "min_clipbound": 0.1}
    training = make_private_with_epsilon(engine, **(ADAPTIVE | bounds if adaptive else {}))
    training.epoch()
    noise = training.optimizer.noise_multiplier
    released = adaptive_clipping(noise) if adaptive else self_composed(gaussian(noise), 3)
    charged = training.optimizer.step_hook.event
    assert charged == poisson_sampled(Q, released)
    assert run.preview(STEPS // 2, event=charged).count == STEPS // 2
    with pytest.raises(BudgetExceededError):
        run.preview(STEPS // 2 + 1, event=charged)


def test_uncalibratable_training_is_refused(
    engine: PrivacyEngine, run: FakeRun, admin: LedgerClient, trainer: LedgerClient
) -> None:
    loud = [EventCount(event=gaussian(0.1), count=1)]
    with pytest.raises(UnsupportedTrainingError, match="The other planned events alone exceed"):
        plan_training(trainer, small_loader(), **GOAL, other_events=loud)
    attach(engine, Trial(run.state, 0, [EventCount(event=gaussian(1.0), count=9)]))
    with pytest.raises(UnsupportedTrainingError, match="a trial's noise is declared by its sweep"):
        make_private_with_epsilon(engine)
    custom = new_engine()
    attach(custom, run, event=lambda _: gaussian(1.0))
    with pytest.raises(UnsupportedTrainingError, match="its events come from event="):
        make_private_with_epsilon(custom)
    real = trainer.create_run("digits", budget=open_budget(admin, 2.0))
    bound = new_engine()
    attach(bound, real)
    with pytest.raises(ValueError, match=r"is at delta 1e-05, not at 1e-06\. Create the run with a limit"):
        make_private_with_epsilon(bound, target_delta=1e-6)
    real.authorize(5, event=gaussian(20.0))
    with pytest.raises(
        UnsupportedTrainingError,
        match=r"it has epsilon \d\.\d+ already, and \d+\.\d % of .* is used\. Create a run with",
    ):
        make_private_with_epsilon(bound, target_epsilon=0.01)


@pytest.mark.filterwarnings("ignore:GDP accounting is experimental:UserWarning")
@pytest.mark.parametrize("accountant", ["prv", "gdp"])
def test_epsilon_in_place_of_tight_accountant_is_that_of_ledger(
    admin: LedgerClient, trainer: LedgerClient, accountant: str
) -> None:
    engine = new_engine(accountant)
    run = trainer.create_run("digits", budget=open_budget(admin, 50.0))
    attach(engine, run)
    training = make_private(engine)
    training.epoch()
    assert engine.get_epsilon(1e-5) == run.refresh().epsilon <= engine.accountant.get_planned_epsilon(1e-5)
    steps = engine.accountant.events
    assert engine.get_epsilon(1e-6) == trainer.compute_epsilon(steps, delta=1e-6).epsilon
