"""The wrapper of strategies of the earlier API (`flwr.server`), which fit parameters."""

from typing import Any, Final

import numpy as np
from flwr.common import (
    Code,
    EvaluateIns,
    EvaluateRes,
    FitIns,
    FitRes,
    Parameters,
    Scalar,
    Status,
    ndarrays_to_parameters,
    parameters_to_ndarrays,
)
from flwr.server.client_manager import ClientManager
from flwr.server.client_proxy import ClientProxy
from flwr.server.strategy import (
    DifferentialPrivacyClientSideAdaptiveClipping,
    DifferentialPrivacyClientSideFixedClipping,
    DifferentialPrivacyServerSideAdaptiveClipping,
    DifferentialPrivacyServerSideFixedClipping,
    Strategy,
)
from numpy.typing import NDArray

from epsilon_ledger import BudgetExceededError, Run, Trial
from epsilon_ledger._federated.errors import UnsupportedRoundError
from epsilon_ledger._federated.updates import ClientCounts, NoisyMean
from epsilon_ledger._flower.rounds import Rounds, require_different
from epsilon_ledger._flower.settings import RoundOptions, Settings
from epsilon_ledger._flower.strategy import NORM_BIT
from epsilon_ledger._run.blocking_run import require_blocking_run

WRAPPERS: Final = (
    DifferentialPrivacyServerSideFixedClipping,
    DifferentialPrivacyClientSideFixedClipping,
    DifferentialPrivacyServerSideAdaptiveClipping,
    DifferentialPrivacyClientSideAdaptiveClipping,
)

Failures = list[tuple[ClientProxy, FitRes] | BaseException]
EvaluateFailures = list[tuple[ClientProxy, EvaluateRes] | BaseException]


