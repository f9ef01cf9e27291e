"""Trainings with MindSpore and MindArmour: each pass is charged before its first step, and a refused one is not taken.

MindSpore takes 800 MB: these tests run where it and MindArmour are installed.
"""

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any, TypeAlias

import numpy as np
import pytest

from epsilon_ledger import gaussian
from tests.sdk.fake_runs import FakeRun

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


class Source:
    """Rows of random numbers; arrays, because MindSpore cannot make arrays of numpy 2's numbers."""

    def __init__(self) -> None:
        rng = np.random.default_rng(3)
        self.x = rng.normal(size=(N, 4)).astype(np.float32)

    def __len__(self) -> int:
        return N

    def __getitem__(self, place: int) -> tuple[Theirs, Theirs]:
        return self.x[place], np.array(self.x[place].sum() > 0, dtype=np.int32)


def rows(**how: object) -> Theirs:
    return ds.GeneratorDataset(Source(), ["x", "y"], **{"shuffle": True} | how)


def batches() -> Theirs:
    return rows().batch(BATCH, drop_remainder=True)


@pytest.fixture(autouse=True)
def _on_a_processor(monkeypatch: pytest.MonkeyPatch) -> None:
    # MindArmour trains on GPU and Ascend only; its operations run here as well.
    def get(name: str) -> Theirs:
        return "GPU" if name == "device_target" else CONTEXT(name)

    monkeypatch.setattr(their_module, "context", SimpleNamespace(get_context=get))


@pytest.fixture
def replacing() -> FakeRun:
    run = FakeRun()
    run.state.neighboring_relation = "replace_one"
    return run


def noise(name: str = "Gaussian", **terms: object) -> Theirs:
    return theirs.NoiseMechanismsFactory.create(name, **{"norm_bound": 1.0, "initial_noise_multiplier": 1.5} | terms)


def small_network() -> Theirs:
    return nn.Dense(4, 2)


def model(
    network: Theirs = None, *, noise_mech: Theirs = None, micro_batches: int | None = BATCH, **terms: object
) -> Theirs:
    network = network or small_network()
    arguments = {"optimizer": nn.Momentum(network.trainable_params(), 0.1, 0.9), "norm_bound": 1.0} | terms
    loss = nn.SoftmaxCrossEntropyWithLogits(sparse=True, reduction="mean")
    return theirs.DPModel(
        micro_batches=micro_batches, noise_mech=noise_mech or noise(), network=network, loss_fn=loss, **arguments
    )


class Counting(Callback):
    """Counts the steps that happened, and keeps the parameters after each."""

    def __init__(self, network: Theirs) -> None:
        super().__init__()
        self.network, self.after = network, [network.weight.asnumpy().copy()]

    def on_train_step_end(self, run_context: Theirs) -> None:  # noqa: ARG002 - MindSpore's
        self.after.append(self.network.weight.asnumpy().copy())


def test_each_pass_is_charged_once_before_its_first_step(replacing: FakeRun) -> None:
    network = small_network()
    counting, ledger = Counting(network), adapter.LedgerCallback(replacing.as_run)
    model(network).train(3, batches(), callbacks=[ledger, counting])
    assert replacing.asked == [gaussian(1.5)] * 3
    assert len(counting.after) == 1 + 3 * STEPS
    assert ledger.refusal is None
    assert replacing.expected_steps == 3


@pytest.mark.parametrize("mode", [mindspore.PYNATIVE_MODE, mindspore.GRAPH_MODE])
def test_refused_step_does_not_happen_and_training_ends_without_exception(mode: int) -> None:
    mindspore.set_context(mode=mode)
    run = FakeRun(capacity=2)
    run.state.neighboring_relation = "replace_one"
    network = small_network()
    counting, ledger = Counting(network), adapter.LedgerCallback(run.as_run)
    model(network).train(5, batches(), callbacks=[ledger, counting])
    mindspore.set_context(mode=mindspore.PYNATIVE_MODE)
    assert ledger.refusal is not None
    assert len(counting.after) == 1 + 2 * STEPS
    assert np.array_equal(network.weight.asnumpy(), counting.after[-1])


def adaptive(replacing: FakeRun) -> Theirs:  # noqa: ARG001 - as below
    return model(clip_mech=theirs.ClipMechanismsFactory.create("Gaussian")), batches()


def repeated(replacing: FakeRun) -> Theirs:  # noqa: ARG001 - as below
    return model(), rows().repeat(2).batch(BATCH)


def of_another_relation(replacing: FakeRun) -> Theirs:
    replacing.state.neighboring_relation = "add_or_remove_one"
    return model(), batches()


def with_batch_statistics(replacing: FakeRun) -> Theirs:  # noqa: ARG001 - as the others
    return model(nn.SequentialCell(nn.Dense(4, 4), nn.BatchNorm1d(4), nn.Dense(4, 2))), batches()


def without_noise(replacing: FakeRun) -> Theirs:  # noqa: ARG001 - as the others
    network = small_network()
    loss = nn.SoftmaxCrossEntropyWithLogits(sparse=True, reduction="mean")
    return mindspore.train.Model(network, loss, nn.SGD(network.trainable_params(), 0.1)), batches()


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (adaptive, "clipping norm moves and the noise does not"),
        (without_noise, "whose noise is not known"),
        (repeated, "RepeatDataset may hand on a record twice"),
        (of_another_relation, "must be replace_one"),
        (with_batch_statistics, "moving averages"),
    ],
)
def test_unaccountable_training_is_refused_before_first_step(
    replacing: FakeRun, make: Callable[[FakeRun], Theirs], message: str
) -> None:
    training, data = make(replacing)
    before = [parameter.asnumpy().copy() for parameter in training._network.trainable_params()]
    with pytest.raises(adapter.UnsupportedTrainingError, match=message):
        training.train(1, data, callbacks=[adapter.LedgerCallback(replacing.as_run)])
    assert replacing.asked == []
    after = [parameter.asnumpy() for parameter in training._network.trainable_params()]
    assert all(map(np.array_equal, before, after))
