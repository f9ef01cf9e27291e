"""Epsilons of a run after further repetitions of an event, computed ahead (ADR 0033)."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

from app.accounting.curves import EXHAUSTED, UNIT, RdpCurve
from app.ledger.accounts import Account
from app.ledger.filters import FilterBounds

EPSILONS_AHEAD: Final = 64
"""Epsilons computed at once, if an event is repeated."""

_EXACT: Final = 2**53
"""Units below which every integer is a float."""


@dataclass(frozen=True, slots=True)
class EpsilonsAhead:
    """The epsilons of a run by its governing filter, some of them computed ahead.

    Args:
        governing: the account with the filter.
        gate: its bounds.
        spent: of the run, at their orders, before the repetitions of the current event.
        curve: of the event whose epsilons are known, if any.
        first: number of its repetitions at the first of the values.
        values: epsilons after `first` repetitions, one more, and so on; none if they are not exact.
    """

    governing: Account
    gate: FilterBounds
    spent: RdpCurve
    curve: RdpCurve | None = None
    first: int = 0
    values: Sequence[float] = ()

    @classmethod
    def of(cls, governing: Account, spent: RdpCurve, charged: Iterable[tuple[RdpCurve, int]]) -> "EpsilonsAhead":
        """Begin with a run's spent curve and repetitions that are not in it."""
        gate = governing.bounds(spent.delta)
        here = spent.at(gate.places)
        for curve, count in charged:
            here = here + curve.at(gate.places).times(count)
        return cls(governing, gate, here)

    def charged(self, curve: RdpCurve, count: int) -> "EpsilonsAhead":
        """Copy the run's state after repetitions of an event."""
        return EpsilonsAhead(self.governing, self.gate, self.spent + curve.at(self.gate.places).times(count))

    def computed(self, curve: RdpCurve, counts: range) -> "EpsilonsAhead":
        """Copy the run's state with the epsilons after several numbers of repetitions of an event."""
        values = self._values(curve.values[self.gate.places], counts)
        return EpsilonsAhead(self.governing, self.gate, self.spent, curve, counts.start, values)

    def _values(self, cost: NDArray[np.int64], counts: range) -> list[float]:
        """Compute epsilons as `FilterBounds.epsilon` does, with the same operations on floats."""
        before = self.spent.values
        used = (before < EXHAUSTED) & (cost < EXHAUSTED)  # elsewhere a divergence is infinite, and never the least
        before, cost, prices = before[used], cost[used], self.gate.prices[used]
        if not before.size or not (before.any() or cost.any()) or self.spent.delta > self.gate.room:
            return []
        if int(cost.max()) * counts[-1] + int(before.max()) >= _EXACT:
            return []
        here = before[:, None] + cost[:, None] * np.array(counts)
        epsilons = np.maximum(0.0, (here * np.float64(UNIT) + prices[:, None]).min(axis=0))
        epsilons[(here <= self.gate.covered).any(axis=0)] = 0.0  # never, where delta covers nothing
        found: list[float] = epsilons.tolist()
        return found
