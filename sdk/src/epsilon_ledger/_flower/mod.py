"""The mod of clients that add noise of their own."""

import math
from collections.abc import Callable, Sequence
from logging import ERROR
from typing import Any, Final

import numpy as np
from flwr.app import Array, ArrayRecord, ConfigRecord, Context, Error, Message, MessageType, MetricRecord, RecordDict
from flwr.clientapp.mod import LocalDpMod
from flwr.clientapp.typing import ClientAppCallable
from flwr.common.constant import ErrorCode
from flwr.common.logger import log

from epsilon_ledger import BudgetExceededError, Event, LedgerClient, LedgerError, OriginReference, Run
from epsilon_ledger._federated.charges import RoundCost, Unit, unit_of
from epsilon_ledger._federated.errors import UnsupportedRoundError
from epsilon_ledger._federated.updates import NoisyMean, fits
from epsilon_ledger._wire.origins import wire_origins
from epsilon_ledger.mechanisms import GaussianNoise
from epsilon_ledger.mechanisms.checks import clipping_norm

STATE: Final = "epsilon-ledger"
"""Record of a client's context that has its run's id, which Flower keeps from message to message."""

FACTOR: Final = 1.25
"""Of the textbook's Gaussian mechanism, by which Flower computes its noise (Dwork & Roth 2014, Theorem A.1)."""


class LedgerMod:
    """Charge a client's noisy reply before it leaves the device, and add the noise.

    It stands in the place of Flower's LocalDpMod, and clips and adds noise as that is set to, with random numbers that
    nobody can predict. Only the noisy arrays leave: metrics and counts of examples have no noise. Other messages than
    those that train are refused, and so is a reply that the budget does not allow; the server gets an error instead.

    Flower may handle each message in another process. So the run is opened for each message, and its id is kept in the
    client's context.

    Args:
        local_dp: the mod that would add the noise.
        budget: of the client's run: a path, or a function of the client's context.
        unit: whether the population protects each "client", or each "record" of one client; by default by its name.
        name: of the run.
        weighted_by_key: of the server's strategy; every client weighs 1.
        client: opens the ledger's client, by default from the environment.
        starts_from: what the model of the first round was trained by, as for `create_run`.

    Raises:
        ValueError: there is no noise.
        TypeError: `local_dp` is another mod.
    """

    def __init__(
        self,
        local_dp: LocalDpMod,
        budget: str | Callable[[Context], str],
        *,
        unit: Unit | None = None,
        name: str = "flower-client",
        weighted_by_key: str = "num-examples",
        client: Callable[[], LedgerClient] = LedgerClient,
        starts_from: Sequence[OriginReference] | None = None,
    ) -> None:
        if type(local_dp) is not LocalDpMod:
            raise TypeError(f"local_dp is {local_dp!r}, but it must be Flower's own LocalDpMod of flwr.clientapp.mod.")
        self._local_dp, self._budget, self._unit, self._name = local_dp, budget, unit, name
        self._key, self._client = weighted_by_key, client
        self._starts_from = wire_origins(starts_from)
        self._noise()

    def __call__(self, message: Message, context: Context, call_next: ClientAppCallable) -> Message:
        """Let the app train, and release its reply with noise, if the ledger admits that."""
        try:
            return self._answer(message, context, call_next)
        except BudgetExceededError as error:
            return _refused(message, f"budget_exceeded: {error}")
        except UnsupportedRoundError as error:
            return _refused(message, str(error))
        except LedgerError as error:
            return _refused(message, f"The ledger has not admitted this reply: {error}")

    def _answer(self, message: Message, context: Context, call_next: ClientAppCallable) -> Message:
        if message.metadata.message_type.partition(".")[0] != MessageType.TRAIN:
            raise UnsupportedRoundError(f"{type(self).__name__} lets nothing but training leave this device.")
        if len(message.content.array_records) != 1:
            raise UnsupportedRoundError(f"{type(self).__name__} expects exactly one ArrayRecord.")
        (sent,) = message.content.array_records.values()
        # The app may write into what it was sent.
        current = {name: np.array(array.numpy()) for name, array in sent.items()}
        records = list(_trained(message, context, call_next).array_records.items())
        arrays = {name: array.numpy() for name, array in records[0][1].items()} if len(records) == 1 else {}
        if not fits(arrays, current):
            raise UnsupportedRoundError("The app's reply does not have the arrays that it was sent.")
        noisy = self._noisy(arrays, current, context)
        content = RecordDict(
            {
                records[0][0]: ArrayRecord({key: Array(np.asarray(array)) for key, array in noisy.items()}),
                "metrics": MetricRecord({self._key: 1}),
            }
        )
        return Message(content, reply_to=message)

    def _noisy(self, arrays: dict[str, Any], current: dict[str, Any], context: Context) -> dict[str, Any]:
        noise = self._noise()
        mean = NoisyMean(noise, [arrays], current, clients=1)
        with self._client() as client:
            run = self._open(client, context)
            run.authorize(event=self._event(run, noise))
            return mean.draw()

    def _open(self, client: LedgerClient, context: Context) -> Run:
        """Open the client's run; its first message creates it."""
        if STATE in context.state:
            return client.get_run(str(context.state[STATE]["run"]))
        budget = self._budget if isinstance(self._budget, str) else self._budget(context)
        run = client.create_run(self._name, budget=budget, starts_from=self._starts_from)
        context.state[STATE] = ConfigRecord({"run": run.id})
        return run

    def _noise(self) -> GaussianNoise:
        """Make the mechanism with the noise that LocalDpMod would add."""
        local = self._local_dp
        positive = 0 < local.epsilon < math.inf and 0 < local.sensitivity < math.inf
        if not positive or not 0 < local.delta < FACTOR:
            raise ValueError(
                f"LocalDpMod has epsilon {local.epsilon}, delta {local.delta} and sensitivity {local.sensitivity}, "
                f"which give no noise: all must be finite and above 0, and delta below {FACTOR}."
            )
        norm = clipping_norm("clipping_norm", local.clipping_norm)
        deviation = local.sensitivity * math.sqrt(2 * math.log(FACTOR / local.delta)) / local.epsilon
        return GaussianNoise(deviation / norm, clipping_norm=norm)

    def _event(self, run: Run, noise: GaussianNoise) -> Event:
        """Return the event of a reply: neighbours move it by two clipping norms, wherever they are in the ball."""
        relation, unit = run.state.neighboring_relation, unit_of(run, self._unit)
        if unit == "client" and relation == "add_or_remove_one":
            raise UnsupportedRoundError(
                "A reply shows that its client takes part, so no noise hides a client that is added or removed. Charge "
                "a population under replace_one or replace_special, or one whose units are records of one client."
            )
        cost = RoundCost(relation, unit, "none")
        return cost.event(noise.noise_multiplier, None, clients=1, sampled=1)


def _trained(message: Message, context: Context, call_next: ClientAppCallable) -> RecordDict:
    """Let the app train; what it says about a failure may quote data, and stays here.

    Raises:
        UnsupportedRoundError: it has failed.
    """
    try:
        reply = call_next(message, context)
    except Exception as error:  # noqa: BLE001 - Flower would send what it says
        log(ERROR, "The app has failed: %r", error)
    else:
        if not reply.has_error():
            return reply.content
    raise UnsupportedRoundError("The app has failed.")


def _refused(message: Message, reason: str) -> Message:
    return Message(Error(code=ErrorCode.MOD_FAILED_PRECONDITION, reason=reason), reply_to=message)
