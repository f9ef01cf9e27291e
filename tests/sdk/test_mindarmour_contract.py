"""The contract of an adapter, for MindArmour's model."""

from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from epsilon_ledger.mindarmour import SGD, DPModel, NoiseMechanismsFactory
from tests.adapter_contract import NO_STATE, AdapterContract, Script
from tests.sdk.fake_ledger import FakeRun, N

DATA = np.arange(N), np.zeros(N)


class Outlier:
    """A network of which record 0 has a gradient, and whose loss can fail."""

    def __init__(self, *, canary: bool) -> None:
        self.params: list[NDArray[Any]] = [np.zeros(3)]
        self.canary, self.fails = canary, False

    def gradients(self, data: NDArray[Any], label: NDArray[Any]) -> list[NDArray[Any]]:
        del label
        if self.fails:
            raise MemoryError
        return [np.full(part.shape, 1e6 * self.canary * (data[0] == 0)) for part in self.params]


class WatchedModel(DPModel):
    """A model whose draws are counted."""

    drawn = 0

    def _sampler(self, *terms: Any) -> Any:  # noqa: ANN401 - passed on
        sampler = super()._sampler(*terms)
        draw = sampler.sample

        def sample() -> Any:  # noqa: ANN401 - passed on
            self.drawn += 1
            return draw()

        sampler.sample = sample  # type: ignore[method-assign] # watched
        return sampler


class ModelScript(Script):
    """A training whose draws and steps are one; a draw without a step is one whose gradients fail."""

    bound = 0.5

    def __init__(self, run: FakeRun, **terms: Any) -> None:  # noqa: ANN401 - passed on
        super().__init__(run, **terms)
        self.network = Outlier(canary=self.canary)
        self.optimizer = SGD(self.network.params, 1.0)
        self.model = WatchedModel(
            N,
            self.bound,
            NoiseMechanismsFactory.create("Gaussian", self.bound, self.noise_multiplier),
            optimizer=self.optimizer,
            run=run,
            network=self.network,
            batch_size=N,
        )

    def draw(self) -> None:
        self.network.fails = True
        try:
            next(self.model.steps(1, DATA))
        except MemoryError:
            self.drawn = self.model.drawn

    def step(self) -> None:
        self.network.fails = False
        before = self.parameters()
        if not list(self.model.steps(1, DATA)):
            assert self.model.refusal is not None
            raise self.model.refusal
        self.note((before - self.parameters()) * N)

    def parameters(self) -> NDArray[Any]:
        return np.concatenate(self.network.params)

    def checkpoint(self) -> object:
        return self.model.state_dict(), self.parameters()

    def restore(self, state: Any) -> None:  # noqa: ANN401 - a checkpoint
        mechanism, parameters = state
        self.model.load_state_dict(mechanism)
        self.network.params[0][...] = parameters

    def add_parameters(self) -> None:
        self.network.params.append(np.zeros(2))
        self.optimizer.params.append(self.network.params[-1])
        self.optimizer._velocities.append(np.zeros((2,)))

    def evaluate(self) -> None:
        self.network.fails = False
        assert self.network.gradients(*DATA)


class TestModel(AdapterContract):
    script = ModelScript
    NOT_APPLICABLE: ClassVar = NO_STATE | {
        "test_repeated_record_moves_release_by_one_norm_or_stops_training": "its samplers draw each place once",
    }
