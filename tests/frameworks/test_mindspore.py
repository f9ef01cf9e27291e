"""Trainings with MindSpore and MindArmour: each pass is charged before its first step, and a refused one is not taken.

MindSpore takes 800 MB: these tests run where it and MindArmour are installed.
"""

from collections.abc import Callable
from importlib import import_module
from types import SimpleNamespace
from typing import Any, TypeAlias

import numpy as np
import pytest

from epsilon_ledger import gaussian
from tests.sdk.fake_ledger import FakeRun

mindspore = pytest.importorskip("mindspore")
theirs = pytest.importorskip("mindarmour.privacy.diff_privacy")

from mindarmour.privacy.diff_privacy.train import model as their_module  # noqa: E402 - where it is installed
from mindspore import dataset as ds  # noqa: E402 - as above
from mindspore import nn  # noqa: E402 - as above
from mindspore.train import Callback  # noqa: E402 - as above

from epsilon_ledger import mindspore as adapter  # noqa: E402 - as above

Theirs: TypeAlias = Any
"""An object of MindSpore or MindArmour."""

N, BATCH, STEPS = 32, 8, 4
CONTEXT = their_module.context.get_context
X = np.random.default_rng(3).normal(size=(N, 4)).astype(np.float32)
ROWS = [(row, np.array(row.sum() > 0, dtype=np.int32)) for row in X]


def batches(times: int = 1) -> Theirs:
    rows = ds.GeneratorDataset(ROWS, ["x", "y"], shuffle=True)
    return (rows if times == 1 else rows.repeat(times)).batch(BATCH, drop_remainder=True)


def run_on_processor(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let MindArmour train here: it does so on GPU and Ascend only, but its operations run here as well."""

    def get(name: str) -> Theirs:
        return "GPU" if name == "device_target" else CONTEXT(name)

    monkeypatch.setattr(their_module, "context", SimpleNamespace(get_context=get))
    monkeypatch.setattr(import_module("mindspore.common.seed"), "_GLOBAL_SEED", None)


@pytest.fixture(autouse=True)
def _on_a_processor(monkeypatch: pytest.MonkeyPatch) -> None:
    run_on_processor(monkeypatch)


@pytest.fixture
def run() -> FakeRun:
    return FakeRun(neighboring_relation="replace_one")


def model(network: Theirs = None, **terms: object) -> Theirs:
    network = network or nn.Dense(4, 2)
    noise = theirs.NoiseMechanismsFactory.create("Gaussian", norm_bound=1.0, initial_noise_multiplier=1.5)
    given = {"noise_mech": noise, "norm_bound": 1.0, "optimizer": nn.Momentum(network.trainable_params(), 0.1, 0.9)}
    loss = nn.SoftmaxCrossEntropyWithLogits(sparse=True, reduction="mean")
    return theirs.DPModel(micro_batches=BATCH, network=network, loss_fn=loss, **given | terms)


class After(Callback):
    """Callback that keeps the parameters after each step."""

    def __init__(self, network: Theirs) -> None:
        super().__init__()
        self.network, self.seen = network, [network.weight.asnumpy().copy()]

    def on_train_step_end(self, run_context: Theirs) -> None:  # noqa: ARG002 - MindSpore's
        self.seen.append(self.network.weight.asnumpy().copy())


@pytest.mark.parametrize("capacity", [2, 9])
def test_each_pass_is_charged_once_and_refused_step_does_not_happen(run: FakeRun, capacity: int) -> None:
    run.ledger.capacity, network = capacity, nn.Dense(4, 2)
    after, ledger = After(network), adapter.LedgerCallback(run)
    model(network).train(3, batches(), callbacks=[ledger, after])
    assert run.asked == [gaussian(1.5)] * min(capacity, 3)
    assert (run.expected_steps, ledger.refusal is None) == (3, capacity > 3)
    assert len(after.seen) == 1 + min(capacity, 3) * STEPS
    assert np.array_equal(network.weight.asnumpy(), after.seen[-1])


def with_moving_norm() -> Theirs:
    return model(clip_mech=theirs.ClipMechanismsFactory.create("Gaussian"))


def with_batch_statistics() -> Theirs:
    return model(nn.SequentialCell(nn.Dense(4, 4), nn.BatchNorm1d(4), nn.Dense(4, 2)))


def with_seeded_noise() -> Theirs:
    noise = theirs.NoiseMechanismsFactory.create("Gaussian", norm_bound=1.0, initial_noise_multiplier=1.5, seed=7)
    return model(noise_mech=noise)


def with_seeded_framework() -> Theirs:
    mindspore.set_seed(0)
    return model()


def with_coarse_parameters() -> Theirs:
    network = nn.Dense(4, 2)
    for parameter in network.trainable_params():
        parameter.set_dtype(mindspore.float16)
    return model(network)


UNACCOUNTABLE: dict[str, tuple[Callable[[], Theirs], int, str]] = {
    "clipping norm moves and the noise does not": (with_moving_norm, 1, "replace_one"),
    "RepeatDataset may hand on a record twice": (model, 2, "replace_one"),
    "must be replace_one": (model, 1, "add_or_remove_one"),
    "moving averages": (with_batch_statistics, 1, "replace_one"),
    "noise would be repeated in each process.*a seed of the mechanism": (with_seeded_noise, 1, "replace_one"),
    r"mindspore\.set_seed determines": (with_seeded_framework, 1, "replace_one"),
    "is Float16, too coarse for the noise": (with_coarse_parameters, 1, "replace_one"),
}


@pytest.mark.parametrize("message", UNACCOUNTABLE)
def test_unaccountable_training_is_refused_before_first_step(run: FakeRun, message: str) -> None:
    make, times, relation = UNACCOUNTABLE[message]
    run.hear(neighboring_relation=relation)
    training = make()
    with pytest.raises(adapter.UnsupportedTrainingError, match=message):
        training.train(1, batches(times), callbacks=[adapter.LedgerCallback(run)])
    assert run.asked == []
