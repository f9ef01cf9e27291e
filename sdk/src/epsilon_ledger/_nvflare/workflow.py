"""The server's workflow, whose rounds have noise at the server."""

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray
from nvflare.app_common.abstract.fl_model import FLModel, ParamsType
from nvflare.app_common.aggregators.model_aggregator import ModelAggregator
from nvflare.app_common.app_constant import AppConstants
from nvflare.app_common.workflows.fedavg import FedAvg

from epsilon_ledger import BudgetExceededError, LedgerClient, Run
from epsilon_ledger._federated.charges import RoundCost, Unit, unit_of
from epsilon_ledger._federated.errors import UnsupportedRoundError
from epsilon_ledger._federated.updates import NoisyMean
from epsilon_ledger._nvflare.filter import check_account, numpy_arrays
from epsilon_ledger._wire.coercion import whole
from epsilon_ledger._wire.origins import wire_origins
from epsilon_ledger.mechanisms import GaussianNoise


class NoisyAggregator(ModelAggregator):
    """The noisy mean of a round, charged before it is drawn.

    Args:
        noise: of the sum.
        clients: public divisor of the sum.
    """

    def __init__(self, noise: GaussianNoise, clients: int) -> None:
        super().__init__()
        self.noise, self.clients = noise, clients
        self.run: Run | None = None
        self.cost: RoundCost | None = None
        self.current: dict[str, NDArray[Any]] = {}
        """The model that the clients were sent."""
        self._replies: dict[str, dict[str, NDArray[Any]]] = {}

    def accept_model(self, model: FLModel) -> None:
        """Keep a client's first model; one that is no numpy arrays counts as missing."""
        client = str((model.meta or {}).get("client_name"))
        if client in self._replies:
            return
        self._replies[client] = {}
        arrays = numpy_arrays(model.params)
        if model.params_type == ParamsType.DIFF and arrays.keys() == self.current.keys():
            arrays = {name: _moved(self.current[name], array) for name, array in arrays.items()}
        self._replies[client] = arrays

    def aggregate_model(self) -> FLModel:
        """Charge the round, and return the new model.

        Raises:
            LedgerError: nothing of the round is released.
        """
        if self.run is None or self.cost is None or not self.current:
            raise UnsupportedRoundError("The round was not started by LedgerFedAvg, so that its model is not known.")
        mean = NoisyMean(self.noise, list(self._replies.values()), self.current, clients=self.clients)
        self._charge(self.run, self.cost)
        return FLModel(params=mean.draw(), params_type=ParamsType.FULL)

    def reset_stats(self) -> None:
        """Begin a round; one that has replies and was not aggregated is charged.

        Otherwise the replies could decide which rounds are charged.

        Raises:
            LedgerError: that round is not admitted.
        """
        if self._replies and self.run is not None and self.cost is not None:
            self._charge(self.run, self.cost)

    def _charge(self, run: Run, cost: RoundCost) -> None:
        """Charge the round, which ends with it, whatever the ledger answers."""
        self._replies, self.current = {}, {}
        run.authorize(event=cost.event(self.noise.noise_multiplier, None, clients=self.clients, sampled=self.clients))


class LedgerFedAvg(FedAvg):
    """FLARE's FedAvg, whose rounds are charged before they are aggregated, with noise at the server.

    Every client's update is clipped here, the sum is divided by `num_clients`, and all weigh the same; a result that is
    missing or does not fit counts as no update. Metrics of clients are dropped. When the budget is spent, the job ends
    as if it had done its rounds, with the model of the last one.

    Args:
        budget: of the job's run.
        noise_multiplier: standard deviation of the noise of the sum over the clipping norm, in [1e-3, 1e6].
        clipping_norm: to which each client's update is clipped, in [1e-9, 1e9].
        unit: whether the population protects each "client", or each "record" of one client; by default by its name.
        run_name: name of the run.
        num_clients: of a round, and the divisor.
        num_rounds: maximum number of rounds.
        start_round: number of the first one.
        model: initial parameters by name, instead of those of the persistor.
        persistor_id: component that loads and saves the model.
        task_name: of the clients' task.
        fedprox_mu: of FedProx, sent to the clients.
        starts_from: what the initial model was trained by: {"run": id or path}, or {"name": ..., "sha256": ...} of a
            model from outside. Empty: nothing; None: not declared.

    Raises:
        ValueError: an argument is out of its bounds.
        TypeError: a number is no whole one.
    """

    def __init__(  # noqa: PLR0913, PLR0917 - FLARE writes arguments by name into a job's configuration, and so no **options
        self,
        budget: str,
        noise_multiplier: float,
        clipping_norm: float,
        unit: Unit | None = None,
        run_name: str = "nvflare",
        num_clients: int = 3,
        num_rounds: int = 5,
        start_round: int = 0,
        model: Any = None,  # noqa: ANN401 - FLARE's
        persistor_id: str = AppConstants.DEFAULT_PERSISTOR_ID,
        task_name: str = AppConstants.TASK_TRAIN,
        fedprox_mu: float | None = None,
        starts_from: list[dict[str, str]] | None = None,
    ) -> None:
        noise = GaussianNoise(noise_multiplier, clipping_norm=clipping_norm)
        check_account(budget, unit)
        whole("num_clients", num_clients)  # it divides the sum
        whole("num_rounds", num_rounds)
        super().__init__(
            num_clients=num_clients,
            num_rounds=num_rounds,
            start_round=start_round,
            model=model,
            persistor_id=persistor_id,
            task_name=task_name,
            fedprox_mu=fedprox_mu,
            aggregator=NoisyAggregator(noise, num_clients),
        )
        self.budget, self.unit, self.run_name = budget, unit, run_name
        self.starts_from = wire_origins(starts_from)
        self.noise_multiplier, self.clipping_norm = noise_multiplier, clipping_norm
        self.refusal: BudgetExceededError | None = None
        """The refusal that ended the job's rounds, or None."""

    def run(self) -> None:
        """Run the rounds, until they or the budget end.

        Raises:
            LedgerError: anything but a refusal; the model of the last round was saved.
        """
        try:
            with (
                LedgerClient() as client,
                client.create_run(self.run_name, budget=self.budget, starts_from=self.starts_from) as run,
            ):
                run.expected_steps = self.num_rounds
                self.aggregator.run = run
                # FLARE takes some of the connected clients if there are more.
                self.aggregator.cost = RoundCost(run.state.neighboring_relation, unit_of(run, self.unit), "others")
                super().run()
        except BudgetExceededError as refusal:
            self.refusal = refusal
            self.info(f"The budget ends this job after the last saved round: {refusal}")

    def send_model(self, data: FLModel = None, callback: Callable[[FLModel], None] | None = None, **how: Any) -> None:  # noqa: ANN401 - FLARE's
        """Send the model of a round, and remember it."""
        self.aggregator.current = {name: np.array(array) for name, array in numpy_arrays(data.params).items()}
        super().send_model(data=data, callback=callback, **how)

    def update_model(self, model: FLModel, model_update: FLModel) -> FLModel:
        """Take the noisy model; the number of results, which has no noise, is no part of it."""
        model_update.meta = {}
        return super().update_model(model, model_update)


def _moved(current: NDArray[Any], difference: NDArray[Any]) -> NDArray[Any]:
    if current.shape != difference.shape:
        return difference  # does not fit, and counts as missing
    return np.asarray(current + difference)
