"""What an attached Opacus optimizer asks for, step by step, and how many steps it expects."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from opacus import PrivacyEngine
from opacus.optimizers import DPOptimizer
from opacus.schedulers import ExponentialNoise

from epsilon_ledger import BudgetExceededError, LedgerClient, LedgerUnavailableError, gaussian, poisson_sampled
from epsilon_ledger.monitor import PrivacyMonitor
from epsilon_ledger.opacus import UnsupportedTrainingError, attach
from tests.frameworks.conftest import STEP, Q, make_private, small_loader
from tests.sdk.fake_ledger import STEPS_PER_EPOCH, FakeRun, N, open_budget
from tests.sdk.wire import Fault

EPOCHS = 3
STEPS = EPOCHS * STEPS_PER_EPOCH


def test_two_lines_are_added_to_ordinary_script(engine: PrivacyEngine, run: FakeRun) -> None:
    attach(engine, run)
    training = make_private(engine)
    before = training.parameters()
    assert training.epoch() == STEPS_PER_EPOCH
    assert run.asked == [STEP] * STEPS_PER_EPOCH
    assert run.expected_steps is None
    assert not all(map(torch.equal, before, training.parameters()))
    assert (run.epsilon, run.used) == (2.0, 0.008)


def test_refusal_leaves_every_parameter_as_it_was(engine: PrivacyEngine) -> None:
    run = FakeRun(capacity=3)
    attach(engine, run)
    training = make_private(engine)

    def momentum() -> list[torch.Tensor]:
        state = training.optimizer.state_dict()["state"]
        return [entry["momentum_buffer"].clone() for entry in state.values()]

    batches = iter(training.loader)
    for _ in range(3):
        training.step(next(batches))
    moved = momentum()
    with pytest.raises(BudgetExceededError):
        training.step(next(batches))
    assert training.is_unchanged()
    assert all(map(torch.equal, moved, momentum()))
    # What was noisy is gone, and so is what was not.
    assert all(p.grad is p.grad_sample is p.summed_grad is None for p in training.optimizer.params)
    assert engine.accountant.events == ({"event": STEP, "count": 3},)


def test_noise_scheduler_is_followed(engine: PrivacyEngine, run: FakeRun) -> None:
    attach(engine, run)
    training = make_private(engine)
    scheduler = ExponentialNoise(training.optimizer, gamma=0.5)
    for batch, _ in zip(training.loader, range(3), strict=False):
        training.step(batch)
        scheduler.step()
    assert run.asked == [poisson_sampled(Q, gaussian(z)) for z in (1.0, 0.5, 0.25)]
    assert engine.accountant.history == [(1.0, Q, 1), (0.5, Q, 1), (0.25, Q, 1)]


def test_training_goes_on_with_scheduled_noise_after_lost_answer(engine: PrivacyEngine, run: FakeRun) -> None:
    training = make_private(engine)
    attach(training.optimizer, run, data_loader=training.loader, public_size=N)
    scheduler = ExponentialNoise(training.optimizer, gamma=0.5)
    batches = iter(training.loader)
    training.step(next(batches))
    scheduler.step()
    run.ledger.fails(Fault.UNHEARD)
    with pytest.raises(LedgerUnavailableError):
        training.step(next(batches))
    assert training.is_unchanged()
    scheduler.step()
    training.step(next(batches))
    charged = {key: body["event"] for key, body in zip(run.ledger.keys, run.ledger.bodies, strict=True)}
    assert list(charged.values()) == [poisson_sampled(Q, gaussian(z)) for z in (1.0, 0.5, 0.25)]
    assert run.next_step == run.ledger.next_step == 3


def test_accumulated_batches_are_stopped(engine: PrivacyEngine, run: FakeRun) -> None:
    training = make_private(engine)
    attach(training.optimizer, run, data_loader=training.loader)
    training.model.allow_grad_accumulation()
    before = training.parameters()
    x, y = torch.randn(3, 4), torch.tensor([0, 1, 0])
    for _ in range(2):
        training.criterion(training.model(x), y).backward()
    with pytest.raises(UnsupportedTrainingError, match="2 batches were accumulated"):
        training.optimizer.step()
    assert all(map(torch.equal, before, training.parameters()))
    assert run.asked == []


TERMS: list[dict[str, Any]] = [
    {},
    {"sampling_probability": 0.125},
    {"event": lambda made: gaussian(made.noise_multiplier)},
]


@pytest.mark.parametrize("terms", TERMS)
def test_optimizer_that_is_attached_twice_asks_once(engine: PrivacyEngine, run: FakeRun, terms: dict[str, Any]) -> None:
    attach(engine, run)
    training = make_private(engine)
    attach(training.optimizer, run, **terms)
    training.epoch()
    charged = gaussian(1.0) if "event" in terms else STEP
    assert run.asked == [charged] * STEPS_PER_EPOCH
    assert engine.accountant.events == ({"event": charged, "count": STEPS_PER_EPOCH},)


def test_wrong_calls_are_told_what_would_be_right(engine: PrivacyEngine, run: FakeRun) -> None:
    with pytest.raises(TypeError, match="the optimizer that its make_private returned"):
        attach(torch.optim.SGD([torch.zeros(1, requires_grad=True)]), run)
    with pytest.raises(ValueError, match="without data_loader"):
        attach(engine, run, data_loader=small_loader())
    training = make_private(engine)
    with pytest.raises(ValueError, match="make_private returned, or attach the privacy engine before"):
        attach(training.optimizer, run)
    quieter = type("Quieter", (DPOptimizer,), {})(
        training.optimizer.original_optimizer, noise_multiplier=1.0, max_grad_norm=1.0, expected_batch_size=8
    )
    with pytest.raises(UnsupportedTrainingError, match=r"Quieter costs is not known here\. Give event="):
        attach(quieter, run, data_loader=training.loader)
    with pytest.raises(ValueError, match="made an optimizer private already"):
        attach(engine, run)
    with pytest.raises(ValueError, match="who is charged"):
        attach(training.optimizer, None)
    attach(training.optimizer, run, data_loader=training.loader)
    with pytest.raises(ValueError, match="charged to run_1: one run pays"):
        attach(training.optimizer, FakeRun(id="run_2"), data_loader=training.loader)


# The run is told how long the loop is: a refusal answers for all steps that are left of it.


def refusal_of(step: Callable[[], object]) -> BudgetExceededError:
    """Take steps, or epochs, until one is refused."""
    with pytest.raises(BudgetExceededError) as refused:  # noqa: PT012 - whichever step it is
        while True:
            step()
    return refused.value


@pytest.mark.parametrize("target", ["engine", "optimizer"])
def test_refusal_of_opacus_loop_answers_for_its_epochs(
    engine: PrivacyEngine, admin: LedgerClient, trainer: LedgerClient, target: str
) -> None:
    run = trainer.create_run("digits", budget=open_budget(admin, 3.0))
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
    run.authorize(5, event=gaussian(1.0))
    attach(engine, run, epochs=EPOCHS, earlier_steps="charged")
    make_private(engine)
    assert run.expected_steps == STEPS


def test_monitor_expects_its_epochs(admin: LedgerClient, trainer: LedgerClient) -> None:
    data: dict[str, Any] = {"num_samples": 1000, "batch_size": 50, "epochs": 50}
    run = trainer.create_run("digits", budget=open_budget(admin, 2.0))
    monitor = PrivacyMonitor(trainer, run, **data)
    assert run.expected_steps == 50 * 20
    assert refusal_of(monitor.step_begin).steps_needed == 1000 - run.next_step
    resumed = trainer.resume_run(run.state_dict())
    PrivacyMonitor(trainer, resumed, **data)
    assert resumed.expected_steps == 1000
