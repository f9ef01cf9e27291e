"""The wrapper of strategies that exchange messages (`flwr.serverapp`)."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
from flwr.app import Array, ArrayRecord, ConfigRecord, Message, MessageType, MetricRecord, RecordDict
from flwr.serverapp import Grid
from flwr.serverapp.strategy import (
    DifferentialPrivacyClientSideAdaptiveClipping,
    DifferentialPrivacyClientSideFixedClipping,
    DifferentialPrivacyServerSideAdaptiveClipping,
    DifferentialPrivacyServerSideFixedClipping,
    Result,
    Strategy,
)
from numpy.typing import NDArray

from epsilon_ledger import BudgetExceededError, Run, Trial
from epsilon_ledger._federated.updates import ClientCounts, NoisyMean
from epsilon_ledger._flower.rounds import Rounds, require_different
from epsilon_ledger._flower.settings import RoundOptions, Settings
from epsilon_ledger._run.blocking_run import require_blocking_run

WRAPPERS: Final = (
    DifferentialPrivacyServerSideFixedClipping,
    DifferentialPrivacyClientSideFixedClipping,
    DifferentialPrivacyServerSideAdaptiveClipping,
    DifferentialPrivacyClientSideAdaptiveClipping,
)
NORM_BIT: Final = "norm_bit"
"""Where Flower's adaptiveclipping_mod says whether it has clipped."""

EvaluateFn = Callable[[int, ArrayRecord], MetricRecord | None]


@dataclass
class LedgerResult(Result):
    """Result of a federated training, also if the budget ended it.

    Args:
        refusal: that ended the training, or None.
    """

    refusal: BudgetExceededError | None = None


