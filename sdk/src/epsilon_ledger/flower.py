"""Flower adapter: every round is charged before it is aggregated, and every noisy reply before it leaves its device.

    strategy = DifferentialPrivacyServerSideFixedClipping(FedAvg(), 1.0, 0.5, num_sampled_clients=100)
    strategy = charge_rounds(strategy, run)
    result = strategy.start(grid, initial_arrays, num_rounds=200)

`result.refusal` says why the rounds ended, if the budget ended them; `result.arrays` is the model in any case.

On the clients, with noise of their own: `ClientApp(mods=[LedgerMod(LocalDpMod(...), budget="devices/phone-17")])`.

Needs `pip install "epsilon-ledger-client[flower]"`.
"""

from typing import Any

from flwr.server.strategy import Strategy as LegacyStrategy

from epsilon_ledger import Event, Run, Trial
from epsilon_ledger._federated.charges import Unit
from epsilon_ledger._federated.errors import UnsupportedRoundError
from epsilon_ledger._flower.legacy import LedgerLegacyStrategy
from epsilon_ledger._flower.mod import LedgerMod
from epsilon_ledger._flower.settings import RoundOptions
from epsilon_ledger._flower.strategy import LedgerResult, LedgerStrategy

__all__ = [
    "LedgerLegacyStrategy",
    "LedgerMod",
    "LedgerResult",
    "LedgerStrategy",
    "UnsupportedRoundError",
    "charge_rounds",
]


def charge_rounds(
    strategy: Any,  # noqa: ANN401 - mypy does not read Flower
    run: Run | Trial,
    *,
    unit: Unit | None = None,
    sampling_probability: float | None = None,
    fixed_size: bool = False,
    evaluate_event: Event | None = None,
) -> Any:  # noqa: ANN401 - a strategy of the same API
    """Wrap a strategy such that the ledger admits every round before it is aggregated.

    Noise multiplier, clipping norm and number of clients are those of Flower's wrapper, as they are at each round. The
    wrapped strategy gets the noisy mean only. Clipping, sum and noise are the ledger client's: see `NoisyMean`.

    Args:
        strategy: DifferentialPrivacyServerSideFixedClipping, ...ClientSideFixedClipping, ...ServerSideAdaptiveClipping
            or ...ClientSideAdaptiveClipping, around a strategy that averages.
        run: to charge.
        unit: whether the population protects each "client", or each "record" of one client; by default by its name.
        sampling_probability: draws each client by its own coin, in (0, 1]; by default the strategy chooses clients, and
            a round is charged as if all took part.
        fixed_size: draws `num_sampled_clients` clients, for populations under `replace_one`.
        evaluate_event: what the noise on the metrics of one evaluation costs, which clients add to them; by default no
            client is asked to evaluate.

    Returns:
        A LedgerStrategy, or a LedgerLegacyStrategy of Flower's earlier API.

    Raises:
        UnsupportedRoundError: the cost of a round is unknown.
        ValueError: a setting is out of range, such as no noise.
        TypeError: the run is an AsyncRun.
    """
    kind = LedgerLegacyStrategy if isinstance(strategy, LegacyStrategy) else LedgerStrategy
    return kind(strategy, run, RoundOptions(unit, sampling_probability, fixed_size, evaluate_event))
