"""The adapters tell the run how long the loop is: a refusal answers for all steps that are left of it."""

from collections.abc import Callable
from typing import Any

import lightning.pytorch as lightning
import pytest
from opacus import PrivacyEngine

from epsilon_ledger import BudgetExceededError, LedgerClient, Run, gaussian
from epsilon_ledger.lightning import LedgerCallback
from epsilon_ledger.monitor import PrivacyMonitor
from epsilon_ledger.opacus import attach
from tests.frameworks.conftest import make_private
from tests.frameworks.test_lightning import fit
from tests.frameworks.test_lightning import pytestmark as lightning_marks
from tests.sdk.fake_runs import STEPS_PER_EPOCH, FakeRun, open_budget

EPOCHS = 3
STEPS = EPOCHS * STEPS_PER_EPOCH

pytestmark = lightning_marks


def new_run(admin: LedgerClient, trainer: LedgerClient, epsilon: float = 3.0) -> Run:
    """A run whose budget admits some of the steps, and not all of them."""
    return trainer.create_run("digits", budget=open_budget(admin, epsilon))


def refusal_of(step: Callable[[], object]) -> BudgetExceededError:
    """Take steps, or epochs, until one is refused."""
    try:
        for _ in range(1000):
            step()
    except BudgetExceededError as refusal:
        return refusal
    raise AssertionError("nothing was refused")


@pytest.mark.parametrize("target", ["engine", "optimizer"])
def test_refusal_of_opacus_loop_answers_for_its_epochs(
    engine: PrivacyEngine, admin: LedgerClient, trainer: LedgerClient, target: str
) -> None:
    run = new_run(admin, trainer)
    if target == "engine":
        attach(engine, run, epochs=EPOCHS)
    training = make_private(engine)
    if target == "optimizer":
        attach(training.optimizer, run, data_loader=training.loader, epochs=EPOCHS)
    assert run.expected_steps == STEPS
    refusal = refusal_of(training.epoch)
    assert 0 < run.next_step < STEPS
    assert refusal.steps_needed == STEPS - run.next_step
    assert refusal.more_noise is not None
    assert refusal.more_noise.noise_multiplier is not None
    training.optimizer.noise_multiplier = refusal.more_noise.noise_multiplier
    while run.next_step < STEPS:
        for batch in training.loader:
            training.step(batch)
            if run.next_step == STEPS:
                break
    assert refusal_of(training.epoch).steps_needed == 1


def test_resumed_opacus_loop_expects_what_is_left(engine: PrivacyEngine) -> None:
    run = FakeRun()
    run.asked = [gaussian(1.0)] * 5
    attach(engine, run.as_run, epochs=EPOCHS, earlier_steps="charged")
    make_private(engine)
    assert run.expected_steps == STEPS


def test_attach_without_epochs_expects_no_steps(engine: PrivacyEngine, fake_run: FakeRun) -> None:
    attach(engine, fake_run.as_run)
    make_private(engine)
    assert fake_run.expected_steps is None
    with pytest.raises(ValueError, match="epochs must be at least 1, not 0"):
        attach(engine, fake_run.as_run, epochs=0)


@pytest.mark.parametrize(
    ("terms", "steps"),
    [
        ({"max_epochs": EPOCHS}, STEPS),
        ({"max_epochs": -1, "max_steps": 20}, 20),
        ({"max_epochs": EPOCHS, "max_steps": 10}, 10),
        ({"max_epochs": EPOCHS, "limit_train_batches": 4}, EPOCHS * 4),
    ],
)
def test_lightning_fit_expects_its_steps(
    engine: PrivacyEngine, fake_run: FakeRun, terms: dict[str, Any], steps: int
) -> None:
    fit(lightning, make_private(engine), LedgerCallback(fake_run.as_run), **terms)
    assert fake_run.expected_steps == steps == len(fake_run.asked)


def test_monitor_expects_its_epochs(admin: LedgerClient, trainer: LedgerClient) -> None:
    data: dict[str, Any] = {"num_samples": 1000, "batch_size": 50}
    run = new_run(admin, trainer, epsilon=2.0)
    monitor = PrivacyMonitor(trainer, run, **data, epochs=50)
    assert run.expected_steps == 50 * 20
    assert refusal_of(monitor.step_begin).steps_needed == 1000 - run.next_step
    PrivacyMonitor(trainer, trainer.get_run(run.id), **data, epochs=50)
    resumed = trainer.resume_run(run.state_dict())
    PrivacyMonitor(trainer, resumed, **data, epochs=50)
    assert resumed.expected_steps == 1000
