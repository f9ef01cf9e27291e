"""Epsilons of a run that are known before the charges at which they hold."""

from collections.abc import Mapping, Sequence
from typing import Final, NamedTuple

from app.accounting.conversion import conversion_prices, epsilon_of_curve, remaining_delta
from app.accounting.curves import PURE, UNIT, RdpCurve, orders

GROWTH: Final = 8
"""A loss may grow by one part in so many until the order is chosen anew. Where epsilon is least, divergence and price
are about equal: at 9/8 of the loss the order that was best before proves at most 0.2 % more than the best one."""

EXACT: Final = 2**53
"""Divergences in units up to which floating point has each."""


class EpsilonsAhead(NamedTuple):
    """Epsilons that hold up to some repetitions, rising.

    Few objects: what is kept between steps makes Python collect its garbage more often.

    Args:
        most: for each event, by fingerprint, its repetitions up to which each epsilon holds; of others there are none.
        epsilons: nats.
    """

    most: Mapping[str, Sequence[int]]
    epsilons: Sequence[float]

    def less(self, before: Mapping[str, int]) -> "EpsilonsAhead":
        """Count from some repetitions on."""
        most = {event: [count - before.get(event, 0) for count in counts] for event, counts in self.most.items()}
        return EpsilonsAhead(most, self.epsilons)


NONE_AHEAD: Final = EpsilonsAhead({}, ())


class EpsilonAtOrder(NamedTuple):
    """The order at which a run's epsilon is about the least that its Rényi curve proves.

    Args:
        place: of the order on the grid.
        price: nats that the conversion adds there.
        spent: units there, before the repetitions of the current event.
        most: units up to which the order is kept.
    """

    place: int
    price: float
    spent: int
    most: int

    @classmethod
    def of(cls, spent: RdpCurve, grid_version: int, delta: float) -> "EpsilonAtOrder | None":
        """Choose the order for a loss that no repetition follows yet; None if no order decides."""
        grid = orders(grid_version)
        best = epsilon_of_curve(grid, spent, delta)
        place = int((grid == best.order).argmax())
        units = spent.values.item(place)
        most = units + units // GROWTH
        if best.order == PURE or not best.epsilon or most > EXACT:
            return None
        return cls(place, conversion_prices(grid, remaining_delta(delta, spent.delta)).item(place), units, most)

    def charged(self, cost: RdpCurve, count: int) -> "EpsilonAtOrder":
        """Add repetitions, or take them out, and continue with another event."""
        return self._replace(spent=self.spent + cost.values.item(self.place) * count)

    def after(self, cost: RdpCurve, count: int) -> float | None:
        """Compute epsilon after repetitions; None if the order must be chosen anew."""
        units = self.spent + cost.values.item(self.place) * count
        return units * UNIT + self.price if units <= self.most else None
