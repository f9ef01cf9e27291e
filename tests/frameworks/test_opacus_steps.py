"""What an attached Opacus optimizer asks for, step by step."""

from collections.abc import Callable
from typing import cast

import httpx2
import pytest
import torch
from opacus import PrivacyEngine
from opacus.optimizers import DPOptimizer
from opacus.schedulers import ExponentialNoise

from epsilon_ledger import (
    AsyncRun,
    BudgetExceededError,
    Event,
    LedgerClient,
    LedgerUnavailableError,
    Run,
    RunStateConflictError,
    Trial,
    TrialExceededError,
    gaussian,
    poisson_sampled,
)
from epsilon_ledger.opacus import LedgerAccountant, UnsupportedTrainingError, attach
from tests.frameworks.conftest import HOOKS_WARN, make_private, small_loader
from tests.sdk.fake_ledger import TRIES, FakeLedger, Fault
from tests.sdk.fake_runs import BATCH, FakeRun, N, open_budget

Q = BATCH / N  # a power of 2, which random floats meet exactly
STEP = poisson_sampled(Q, gaussian(1.0))

pytestmark = HOOKS_WARN


def test_two_lines_are_added_to_the_ordinary_script(engine: PrivacyEngine, fake_run: FakeRun) -> None:
    attach(engine, fake_run.as_run)
    training = make_private(engine)
    before = training.parameters()
    assert training.epoch() == len(fake_run.asked) == N // BATCH
    assert fake_run.asked == [STEP] * (N // BATCH)
    assert not all(map(torch.equal, before, training.parameters()))
    assert engine.get_epsilon(1e-5) == fake_run.state.epsilon == 1.0


def test_a_trial_of_a_sweep_is_attached_like_a_run(engine: PrivacyEngine, fake_run: FakeRun) -> None:
    trial = Trial(fake_run.as_run.state, 0, [{"event": STEP, "count": N // BATCH}])
    attach(engine, trial)
    training = make_private(engine)
    assert training.epoch() == trial.next_step == N // BATCH
    assert engine.get_epsilon(1e-5) == fake_run.state.epsilon
    with pytest.raises(TrialExceededError):
        training.epoch()


def test_an_optimizer_is_attached_after_it_was_made(engine: PrivacyEngine, fake_run: FakeRun) -> None:
    training = make_private(engine)
    attach(training.optimizer, fake_run.as_run, data_loader=training.loader)
    assert fake_run.asked == [STEP] * training.epoch()
    # The engine's own accountant goes on counting, behind the ledger.
    assert engine.accountant.history == [(1.0, Q, N // BATCH)]


def test_a_refusal_leaves_every_parameter_as_it_was(engine: PrivacyEngine) -> None:
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


def test_a_noise_scheduler_is_followed(engine: PrivacyEngine, fake_run: FakeRun) -> None:
    attach(engine, fake_run.as_run)
    training = make_private(engine)
    scheduler = ExponentialNoise(training.optimizer, gamma=0.5)
    for batch, _ in zip(training.loader, range(3), strict=False):
        training.step(batch)
        scheduler.step()
    assert fake_run.asked == [poisson_sampled(Q, gaussian(z)) for z in (1.0, 0.5, 0.25)]
    assert engine.accountant.history == [(1.0, Q, 1), (0.5, Q, 1), (0.25, Q, 1)]


def test_after_a_lost_answer_a_noise_scheduler_does_not_stop_the_training(
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


def test_an_event_of_ones_own_is_asked_for(engine: PrivacyEngine, fake_run: FakeRun) -> None:
    seen: list[float] = []

    def half(optimizer: DPOptimizer) -> Event:
        seen.append(optimizer.noise_multiplier)
        return gaussian(optimizer.noise_multiplier / 2)

    training = make_private(engine, small_loader(shuffle=True), poisson_sampling=False)
    attach(training.optimizer, fake_run.as_run, event=half)
    training.epoch()
    assert fake_run.asked == [gaussian(0.5)] * len(seen)


def test_an_optimizer_of_an_unknown_kind_is_turned_away(engine: PrivacyEngine, fake_run: FakeRun) -> None:
    class Quieter(DPOptimizer):
        pass

    training = make_private(engine)
    quieter = Quieter(
        training.optimizer.original_optimizer, noise_multiplier=1.0, max_grad_norm=1.0, expected_batch_size=8
    )
    with pytest.raises(UnsupportedTrainingError, match=r"Quieter costs is not known here\. Give event="):
        attach(quieter, fake_run.as_run, data_loader=training.loader)


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


def test_a_hook_that_comes_later_does_not_displace_the_ledger(engine: PrivacyEngine, fake_run: FakeRun) -> None:
    attach(engine, fake_run.as_run)
    training = make_private(engine)
    seen: list[int] = []
    training.optimizer.attach_step_hook(lambda _: seen.append(len(fake_run.asked)))
    training.epoch()
    assert seen == list(range(1, N // BATCH + 1))


Again = Callable[[PrivacyEngine, DPOptimizer, FakeRun], None]


@pytest.mark.parametrize(
    "again",
    [
        lambda _, optimizer, run: attach(optimizer, run),
        lambda _, optimizer, run: attach(optimizer, run, sampling_probability=0.125),
        lambda _, optimizer, run: attach(optimizer, run, event=lambda _: STEP),
    ],
)
def test_an_optimizer_that_is_attached_twice_asks_once(engine: PrivacyEngine, fake_run: FakeRun, again: Again) -> None:
    attach(engine, fake_run.as_run)
    training = make_private(engine)
    again(engine, training.optimizer, fake_run)
    training.epoch()
    assert fake_run.asked == [STEP] * (N // BATCH)
    assert isinstance(engine.accountant, LedgerAccountant)
    assert engine.accountant.events == ({"event": STEP, "count": N // BATCH},)


def test_a_step_is_charged_to_one_run(engine: PrivacyEngine, fake_run: FakeRun) -> None:
    attach(engine, fake_run.as_run)
    training = make_private(engine)
    with pytest.raises(ValueError, match="charged to run_1: one run pays"):
        attach(training.optimizer, FakeRun(id="run_2").as_run, data_loader=training.loader)


def test_every_optimizer_that_an_engine_makes_is_attached(engine: PrivacyEngine, fake_run: FakeRun) -> None:
    attach(engine, fake_run.as_run)
    loader = small_loader()
    make_private(engine, loader).epoch()
    make_private(engine, loader, noise_multiplier=2.0).epoch()
    assert fake_run.asked == [STEP] * 8 + [poisson_sampled(Q, gaussian(2.0))] * 8


def test_a_run_that_must_be_awaited_is_turned_away(engine: PrivacyEngine) -> None:
    awaited = cast("Run", AsyncRun.__new__(AsyncRun))
    with pytest.raises(TypeError, match="create the run with LedgerClient"):
        attach(engine, awaited)
    with pytest.raises(TypeError, match="create the run with LedgerClient"):
        attach(make_private(engine).optimizer, awaited, sampling_probability=1.0)


def test_wrong_calls_are_told_what_would_be_right(engine: PrivacyEngine, fake_run: FakeRun) -> None:
    run = fake_run.as_run
    with pytest.raises(TypeError, match="the optimizer that its make_private returned"):
        attach(torch.optim.SGD([torch.zeros(1, requires_grad=True)]), run)
    with pytest.raises(ValueError, match="without data_loader"):
        attach(engine, run, data_loader=small_loader())
    training = make_private(engine)
    with pytest.raises(ValueError, match="make_private returned, or attach the privacy engine before"):
        attach(training.optimizer, run)
    with pytest.raises(ValueError, match="made an optimizer private already"):
        attach(engine, run)
    with pytest.raises(ValueError, match="who is charged"):
        attach(training.optimizer, None)
    with pytest.raises(ValueError, match=r"must be in \(0, 1\]"):
        attach(training.optimizer, run, sampling_probability=1.5)


def test_an_empty_batch_is_a_step(engine: PrivacyEngine, fake_run: FakeRun) -> None:
    attach(engine, fake_run.as_run)
    training = make_private(engine)
    training.loader.batch_sampler.sample_rate = 1e-9
    x, y = batch = next(iter(training.loader))
    assert len(x) == len(y) == 0
    training.step(batch)
    assert fake_run.asked == [poisson_sampled(2**-24, gaussian(1.0))]


@pytest.mark.parametrize("end", ["complete", "abort", "pause"])
def test_a_run_that_takes_no_steps_is_told_at_the_first_one(
    engine: PrivacyEngine, admin: LedgerClient, end: str
) -> None:
    run = admin.create_run("ended", budget=open_budget(admin, 2.0))
    getattr(run, end)()
    training = make_private(engine)
    attach(training.optimizer, run, data_loader=training.loader)
    with pytest.raises(RunStateConflictError, match=run.status):
        training.epoch()
    assert training.is_unchanged()
    assert run.refresh().next_step == 0
