"""Small trainings under MindArmour's names."""

from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from epsilon_ledger.mindarmour import SGD, DPModel, DPOptimizerClassFactory, NoiseMechanismsFactory
from tests.sdk.fake_runs import FakeRun

Floats: TypeAlias = NDArray[np.float64]

N, BATCH, STEPS = 64, 8, 8


class Line:
    """A linear model whose loss is half the squared error."""

    def __init__(self, dtype: type[Any] = np.float64) -> None:
        self.weight, self.bias = np.zeros(3, dtype), np.zeros(1, dtype)

    def trainable_params(self) -> list[Floats]:
        return [self.weight, self.bias]

    def gradients(self, data: Floats, label: Floats) -> list[Floats]:
        error = data @ self.weight + self.bias - label
        return [(data * error[:, np.newaxis]).mean(axis=0), error.mean(keepdims=True)]


def data() -> tuple[Floats, Floats]:
    rng = np.random.default_rng(5)
    x = rng.normal(size=(N, 3))
    return x, x @ np.array([1.0, -2.0, 0.5])


def build(run: FakeRun, network: Line | None = None, **terms: Any) -> DPModel:  # noqa: ANN401 - passed on
    network = network or Line()
    arguments: dict[str, Any] = {
        "micro_batches": BATCH,
        "noise_mech": NoiseMechanismsFactory.create("Gaussian", 1.0, 1.5),
        "optimizer": SGD(network.trainable_params(), 0.1),
        "network": network,
        "batch_size": BATCH,
        "run": run,
    }
    return DPModel(**arguments | terms)


def private(policy: str, network: Line, **terms: Any) -> Any:  # noqa: ANN401 - passed on
    factory = DPOptimizerClassFactory(micro_batches=BATCH)
    factory.set_mechanisms("Gaussian", norm_bound=1.0, initial_noise_multiplier=1.5)
    return factory.create(policy)(params=network.trainable_params(), **terms)