class LedgerStrategy(Strategy):
    """A strategy whose rounds are charged before they are aggregated: see `charge_rounds`.

    Args:
        strategy: one of Flower's wrappers for central differential privacy.
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
        self.result = LedgerResult()
        """What the rounds so far have released: also after an exception."""
        self._evaluate_event = options.evaluate_event
        self._settings = Settings(
            strategy, run, options, kinds=WRAPPERS, configures="configure_train", fraction="fraction_train"
        )
        self._rounds = Rounds[ArrayRecord](run, self._settings)

    def start(  # noqa: PLR0917 - Flower's signature
        self,
        grid: Grid,
        initial_arrays: ArrayRecord,
        num_rounds: int = 3,
        timeout: float = 3600,
        train_config: ConfigRecord | None = None,
        evaluate_config: ConfigRecord | None = None,
        evaluate_fn: EvaluateFn | None = None,
    ) -> LedgerResult:
        """Run rounds as Flower does, until they or the budget end.

        Args:
            grid: of clients.
            initial_arrays: public, or released before.
            num_rounds: maximum number of rounds.
            timeout: of replies, in seconds.
            train_config: sent with each round.
            evaluate_config: sent with each evaluation.
            evaluate_fn: called with each round's new arrays; the place for checkpoints.

        Returns:
            What was released, and the refusal that ended the rounds, or None.

        Raises:
            LedgerError: anything but a refusal; `result` has what was released before.
        """
        self.result = LedgerResult(arrays=initial_arrays)
        if isinstance(self.run, Run):
            self.run.expected_steps = self.run.next_step + num_rounds * (1 if self._evaluate_event is None else 2)

        def evaluate(server_round: int, arrays: ArrayRecord) -> MetricRecord | None:
            assert evaluate_fn is not None
            metrics = evaluate_fn(server_round, arrays)
            if metrics is not None:
                self.result.evaluate_metrics_serverapp[server_round] = metrics
            return metrics

        try:
            super().start(
                grid,
                initial_arrays,
                num_rounds,
                timeout,
                train_config,
                evaluate_config,
                None if evaluate_fn is None else evaluate,
            )
        except BudgetExceededError as refusal:
            self.result.refusal = refusal
        return self.result

    def configure_train(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        """Choose the clients of a round; a sample is drawn here if that is asked for.

        Raises:
            LedgerError: an earlier round, whose clients were drawn in vain, cannot be charged.
        """
        proposed = self.strategy.configure_train(server_round, arrays, config, grid)
        messages = self._rounds.draw(server_round, arrays, proposed)
        require_different([message.metadata.dst_node_id for message in messages])
        return messages

    def aggregate_train(
        self, server_round: int, replies: Iterable[Message]
    ) -> tuple[ArrayRecord | None, MetricRecord | None]:
        """Charge a round, then release its noisy mean; the wrapped strategy sees nothing else.

        Args:
            server_round: number of the round.
            replies: of its clients.

        Returns:
            The new arrays; metrics of clients have no noise and are dropped.

        Raises:
            BudgetExceededError: nothing of the round was released.
            LedgerError: as above.
        """
        arrays = self._rounds.require_open(server_round).model
        contents = self._contents(replies)
        mechanism = self._settings.mechanism()
        mean = NoisyMean(
            mechanism,
            [_arrays_of(content) for content in contents],
            {name: array.numpy() for name, array in arrays.items()},
            clients=self._settings.divisor,
            within=[_is_within(content) for content in contents] if isinstance(mechanism, ClientCounts) else None,
        )
        self._rounds.charge(mechanism)
        noisy = mean.draw()
        self._settings.keep(mechanism)
        new, metrics = self._step(server_round, noisy)
        if new is not None:
            self.result.arrays = new
        if metrics:
            self.result.train_metrics_clientapp[server_round] = metrics
        return new, metrics or None

    def configure_evaluate(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        """Ask clients to evaluate, if the noise of their metrics was stated; by default nobody is asked."""
        if self._evaluate_event is None:
            return []
        messages: Iterable[Message] = self.strategy.configure_evaluate(server_round, arrays, config, grid)
        return messages

    def aggregate_evaluate(self, server_round: int, replies: Iterable[Message]) -> MetricRecord | None:
        """Charge an evaluation, then aggregate the clients' noisy metrics.

        Raises:
            BudgetExceededError: the metrics are not released.
            LedgerError: as above.
        """
        if self._evaluate_event is None:
            return None
        self.run.authorize(event=self._evaluate_event)
        metrics: MetricRecord | None = self.strategy.aggregate_evaluate(server_round, replies)
        if metrics is not None:
            self.result.evaluate_metrics_clientapp[server_round] = metrics
        return metrics

    def summary(self) -> None:
        """Log the configuration of the wrapped strategy."""
        self.strategy.summary()

    def _contents(self, replies: Iterable[Message]) -> list[RecordDict]:
        """Keep one reply of each client that sent one."""
        answered = [reply for reply in replies if not reply.has_error()]
        require_different([reply.metadata.src_node_id for reply in answered])
        return [reply.content for reply in answered]

    def _step(
        self, server_round: int, noisy: dict[str, NDArray[Any]]
    ) -> tuple[ArrayRecord | None, MetricRecord | None]:
        """Give the noisy mean to the innermost strategy as if one client had sent it: that is post-processing."""
        inner = self.strategy.strategy
        reply = Message(
            RecordDict(
                {
                    getattr(inner, "arrayrecord_key", "arrays"): ArrayRecord(
                        {name: Array(np.asarray(array)) for name, array in noisy.items()}
                    ),
                    "metrics": MetricRecord({getattr(inner, "weighted_by_key", "num-examples"): 1}),
                }
            ),
            dst_node_id=0,
            message_type=MessageType.TRAIN,
        )
        arrays, metrics = inner.aggregate_train(server_round, [reply])
        return arrays, metrics


def _arrays_of(content: RecordDict) -> dict[str, NDArray[Any]]:
    """Return the only array record of a reply; of another reply nothing, which counts as missing."""
    records = list(content.array_records.values())
    return {name: array.numpy() for name, array in records[0].items()} if len(records) == 1 else {}


def _is_within(content: RecordDict) -> bool:
    """Return whether a client did not have to clip; without its word, that it had to."""
    return any(record.get(NORM_BIT) == 0 for record in content.metric_records.values())
