"""The contract of an adapter, for the optimizers of arrays."""

from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from epsilon_ledger.mechanisms import DpSgd, GaussianNoise, PoissonSampler
from tests.adapter_contract import NO_STATE, AdapterContract, Script
from tests.sdk.fake_ledger import FakeRun, N


class ArrayScript(Script):
    bound = 0.5

    def __init__(self, run: FakeRun, **terms: Any) -> None:  # noqa: ANN401 - passed on
        super().__init__(run, **terms)
        noise = GaussianNoise(self.noise_multiplier, clipping_norm=self.bound)
        self.optimizer = DpSgd(np.zeros(3), noise=noise, sampler=PoissonSampler(N, 1.0), run=run, learning_rate=1.0)
        self.gradients = np.zeros((N, 3))
        self.gradients[0] = 1e6 * self.canary
        self.rows: Any = None

    def draw(self) -> None:
        rows = self.optimizer.sample()
        self.drawn += rows is not self.rows
        self.rows = rows

    def step(self) -> None:
        before = self.parameters()
        self.optimizer.step(self.gradients[self.rows])
        self.note((before - self.parameters()) * N)

    def parameters(self) -> NDArray[Any]:
        return np.array(self.optimizer.params)

    def checkpoint(self) -> object:
        return self.optimizer.state_dict()

    def restore(self, state: object) -> None:
        self.optimizer.load_state_dict(state)

    def evaluate(self) -> None:
        assert self.gradients.size, "the data are the script's own"


class TestArrays(AdapterContract):
    script = ArrayScript
    NOT_APPLICABLE: ClassVar = NO_STATE | {
        "test_repeated_record_moves_release_by_one_norm_or_stops_training": "its samplers draw each place once",
        "test_added_parameters_are_clipped_or_stop_training": "its parameters are those of the optimizer, for good",
    }
