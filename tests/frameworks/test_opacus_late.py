"""What is attached late, or again: the norm that the module clips to, and the steps that were taken before."""

from pathlib import Path

import pytest
import torch
from opacus import PrivacyEngine
from opacus.schedulers import ExponentialGradClip

from epsilon_ledger import EventCount, Trial, gaussian, poisson_sampled
from epsilon_ledger.opacus import UnsupportedTrainingError, attach
from tests.frameworks.conftest import HOOKS_WARN, Training, make_private, small_loader
from tests.sdk.fake_runs import BATCH, FakeRun, N

Q = BATCH / N
STEP = poisson_sampled(Q, gaussian(1.0))

pytestmark = HOOKS_WARN


def test_the_norm_of_the_noise_is_compared_with_the_modules_however_often_it_is_attached(
    engine: PrivacyEngine, fake_run: FakeRun
) -> None:
    attach(engine, fake_run.as_run)
    training = make_private(engine, grad_sample_mode="ghost")
    training.step(next(iter(training.loader)))
    ExponentialGradClip(training.optimizer, gamma=0.1).step()
    attach(training.optimizer, fake_run.as_run, data_loader=training.loader)
    with pytest.raises(
        UnsupportedTrainingError, match=r"norm is 0\.1, .* the module that clips, and it did so to 1\.0"
    ):
        training.step(next(iter(training.loader)))
    training.model.max_grad_norm = 0.1
    training.step(next(iter(training.loader)))
    assert fake_run.asked == [STEP] * 2


def test_a_modules_norm_that_moves_for_one_backward_pass_is_noticed(engine: PrivacyEngine, fake_run: FakeRun) -> None:
    attach(engine, fake_run.as_run)
    training = make_private(engine, grad_sample_mode="ghost")
    x, y = next(iter(training.loader))
    loss = training.criterion(training.model(x), y)
    training.model.max_grad_norm = 10.0
    loss.backward()
    training.model.max_grad_norm = 1.0
    with pytest.raises(UnsupportedTrainingError, match=r"it did so to 10\.0"):
        training.optimizer.step()
    assert fake_run.asked == []


def test_a_gradient_that_no_criterion_of_opacus_clipped_is_not_released(
    engine: PrivacyEngine, fake_run: FakeRun
) -> None:
    attach(engine, fake_run.as_run)
    training = make_private(engine, grad_sample_mode="ghost")
    x, y = next(iter(training.loader))
    torch.nn.functional.cross_entropy(training.model(x), y).backward()
    with pytest.raises(UnsupportedTrainingError, match="No gradient was clipped"):
        training.optimizer.step()
    assert fake_run.asked == []


def test_a_ghost_optimizer_is_attached_with_its_module(engine: PrivacyEngine, fake_run: FakeRun) -> None:
    training = make_private(engine, grad_sample_mode="ghost")
    with pytest.raises(UnsupportedTrainingError, match=r"Give module=\.\.\., what make_private returned first"):
        attach(training.optimizer, fake_run.as_run, data_loader=training.loader)
    # What is refused has changed nothing.
    assert not hasattr(training.optimizer.pre_step.__self__, "source")
    attach(training.optimizer, fake_run.as_run, data_loader=training.loader, module=training.model)
    assert fake_run.asked == [STEP] * training.epoch()


class ReportingRun(FakeRun):
    """A run that is told of steps, too."""

    def report(self, *, events: list[EventCount]) -> None:
        for item in events:
            self.asked += [item["event"]] * item["count"]


def taken_before(engine: PrivacyEngine) -> Training:
    training = make_private(engine)
    training.epoch()
    return training


def test_steps_that_were_taken_before_are_not_passed_over(engine: PrivacyEngine, fake_run: FakeRun) -> None:
    training = taken_before(engine)
    with pytest.raises(UnsupportedTrainingError, match=r"shows 8 steps, and 8 of them were not charged.*'report'"):
        attach(training.optimizer, fake_run.as_run, data_loader=training.loader)
    assert fake_run.asked == []
    attach(training.optimizer, fake_run.as_run, data_loader=training.loader, earlier_steps="charged")
    training.epoch()
    assert fake_run.asked == [STEP] * 8


def test_steps_that_were_taken_before_are_reported_if_the_user_says_so(engine: PrivacyEngine) -> None:
    run = ReportingRun()
    training = taken_before(engine)
    attach(training.optimizer, run.as_run, data_loader=training.loader, earlier_steps="report")
    assert run.asked == [STEP] * 8
    training.epoch()
    assert run.asked == [STEP] * 16
    # What was reported, and what the hook has counted since, is not reported again.
    attach(training.optimizer, run.as_run, data_loader=training.loader, earlier_steps="report")
    assert run.asked == [STEP] * 16


def test_steps_of_another_optimizer_of_the_engine_were_charged_by_its_hook(
    engine: PrivacyEngine, fake_run: FakeRun
) -> None:
    loader = small_loader()
    first = make_private(engine, loader)
    attach(first.optimizer, fake_run.as_run, data_loader=first.loader)
    first.epoch()
    second = make_private(engine, loader)
    attach(second.optimizer, fake_run.as_run, data_loader=second.loader)
    # A third one has been trained without the ledger: what was charged for the others does not cover it.
    third = make_private(engine, loader)
    third.epoch()
    with pytest.raises(UnsupportedTrainingError, match="shows 16 steps, and 8 of them"):
        attach(third.optimizer, fake_run.as_run, data_loader=third.loader)


def test_a_checkpoint_of_a_resumed_run_shows_steps_that_it_was_charged_for(
    engine: PrivacyEngine, tmp_path: Path
) -> None:
    first = make_private(engine)
    attach(first.optimizer, FakeRun(id="run_7").as_run, data_loader=first.loader)
    first.epoch()
    engine.save_checkpoint(path=tmp_path / "checkpoint.pt", module=first.model, optimizer=first.optimizer)
    with pytest.warns(UserWarning, match="Secure RNG turned off"):
        engine = PrivacyEngine(accountant="rdp")
    resumed = make_private(engine)
    engine.load_checkpoint(path=tmp_path / "checkpoint.pt", module=resumed.model, optimizer=resumed.optimizer)
    run = FakeRun(id="run_8", asked=[STEP] * 8)
    attach(resumed.optimizer, run.as_run, data_loader=resumed.loader)
    resumed.epoch()
    assert run.asked == [STEP] * 16


def test_a_trial_cannot_be_told_of_earlier_steps(engine: PrivacyEngine, fake_run: FakeRun) -> None:
    training = taken_before(engine)
    trial = Trial(fake_run.as_run.state, 0, [EventCount(event=STEP, count=99)])
    with pytest.raises(UnsupportedTrainingError, match="reports it to a Run"):
        attach(training.optimizer, trial, data_loader=training.loader, earlier_steps="report")
