"""The contract of an adapter, for Flower's two APIs: a round is a step, and a client a record.

Run by `test_flower` where Flower can be imported.
"""

from typing import Any, ClassVar

import numpy as np
from flwr.app import ArrayRecord, ConfigRecord, Message
from flwr.common import Parameters, ndarrays_to_parameters, parameters_to_ndarrays
from flwr.server import SimpleClientManager
from flwr.server import strategy as legacy
from flwr.server.server import fit_clients
from flwr.serverapp.strategy import DifferentialPrivacyServerSideFixedClipping, FedAvg
from numpy.typing import NDArray

from epsilon_ledger.flower import charge_rounds
from tests.adapter_contract import NO_STATE, AdapterContract, Script
from tests.frameworks.flower_grid import LocalGrid, arrays, shifted_by
from tests.frameworks.test_flower_legacy import Client
from tests.sdk.fake_ledger import FakeRun

CLIENTS, FAR = 4, 6.0


class RoundsScript(Script):
    """Rounds of all clients, of which client 1 moves far."""

    bound = 0.5

    def __init__(self, run: FakeRun, wrapper: Any, **terms: Any) -> None:  # noqa: ANN401 - of either API, passed on
        super().__init__(run, **terms)
        wrapped = wrapper(self.noise_multiplier, self.bound, CLIENTS)
        self.strategy = charge_rounds(wrapped, run, unit="client", sampling_probability=1.0)
        self.number, self.repeated = 0, False
        self.model: Any = None

    def release(self, before: NDArray[Any]) -> None:
        self.note((self.parameters() - before) * CLIENTS)

    def checkpoint(self) -> object:
        return self.model

    def restore(self, state: object) -> None:
        self.model = state

    def repeat_record(self) -> None:
        self.repeated = True


class MessageScript(RoundsScript):
    def __init__(self, run: FakeRun, **terms: Any) -> None:  # noqa: ANN401 - passed on
        super().__init__(run, lambda *of: DifferentialPrivacyServerSideFixedClipping(FedAvg(), *of), **terms)
        self.grid = LocalGrid(shifted_by(lambda node: FAR * (self.canary and node == 1)), CLIENTS)
        self.model: ArrayRecord = arrays(np.zeros(3))
        self.messages: list[Message] = []

    def draw(self) -> None:
        self.number += 1
        self.messages = list(self.strategy.configure_train(self.number, self.model, ConfigRecord(), self.grid))
        self.drawn += 1

    def step(self) -> None:
        before = self.parameters()
        replies = list(self.grid.send_and_receive(self.messages))
        self.model, _ = self.strategy.aggregate_train(self.number, replies + replies[:1] * self.repeated)
        self.release(before)

    def parameters(self) -> NDArray[Any]:
        return np.concatenate(self.model.to_numpy_ndarrays())

    def add_parameters(self) -> None:
        self.model = arrays(*self.model.to_numpy_ndarrays(), np.zeros(2))

    def evaluate(self) -> None:
        messages = list(self.strategy.configure_evaluate(self.number, self.model, ConfigRecord(), self.grid))
        assert self.strategy.aggregate_evaluate(self.number, self.grid.send_and_receive(messages)) is None


class LegacyScript(RoundsScript):
    def __init__(self, run: FakeRun, **terms: Any) -> None:  # noqa: ANN401 - passed on
        averaged = legacy.FedAvg(min_fit_clients=1, min_available_clients=1)
        super().__init__(run, lambda *of: legacy.DifferentialPrivacyServerSideFixedClipping(averaged, *of), **terms)
        self.model: Parameters = ndarrays_to_parameters([np.zeros(3)])
        self.clients = SimpleClientManager()
        for node in range(CLIENTS):
            self.clients.register(Client(str(node), FAR * (self.canary and node == 0)))
        self.instructions: list[Any] = []

    def draw(self) -> None:
        self.number += 1
        self.instructions = self.strategy.configure_fit(self.number, self.model, self.clients)
        self._require_no_refusal()
        self.drawn += 1

    def step(self) -> None:
        before = self.parameters()
        results, failures = fit_clients(self.instructions, None, None, self.number)
        found, _ = self.strategy.aggregate_fit(self.number, results + results[:1] * self.repeated, failures)
        self._require_no_refusal()
        self.model = found
        self.release(before)

    def parameters(self) -> NDArray[Any]:
        return np.concatenate(parameters_to_ndarrays(self.model))

    def add_parameters(self) -> None:
        self.model = ndarrays_to_parameters([*parameters_to_ndarrays(self.model), np.zeros(2)])

    def evaluate(self) -> None:
        assert self.strategy.configure_evaluate(self.number, self.model, self.clients) == []
        assert self.strategy.aggregate_evaluate(self.number, [], []) == (None, {})

    def _require_no_refusal(self) -> None:
        """Stop, where Flower's server would do its other rounds without clients."""
        if self.strategy.refusal is not None:
            raise self.strategy.refusal


class TestMessages(AdapterContract):
    script = MessageScript
    NOT_APPLICABLE: ClassVar = NO_STATE


class TestLegacy(AdapterContract):
    script = LegacyScript
    NOT_APPLICABLE: ClassVar = NO_STATE
