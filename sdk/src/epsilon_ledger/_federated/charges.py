"""Events of federated rounds: one client's clipped update is what a neighbour changes."""

from dataclasses import dataclass
from typing import Final, Literal, get_args

from epsilon_ledger import Event, Run, Trial, adaptive_clipping, gaussian, poisson_sampled, sampled_without_replacement
from epsilon_ledger._federated.errors import UnsupportedRoundError
from epsilon_ledger._wire.coercion import one_of

Unit = Literal["client", "record"]
Sampling = Literal["none", "others", "poisson", "fixed"]
"""How clients are drawn: all of them; some, in an unknown way; each by its own coin; so many of all."""

UNITS: Final[tuple[Unit, ...]] = get_args(Unit)

CLIENTS: Final = frozenset({"client", "client device", "device"})
"""Privacy units that are clients by their name."""


def unit_of(run: Run | Trial, unit: Unit | None) -> Unit:
    """Return whether the privacy unit is a client, or a record of one client.

    Raises:
        UnsupportedRoundError: the unit's name does not say it.
        ValueError: there is no such unit.
    """
    if unit is not None:
        return one_of("unit", unit, UNITS)
    name = run.state.privacy_unit
    if name.lower() in CLIENTS:
        return "client"
    raise UnsupportedRoundError(
        f"The population protects each {name!r}. Give unit='client' if that is a whole client of the federation, or "
        f"unit='record' if all data of one {name} is at one client, which has the data of several."
    )


@dataclass(frozen=True)
class RoundCost:
    """What a neighbour changes in the sum of clipped updates.

    Args:
        relation: of the population.
        unit: of the population.
        sampling: of the clients.
        probability: of each client, in (0, 1], with Poisson sampling.
    """

    relation: str
    unit: Unit
    sampling: Sampling
    probability: float | None = None

    def __post_init__(self) -> None:
        """Check that there is a bound.

        Raises:
            UnsupportedRoundError: there is none for this sampling.
        """
        if self.sampling == "poisson" and (self.unit, self.relation) not in (
            ("client", "add_or_remove_one"),
            ("client", "replace_special"),
        ):
            raise UnsupportedRoundError(
                f"No bound is used here for Poisson samples of clients where a neighbour replaces an update: unit="
                f"{self.unit!r} under {self.relation}. Leave sampling_probability out, or under replace_one give "
                f"fixed_size=True."
            )
        if self.sampling == "fixed" and self.relation != "replace_one":
            raise UnsupportedRoundError(
                f"Samples of a fixed size have a bound under replace_one only, and the population is under "
                f"{self.relation}. Give sampling_probability=... for Poisson samples of clients."
            )

    def event(self, noise_multiplier: float, count_stddev: float | None, *, clients: int, sampled: int) -> Event:
        """Return the event of a round.

        Args:
            noise_multiplier: standard deviation of the noise of the sum, over the clipping norm.
            count_stddev: of the noise of the count of clients within the norm; None without adaptive clipping.
            clients: from which `sampled` were drawn.
            sampled: number of clients of a sample of fixed size.

        Returns:
            Two norms of sensitivity count as half the noise, which `replace_one` itself does.
        """
        moved = 2.0 if self.moves_two_norms else 1.0
        if count_stddev is None:
            mechanism: Event = gaussian(noise_multiplier / moved)
        else:
            mechanism = adaptive_clipping(
                gradient_noise_multiplier=noise_multiplier / moved, count_noise_stddev=count_stddev / moved
            )
        if self.sampling == "poisson":
            assert self.probability is not None
            return poisson_sampled(self.probability, mechanism)
        if self.sampling == "fixed":
            return sampled_without_replacement(clients, sampled, mechanism)
        return mechanism

    @property
    def moves_two_norms(self) -> bool:
        """Whether a neighbour moves the sum by two clipping norms, where the ledger counts one.

        A record changes its client's update into another one. A client more takes another one's place in a sample whose
        size is fixed.
        """
        if self.relation == "replace_one":
            return False  # the ledger counts two
        return self.unit == "record" or (self.sampling == "others" and self.relation == "add_or_remove_one")
