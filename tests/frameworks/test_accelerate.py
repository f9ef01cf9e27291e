"""A loop of one's own with Accelerate and Opacus, whose steps the ledger admits or refuses."""

from collections.abc import Iterator
from typing import Any

import pytest
from accelerate import Accelerator
from accelerate.state import AcceleratorState, GradientState
from opacus import PrivacyEngine
from torch import nn

from epsilon_ledger import BudgetExceededError, gaussian, poisson_sampled
from epsilon_ledger.opacus import UnsupportedTrainingError, attach
from tests.frameworks.conftest import HOOKS_WARN, Training, make_private
from tests.sdk.fake_runs import BATCH, FakeRun, N

STEP = poisson_sampled(BATCH / N, gaussian(1.0))

pytestmark = HOOKS_WARN


@pytest.fixture(autouse=True)
def _own_state() -> Iterator[None]:
    yield
    AcceleratorState._reset_state(reset_partial_state=True)
    GradientState._reset_state()


def loop(accelerator: Accelerator, training: Training, batches: Any) -> None:  # noqa: ANN401 - any loader
    for x, y in batches:
        training.before = training.parameters()
        with accelerator.accumulate(training.model):
            accelerator.backward(nn.functional.cross_entropy(training.model(x), y))
            training.optimizer.step()
            training.optimizer.zero_grad()


def prepared(accelerator: Accelerator, training: Training) -> Training:
    model, optimizer = accelerator.prepare(training.model, training.optimizer)
    return Training(model, optimizer, training.loader)


def test_engine_attached_before_prepare_asks_for_each_step(engine: PrivacyEngine) -> None:
    run, accelerator = FakeRun(capacity=11), Accelerator(cpu=True)
    attach(engine, run.as_run)
    training = prepared(accelerator, make_private(engine))
    loop(accelerator, training, training.loader)
    assert run.asked == [STEP] * 8
    with pytest.raises(BudgetExceededError):
        loop(accelerator, training, training.loader)
    assert len(run.asked) == 11
    assert training.is_unchanged()


def test_optimizer_within_prepared_one_is_attached(engine: PrivacyEngine, fake_run: FakeRun) -> None:
    accelerator = Accelerator(cpu=True)
    training = prepared(accelerator, make_private(engine))
    outer: Any = training.optimizer
    with pytest.raises(TypeError, match=r"not .*AcceleratedOptimizer"):
        attach(outer, fake_run.as_run, data_loader=training.loader)
    attach(outer.optimizer, fake_run.as_run, data_loader=training.loader)
    loop(accelerator, training, training.loader)
    assert fake_run.asked == [STEP] * 8


def test_loader_that_fetches_ahead_is_refused(engine: PrivacyEngine, fake_run: FakeRun) -> None:
    accelerator = Accelerator(cpu=True)
    attach(engine, fake_run.as_run)
    training = prepared(accelerator, make_private(engine))
    before = training.parameters()
    with pytest.raises(UnsupportedTrainingError, match=r"another batch's|released already"):
        loop(accelerator, training, accelerator.prepare(training.loader))
    assert len(fake_run.asked) < 8
    assert len(before) == len(training.parameters())
