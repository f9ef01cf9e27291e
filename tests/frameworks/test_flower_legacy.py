"""Strategies of Flower's earlier API, with its own server; run by `test_flower` where Flower can be imported."""

# ruff: noqa: ANN401 - what the framework gives and takes has no types here

from typing import Any

import numpy as np
import pytest
from flwr.common import (
    Code,
    EvaluateIns,
    EvaluateRes,
    FitIns,
    FitRes,
    NDArrays,
    Status,
    ndarrays_to_parameters,
    parameters_to_ndarrays,
)
from flwr.server import Server, SimpleClientManager
from flwr.server.client_proxy import ClientProxy
from flwr.server.strategy import (
    DifferentialPrivacyClientSideAdaptiveClipping,
    DifferentialPrivacyServerSideFixedClipping,
    FedAvg,
    Strategy,
)

from epsilon_ledger import gaussian, poisson_sampled, zcdp
from epsilon_ledger.flower import UnsupportedRoundError, charge_rounds
from tests.frameworks.test_flower_strategies import SMALL, open_run

OK = Status(Code.OK, "")


class Client(ClientProxy):
    """A client that adds its shift to all parameters."""

    def __init__(self, cid: str, shift: float) -> None:
        super().__init__(cid)
        self.shift, self.fits = shift, 0

    def fit(self, ins: FitIns, timeout: float | None, group_id: int | None) -> FitRes:
        del timeout, group_id
        self.fits += 1
        if self.shift < 0:
            raise ValueError("out of memory")
        found = [array + self.shift for array in parameters_to_ndarrays(ins.parameters)]
        clipped = self.shift > float(ins.config.get("clipping_norm", np.inf))
        return FitRes(OK, ndarrays_to_parameters(found), 10 ** int(self.shift), {"norm_bit": clipped, "loss": 0.5})

    def evaluate(self, ins: EvaluateIns, timeout: float | None, group_id: int | None) -> EvaluateRes:
        del ins, timeout, group_id
        return EvaluateRes(OK, 0.5, 1, {"accuracy": 0.25})

    def absent(self, *_: Any, **__: Any) -> Any:
        raise NotImplementedError

    get_properties = get_parameters = reconnect = absent


def train(strategy: Strategy, shifts: list[float], rounds: int) -> tuple[NDArrays, Any, list[Client]]:
    """Run Flower's server; return its parameters, its history and its clients."""
    manager = SimpleClientManager()
    clients = [Client(str(index), shift) for index, shift in enumerate(shifts)]
    for client in clients:
        manager.register(client)
    server = Server(client_manager=manager, strategy=strategy)
    history, _ = server.fit(num_rounds=rounds, timeout=None)
    return parameters_to_ndarrays(server.parameters), history, clients


def averaged() -> FedAvg:
    return FedAvg(initial_parameters=ndarrays_to_parameters([np.zeros(1)]))


def test_rounds_are_charged_and_nothing_else_is_released() -> None:
    run, asked = open_run()
    wrapper = DifferentialPrivacyServerSideFixedClipping(averaged(), SMALL, 1.0, 4)
    # One client's update is long and weighs most, and one fails.
    (vector,), history, _ = train(charge_rounds(wrapper, run), [6.0, 0.4, 0.4, -1.0], 1)
    assert asked == [gaussian(SMALL)]
    assert np.allclose(vector, (1.0 + 0.4 + 0.4) / 4, atol=0.03)
    assert history.metrics_distributed_fit == {}
    assert (history.losses_distributed, history.metrics_distributed) == ([], {})


def test_budget_ends_rounds() -> None:
    run, asked = open_run(epsilon=2.0)
    strategy = charge_rounds(DifferentialPrivacyServerSideFixedClipping(averaged(), 4.0, 1.0, 2), run)
    (vector,), _, clients = train(strategy, [0.1, 0.1], 200)
    assert strategy.refusal.code == "budget_exceeded"
    # The refused round was the last one for which clients were asked.
    assert clients[0].fits == len(asked) == run.refresh().next_step + 1 > 2
    assert np.isfinite(vector).all()


def test_round_without_clients_is_step_of_noise_alone() -> None:
    run, asked = open_run()
    wrapper = DifferentialPrivacyServerSideFixedClipping(averaged(), 1.0, 1.0, 2)
    models: list[float] = []
    wrapper.strategy.evaluate_fn = lambda _, arrays, __: models.append(float(arrays[0][0]))
    train(charge_rounds(wrapper, run, sampling_probability=0.25), [0.1, 0.1], 12)
    assert asked == [poisson_sampled(0.25, gaussian(1.0))] * 12
    assert len(set(models)) == 1 + 12


def test_adaptive_norm_follows_quantile_of_clients_that_clip() -> None:
    run, asked = open_run()
    wrapper = DifferentialPrivacyClientSideAdaptiveClipping(
        averaged(), 0.1, 4, initial_clipping_norm=0.05, clipped_count_stddev=0.1
    )
    train(charge_rounds(wrapper, run), [0.1, 0.2, 0.3, 0.4], 30)
    assert asked[0]["type"] == "adaptive_clipping"
    assert 0.15 < wrapper.clipping_norm < 0.35


def test_evaluation_is_charged_if_clients_add_noise() -> None:
    run, asked = open_run()
    wrapper = DifferentialPrivacyServerSideFixedClipping(averaged(), 1.0, 1.0, 2)
    _, history, _ = train(charge_rounds(wrapper, run, evaluate_event=zcdp(0.5)), [0.1, 0.1], 1)
    assert asked == [gaussian(1.0), zcdp(0.5)]
    assert history.losses_distributed == [(1, 0.5)]


def test_first_model_is_not_of_a_client() -> None:
    run, _ = open_run()
    wrapper = DifferentialPrivacyServerSideFixedClipping(FedAvg(), 1.0, 1.0, 2)
    with pytest.raises(UnsupportedRoundError, match="initial_parameters"):
        train(charge_rounds(wrapper, run), [0.1, 0.1], 1)
