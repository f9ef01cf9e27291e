"""What an attached Opacus optimizer asks for, step by step."""

from typing import Any

import httpx2
import pytest
import torch
from opacus import PrivacyEngine
from opacus.optimizers import DPOptimizer
from opacus.schedulers import ExponentialNoise

from epsilon_ledger import BudgetExceededError, LedgerUnavailableError, Run, gaussian, poisson_sampled
from epsilon_ledger.opacus import UnsupportedTrainingError, attach
from tests.frameworks.conftest import HOOKS_WARN, make_private, small_loader
from tests.sdk.fake_ledger import TRIES, FakeLedger, Fault
from tests.sdk.fake_runs import BATCH, FakeRun, N

Q = BATCH / N  # a power of 2, which random floats meet exactly
STEP = poisson_sampled(Q, gaussian(1.0))

pytestmark = HOOKS_WARN


def test_two_lines_are_added_to_ordinary_script(engine: PrivacyEngine, fake_run: FakeRun) -> None:
    attach(engine, fake_run.as_run)
    training = make_private(engine)
    before = training.parameters()
    assert training.epoch() == len(fake_run.asked) == N // BATCH
    assert fake_run.asked == [STEP] * (N // BATCH)
    assert not all(map(torch.equal, before, training.parameters()))
    assert engine.get_epsilon(1e-5) == fake_run.state.epsilon == 1.0


def test_refusal_leaves_every_parameter_as_it_was(engine: PrivacyEngine) -> None:
    run = FakeRun(capacity=3)
    attach(engine, run.as_run)
    training = make_private(engine)
    batches = iter(training.loader)
    for _ in range(3):
        training.step(next(batches))
    before, state = training.parameters(), training.optimizer.state_dict()
    momentum = [entry["momentum_buffer"].clone() for entry in state["state"].values()]
    with pytest.raises(BudgetExceededError):
        training.step(next(batches))
    assert all(map(torch.equal, before, training.parameters()))
    after = [entry["momentum_buffer"] for entry in training.optimizer.state_dict()["state"].values()]
    assert all(map(torch.equal, momentum, after))
    # What was noisy is gone, and so is what was not.
    assert all(p.grad is p.grad_sample is p.summed_grad is None for p in training.optimizer.params)
    assert engine.accountant.events == ({"event": STEP, "count": 3},)


def test_noise_scheduler_is_followed(engine: PrivacyEngine, fake_run: FakeRun) -> None:
    attach(engine, fake_run.as_run)
    training = make_private(engine)
    scheduler = ExponentialNoise(training.optimizer, gamma=0.5)
    for batch, _ in zip(training.loader, range(3), strict=False):
        training.step(batch)
        scheduler.step()
    assert fake_run.asked == [poisson_sampled(Q, gaussian(z)) for z in (1.0, 0.5, 0.25)]
    assert engine.accountant.history == [(1.0, Q, 1), (0.5, Q, 1), (0.25, Q, 1)]


def test_training_goes_on_with_scheduled_noise_after_lost_answer(
    engine: PrivacyEngine, run: Run, ledger: FakeLedger
) -> None:
    training = make_private(engine)
    attach(training.optimizer, run, data_loader=training.loader, public_size=N)
    scheduler = ExponentialNoise(training.optimizer, gamma=0.5)
    batches = iter(training.loader)
    training.step(next(batches))
    scheduler.step()
    ledger.faults.extend([Fault(after=httpx2.ReadTimeout("no answer"))] * TRIES)
    before = training.parameters()
    with pytest.raises(LedgerUnavailableError):
        training.step(next(batches))
    assert all(map(torch.equal, before, training.parameters()))
    scheduler.step()
    training.step(next(batches))
    charged = {key: body["event"] for key, body in zip(ledger.keys, ledger.bodies, strict=True)}
    assert list(charged.values()) == [poisson_sampled(Q, gaussian(z)) for z in (1.0, 0.5, 0.25)]
    assert run.next_step == ledger.next_step == 3


def test_accumulated_batches_are_stopped(engine: PrivacyEngine, fake_run: FakeRun) -> None:
    training = make_private(engine)
    attach(training.optimizer, fake_run.as_run, data_loader=training.loader)
    training.model.allow_grad_accumulation()
    before = training.parameters()
    x, y = torch.randn(3, 4), torch.tensor([0, 1, 0])
    for _ in range(2):
        training.criterion(training.model(x), y).backward()
    with pytest.raises(UnsupportedTrainingError, match="2 batches were accumulated"):
        training.optimizer.step()
    assert all(map(torch.equal, before, training.parameters()))
    assert fake_run.asked == []


TERMS: list[dict[str, Any]] = [{}, {"sampling_probability": 0.125}, {"event": lambda _: STEP}]


@pytest.mark.parametrize("terms", TERMS)
def test_optimizer_that_is_attached_twice_asks_once(
    engine: PrivacyEngine, fake_run: FakeRun, terms: dict[str, Any]
) -> None:
    attach(engine, fake_run.as_run)
    training = make_private(engine)
    attach(training.optimizer, fake_run.as_run, **terms)
    training.epoch()
    assert fake_run.asked == [STEP] * (N // BATCH)
    assert engine.accountant.events == ({"event": STEP, "count": N // BATCH},)


def test_event_of_function_is_charged(engine: PrivacyEngine, fake_run: FakeRun) -> None:
    training = make_private(engine, small_loader(shuffle=True), poisson_sampling=False)
    attach(training.optimizer, fake_run.as_run, event=lambda optimizer: gaussian(optimizer.noise_multiplier / 2))
    training.epoch()
    assert fake_run.asked == [gaussian(0.5)] * (N // BATCH)


def test_wrong_calls_are_told_what_would_be_right(engine: PrivacyEngine, fake_run: FakeRun) -> None:
    run = fake_run.as_run
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
    with pytest.raises(ValueError, match=r"must be in \(0, 1\]"):
        attach(training.optimizer, run, sampling_probability=1.5)
    attach(training.optimizer, run, data_loader=training.loader)
    with pytest.raises(ValueError, match="charged to run_1: one run pays"):
        attach(training.optimizer, FakeRun(id="run_2").as_run, data_loader=training.loader)
