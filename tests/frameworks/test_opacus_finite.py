"""A record whose gradient is not finite: no clipping bounds it, so that nothing of its batch is released."""

import math
from typing import Any

import pytest
import torch
from opacus import PrivacyEngine
from opacus.utils.batch_memory_manager import BatchMemoryManager
from torch.utils.data import DataLoader, TensorDataset

from epsilon_ledger.opacus import UnsupportedTrainingError, attach
from tests.frameworks.conftest import HOOKS_WARN, Training, make_private
from tests.frameworks.test_opacus_clipping import ADAPTIVE
from tests.sdk.fake_runs import BATCH, FakeRun, N

pytestmark = HOOKS_WARN

MODES: dict[str, dict[str, Any]] = {
    "flat": {},
    "per layer": {"clipping": "per_layer", "max_grad_norm": [0.5] * 4},
    "adaptive": ADAPTIVE,
    "ghost": {"grad_sample_mode": "ghost", "criterion": torch.nn.CrossEntropyLoss()},
}


def loader_with(value: float) -> DataLoader[Any]:
    x = torch.randn(N, 4)
    x[:, 1] = value
    return DataLoader(TensorDataset(x, (x[:, 0] > 0).long()), BATCH)


def first_step(training: Training) -> None:
    for batch in training.loader:
        if len(batch[0]):
            training.before = training.parameters()
            training.step(batch)
            return


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize("mode", MODES)
def test_it_is_neither_charged_nor_released(engine: PrivacyEngine, fake_run: FakeRun, mode: str, value: float) -> None:
    attach(engine, fake_run.as_run)
    training = make_private(engine, loader_with(value), **MODES[mode])
    with pytest.raises(UnsupportedTrainingError, match="has a NaN or an infinity"):
        first_step(training)
    assert fake_run.asked == []
    assert training.is_unchanged()
    assert all(p.grad is None and p.summed_grad is None for p in training.optimizer.params)


def test_nor_is_one_of_an_earlier_physical_batch(engine: PrivacyEngine, fake_run: FakeRun) -> None:
    training = make_private(engine, loader_with(math.nan))
    attach(training.optimizer, fake_run.as_run, data_loader=training.loader)
    manager = BatchMemoryManager(data_loader=training.loader, max_physical_batch_size=2, optimizer=training.optimizer)
    with manager as managed, pytest.raises(UnsupportedTrainingError, match="has a NaN or an infinity"):
        training.epoch(managed)
    assert fake_run.asked == []
    assert training.is_unchanged()


def test_large_and_vanishing_gradients_are_clipped_as_ever(engine: PrivacyEngine, fake_run: FakeRun) -> None:
    attach(engine, fake_run.as_run)
    for value in (1e30, 0.0):
        training = make_private(engine, loader_with(value), noise_multiplier=1e-3)
        first_step(training)
        assert all(p.grad.isfinite().all() for p in training.optimizer.params)
        engine.dataset = None
    assert len(fake_run.asked) == 2


def test_noise_without_end_is_named(engine: PrivacyEngine, fake_run: FakeRun) -> None:
    training = make_private(engine)
    attach(training.optimizer, fake_run.as_run, data_loader=training.loader)
    for noise in (math.inf, 0.0):
        training.optimizer.noise_multiplier = noise
        with pytest.raises(ValueError, match="noise_multiplier must be in"):
            first_step(training)
    assert fake_run.asked == []


@pytest.mark.parametrize("value", [math.nan, math.inf])
def test_a_record_on_an_accelerator_is_found(
    engine: PrivacyEngine, fake_run: FakeRun, monkeypatch: pytest.MonkeyPatch, value: float
) -> None:
    monkeypatch.setattr(torch.Tensor, "is_cpu", False)
    attach(engine, fake_run.as_run)
    with pytest.raises(UnsupportedTrainingError, match="has a NaN or an infinity"):
        first_step(make_private(engine, loader_with(value)))
    assert fake_run.asked == []
    engine.dataset = None
    first_step(make_private(engine, loader_with(1.0)))
    assert len(fake_run.asked) == 1
