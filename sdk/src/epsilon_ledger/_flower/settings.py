"""What Flower's wrappers for differential privacy are set to, and how clients are drawn."""

from collections.abc import Iterable
from dataclasses import dataclass
from secrets import SystemRandom
from typing import Any, Final, TypeVar

from epsilon_ledger import Event, Run, Trial
from epsilon_ledger._federated.charges import RoundCost, Sampling, Unit, unit_of
from epsilon_ledger._federated.errors import UnsupportedRoundError
from epsilon_ledger._federated.updates import ClientCounts
from epsilon_ledger.mechanisms import AdaptiveClipping, GaussianNoise, PoissonSampler

T = TypeVar("T")

SINGLE_UPDATES: Final = frozenset(
    {
        "Bulyan",
        "FedMedian",
        "FedTrimmedAvg",
        "FedXgbBagging",
        "FedXgbCyclic",
        "FedXgbNnAvg",
        "Krum",
        "MultiKrum",
        "QFedAvg",
    }
)
"""Strategies that look at the single updates."""


@dataclass(frozen=True)
class RoundOptions:
    """How rounds are charged.

    Args:
        unit: whether the population protects clients, or records of one client each; None: by its name.
        sampling_probability: of Poisson samples of clients, drawn here; None: the strategy chooses clients.
        fixed_size: whether samples of `num_sampled_clients` clients are drawn here.
        evaluate_event: what the clients' own noise on the metrics of one round's evaluation costs; None: there is no
            evaluation by clients.
    """

    unit: Unit | None = None
    sampling_probability: float | None = None
    fixed_size: bool = False
    evaluate_event: Event | None = None


class Settings:
    """A wrapper's settings, read anew for each round.

    Args:
        wrapper: one of Flower's wrappers, of either API.
        kinds: the wrappers' classes: with a fixed norm, and with an adaptive one.
        run: to charge.
        options: how rounds are charged.
        configures: name of the method that chooses the clients of a round.
        fraction: name of the attribute with the fraction of clients of a round.

    Raises:
        UnsupportedRoundError: the cost of a round is unknown.
        ValueError: a setting is out of range, such as no noise.
    """

    def __init__(
        self,
        wrapper: Any,  # noqa: ANN401 - mypy does not read Flower
        run: Run | Trial,
        options: RoundOptions,
        *,
        kinds: tuple[type, ...],
        configures: str,
        fraction: str,
    ) -> None:
        if type(wrapper) not in kinds:
            raise UnsupportedRoundError(
                f"{type(wrapper).__name__} is none of Flower's own wrappers for central differential privacy, so what "
                f"noise it adds is not known. Give one of {', '.join(kind.__name__ for kind in kinds)}."
            )
        if getattr(wrapper, "accountant", None) is not None:
            raise UnsupportedRoundError(
                "This wrapper has an accountant of Flower's, which would not see these rounds. Leave accountant out: "
                "the run's epsilon is the ledger's."
            )
        inner = wrapper.strategy
        single = SINGLE_UPDATES.intersection(kind.__name__ for kind in type(inner).__mro__)
        if single:
            raise UnsupportedRoundError(
                f"{type(inner).__name__} compares the single updates of clients, which noise on their mean does not "
                f"protect. Wrap FedAvg, FedProx, FedAvgM, FedAdagrad, FedAdam or FedYogi."
            )
        q = options.sampling_probability
        if q is not None and options.fixed_size:
            raise ValueError("Give sampling_probability or fixed_size, not both.")
        everyone = getattr(inner, fraction, None) == 1.0 and _is_flowers(inner, configures)
        drawn: Sampling = "poisson" if q is not None else "fixed" if options.fixed_size else "none"
        if drawn != "none" and not everyone:
            raise UnsupportedRoundError(
                f"Samples drawn here need a strategy that proposes all clients: {fraction}=1.0, and Flower's own "
                f"{configures}."
            )
        self._wrapper = wrapper
        self._cost = RoundCost(
            run.state.neighboring_relation,
            unit_of(run, options.unit),
            drawn if everyone else "others",
            q,
        )
        if q is not None:
            PoissonSampler(1, q)  # checks it
        self.mechanism()

    @property
    def divisor(self) -> int:
        """The public number of clients by which a sum is divided."""
        return int(self._wrapper.num_sampled_clients)

    def mechanism(self) -> GaussianNoise | AdaptiveClipping:
        """Make the mechanism of the next round."""
        wrapper = self._wrapper
        noise = GaussianNoise(wrapper.noise_multiplier, clipping_norm=wrapper.clipping_norm)
        if not hasattr(wrapper, "clipped_count_stddev"):
            return noise
        kind = ClientCounts if "ClientSide" in type(wrapper).__name__ else AdaptiveClipping
        return kind(
            noise,
            expected_summands=self.divisor,
            learning_rate=wrapper.clip_norm_lr,
            target_unclipped_quantile=1.0 - wrapper.target_clipped_quantile,
            fraction_stddev=wrapper.clipped_count_stddev / self.divisor,
        )

    def event(self, mechanism: GaussianNoise | AdaptiveClipping, *, clients: int, sampled: int) -> Event:
        """Return the event of a round.

        Args:
            mechanism: of the round.
            clients: to which the strategy would send.
            sampled: number of those that were drawn.
        """
        adaptive = isinstance(mechanism, AdaptiveClipping)
        z = mechanism.noise.noise_multiplier if adaptive else mechanism.noise_multiplier
        stddev = mechanism.count_noise_stddev if adaptive else None
        return self._cost.event(z, stddev, clients=clients, sampled=sampled)

    def keep(self, mechanism: GaussianNoise | AdaptiveClipping) -> None:
        """Keep the clipping norm that a round has moved."""
        if isinstance(mechanism, AdaptiveClipping):
            self._wrapper.clipping_norm = mechanism.clipping_norm

    def draw(self, messages: Iterable[T]) -> tuple[list[T], int]:
        """Draw the clients of a round, with random numbers that nobody can predict.

        Args:
            messages: one for each client that the strategy proposes.

        Returns:
            Those of the sample, and the number of all.
        """
        proposed = list(messages)
        if self._cost.sampling == "poisson":
            q = self._cost.probability
            assert q is not None
            chosen = PoissonSampler(len(proposed), q).sample() if proposed else ()
            return [proposed[index] for index in chosen], len(proposed)
        if self._cost.sampling == "fixed":
            return SystemRandom().sample(proposed, min(self.divisor, len(proposed))), len(proposed)
        return proposed, len(proposed)


def _is_flowers(strategy: object, method: str) -> bool:
    """Return whether a strategy's method is defined by Flower."""
    return bool(getattr(getattr(type(strategy), method, None), "__module__", "").startswith("flwr."))
