"""The contract of an adapter, for NVIDIA FLARE: a round or a result is a step, and a client a record."""

# ruff: noqa: ANN401 - what the framework gives and takes has no types here

from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray
from nvflare.apis.dxo import from_shareable
from nvflare.apis.filter import ContentBlockedException
from nvflare.app_common.abstract.fl_model import FLModel

from epsilon_ledger._federated.charges import RoundCost
from epsilon_ledger.nvflare import LedgerFilter
from tests.adapter_contract import NO_STATE, AdapterContract, Script
from tests.frameworks.test_nvflare import Federation, by, result, site_context
from tests.sdk.fake_ledger import FakeRun

CLIENTS = 4


class RoundScript(Script):
    """Rounds as FLARE's loop has them, of which the first client moves far."""

    bound = 0.5

    def __init__(self, run: FakeRun, **terms: Any) -> None:
        super().__init__(run, **terms)
        clients = [by(1e6 * self.canary), *[by(0.0)] * (CLIENTS - 1)]
        settings = {"noise_multiplier": self.noise_multiplier, "clipping_norm": self.bound}
        self.federation = Federation(clients, "hospitals", **settings)
        self.federation.aggregator.run = run
        self.federation.aggregator.cost = RoundCost("replace_one", "client", "others")
        self.model = FLModel(params={"w": np.zeros(3)})

    def draw(self) -> None:
        self.federation.aggregator.reset_stats()
        sites, callback = self.federation.sample_clients(), self.federation._aggregate_one_result
        self.federation.send_model(targets=sites, data=self.model, callback=callback)
        self.drawn += 1

    def step(self) -> None:
        before = self.parameters()
        aggregated = self.federation.aggregator.aggregate_model()
        self.model = self.federation.update_model(self.model, aggregated)
        self.note((self.parameters() - before) * CLIENTS)

    def parameters(self) -> NDArray[Any]:
        return np.concatenate([part.copy() for part in self.model.params.values()])

    def checkpoint(self) -> object:
        return {name: part.copy() for name, part in self.model.params.items()}

    def restore(self, state: object) -> None:
        self.model = FLModel(params=state)

    def add_parameters(self) -> None:
        self.model.params["b"] = np.zeros(2)

    def repeat_record(self) -> None:
        clients = self.federation.clients
        names = [f"site-{index}" for index in range(CLIENTS)]

        def twice(*_: Any, **__: Any) -> None:
            for client, name in zip([clients[0], *clients], [names[0], *names], strict=True):
                reply = client(FLModel(params=self.model.params))
                reply.meta = {"client_name": name}
                self.federation._aggregate_one_result(reply)

        self.federation.broadcast = twice  # type: ignore[method-assign] # a client that answers again

    def evaluate(self) -> None:
        assert self.federation.clients[0](self.model).metrics


class ResultScript(Script):
    """Results of one site."""

    bound = 0.5

    def __init__(self, run: FakeRun, **terms: Any) -> None:
        super().__init__(run, **terms)
        run.hear(neighboring_relation="replace_one")
        self.filter = LedgerFilter("hospitals", self.noise_multiplier, self.bound, unit="client")
        self.filter._run = run
        self.update = {"w": np.full(3, 1e6 * self.canary)}
        self.model = {"w": np.zeros(3)}

    def draw(self) -> None:
        self.drawn += 1

    def step(self) -> None:
        try:
            left = from_shareable(self.filter.process(result(self.update), site_context())).data
        except ContentBlockedException as blocked:  # FLARE sends nothing then
            raise RuntimeError from blocked
        self.model = {name: self.model[name] + left[name] for name in left}
        self.note(np.concatenate(list(left.values())))

    def parameters(self) -> NDArray[Any]:
        return np.concatenate(list(self.model.values()))

    def checkpoint(self) -> object:
        return self.model

    def restore(self, state: Any) -> None:
        self.model = state

    def add_parameters(self) -> None:
        self.update["b"], self.model["b"] = np.full(2, 1e6), np.zeros(2)

    def evaluate(self) -> None:
        assert self.update


class TestRounds(AdapterContract):
    script = RoundScript
    NOT_APPLICABLE: ClassVar = NO_STATE


class TestResults(AdapterContract):
    script = ResultScript
    NOT_APPLICABLE: ClassVar = NO_STATE | {
        "test_skipped_sample_is_charged_or_stops_training": "it draws none: a result that the site keeps is not seen",
        "test_repeated_record_moves_release_by_one_norm_or_stops_training": "a result is of one site as a whole",
    }