class LedgerLegacyStrategy(Strategy):
    """A strategy of the earlier API whose rounds are charged before they are aggregated: see `charge_rounds`.

    Flower's server keeps its model after the budget has ended: no further client is asked, and `refusal` says why.

    Args:
        strategy: one of Flower's wrappers for central differential privacy, of the earlier API.
        run: to charge.
        options: how rounds are charged.

    Raises:
        UnsupportedRoundError: the cost of a round is unknown.
        ValueError: a setting is out of range.
    """

    def __init__(self, strategy: Strategy, run: Run | Trial, options: RoundOptions) -> None:
        super().__init__()
        require_blocking_run(run)
        self.strategy = strategy
        self.run = run
        self.refusal: BudgetExceededError | None = None
        """The refusal that ended the training, or None."""
        self._evaluate_event = options.evaluate_event
        self._settings = Settings(
            strategy, run, options, kinds=WRAPPERS, configures="configure_fit", fraction="fraction_fit"
        )
        self._rounds = Rounds[Parameters](run, self._settings)

    def initialize_parameters(self, client_manager: ClientManager) -> Parameters:
        """Return the initial parameters of the wrapped strategy.

        Raises:
            UnsupportedRoundError: it has none, so that Flower would take those of a client, without noise.
        """
        parameters = self.strategy.initialize_parameters(client_manager)
        if parameters is None:
            raise UnsupportedRoundError(
                "The strategy has no initial_parameters, and Flower would take those of a client, without noise. Give "
                "initial_parameters, which are public."
            )
        return parameters

    def configure_fit(
        self, server_round: int, parameters: Parameters, client_manager: ClientManager
    ) -> list[tuple[ClientProxy, FitIns]]:
        """Choose the clients of a round; after a refusal none.

        Flower cancels a round without clients. So an empty sample, whose round is noise alone, has one that fails.

        Raises:
            LedgerError: an earlier round, whose clients were drawn in vain, cannot be charged; but not a refusal.
        """
        if self.refusal is not None:
            return []
        proposed = self.strategy.configure_fit(server_round, parameters, client_manager)
        try:
            instructions = self._rounds.draw(server_round, parameters, proposed)
        except BudgetExceededError as refusal:
            self.refusal = refusal
            return []
        require_different([client.cid for client, _ in instructions])
        return instructions or ([(_NoClient("none"), FitIns(parameters, {}))] if proposed else [])

    def aggregate_fit(
        self, server_round: int, results: list[tuple[ClientProxy, FitRes]], failures: Failures
    ) -> tuple[Parameters | None, dict[str, Scalar]]:
        """Charge a round, then release its noisy mean; the wrapped strategy sees nothing else.

        Args:
            server_round: number of the round.
            results: of its clients.
            failures: of its clients, which count as no update.

        Returns:
            The new parameters, or None after a refusal; metrics of clients have no noise and are dropped.

        Raises:
            LedgerError: anything but a refusal; nothing of the round was released.
        """
        del failures
        parameters = self._rounds.require_open(server_round).model
        require_different([client.cid for client, _ in results])
        mechanism = self._settings.mechanism()
        mean = NoisyMean(
            mechanism,
            [_named(result.parameters) for _, result in results],
            _named(parameters),
            clients=self._settings.divisor,
            within=[_is_within(result) for _, result in results] if isinstance(mechanism, ClientCounts) else None,
        )
        try:
            self._rounds.charge(mechanism)
        except BudgetExceededError as refusal:
            self.refusal = refusal
            return None, {}
        noisy = mean.draw()
        self._settings.keep(mechanism)
        return self._step(server_round, noisy)

    def configure_evaluate(
        self, server_round: int, parameters: Parameters, client_manager: ClientManager
    ) -> list[tuple[ClientProxy, EvaluateIns]]:
        """Ask clients to evaluate, if the noise of their metrics was stated; by default nobody is asked."""
        if self._evaluate_event is None or self.refusal is not None:
            return []
        instructions: list[tuple[ClientProxy, EvaluateIns]] = self.strategy.configure_evaluate(
            server_round, parameters, client_manager
        )
        return instructions

    def aggregate_evaluate(
        self, server_round: int, results: list[tuple[ClientProxy, EvaluateRes]], failures: EvaluateFailures
    ) -> tuple[float | None, dict[str, Scalar]]:
        """Charge an evaluation, then aggregate the clients' noisy metrics; nothing after a refusal."""
        if self._evaluate_event is None:
            return None, {}
        try:
            self.run.authorize(event=self._evaluate_event)
        except BudgetExceededError as refusal:
            self.refusal = refusal
            return None, {}
        metrics: tuple[float | None, dict[str, Scalar]] = self.strategy.aggregate_evaluate(
            server_round, results, failures
        )
        return metrics

    def evaluate(self, server_round: int, parameters: Parameters) -> tuple[float, dict[str, Scalar]] | None:
        """Evaluate released parameters at the server."""
        metrics: tuple[float, dict[str, Scalar]] | None = self.strategy.evaluate(server_round, parameters)
        return metrics

    def _step(self, server_round: int, noisy: dict[str, NDArray[Any]]) -> tuple[Parameters | None, dict[str, Scalar]]:
        """Give the noisy mean to the innermost strategy as if one client had sent it: that is post-processing."""
        fitted = FitRes(Status(Code.OK, ""), ndarrays_to_parameters(list(noisy.values())), 1, {})
        parameters, metrics = self.strategy.strategy.aggregate_fit(server_round, [(_NoClient("server"), fitted)], [])
        return parameters, metrics


class _NoClient(ClientProxy):
    """Stands for the client of the noisy mean, or of an empty sample: whatever it is asked fails."""

    def _absent(self, *_: object, **__: object) -> Any:  # noqa: ANN401 - never returns
        raise NotImplementedError

    get_properties = get_parameters = fit = evaluate = reconnect = _absent


def _named(parameters: Parameters) -> dict[str, NDArray[Any]]:
    return {str(index): np.asarray(array) for index, array in enumerate(parameters_to_ndarrays(parameters))}


def _is_within(result: FitRes) -> bool:
    """Return whether a client did not have to clip; without its word, that it had to."""
    return result.metrics.get(NORM_BIT) in (0, False)
