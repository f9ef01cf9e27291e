"""What an account without a plan admits, by Rényi orders that are tuned to these events of its runs (ADR 0053)."""

from dataclasses import dataclass
from typing import ClassVar, Final

import numpy as np
from numpy.typing import NDArray

from app.accounting.conversion import Rule
from app.accounting.curves import RdpCurve
from app.accounting.pricing_effort import use_effort
from app.ledger.filter.filters import FilterBounds, filter_bounds, filter_weights
from app.ledger.filter.limits import Limit
from app.planning.declared_plans import DELTAS, EPSILONS, smallest_limit

USUAL_SURCHARGE: Final = 1.01
"""Typical factor between the limit and the epsilon of an in-process accountant, where the search starts."""

USUAL_SHARE: Final = 0.96
"""Share of delta of the order that usually admits the most, where the search starts."""

WEIGHING: Final = 1000
"""Maximum time of computing filter weights, in microseconds."""

CLOSED: Final = -1
"""Bound of an order that admits nothing."""


@dataclass(frozen=True, slots=True)
class RenyiRule(Rule):
    """Rule that an account without a plan admits all events, which its runs have registered."""

    depends_on_plan: ClassVar[bool] = True

    def bounds(self, total: RdpCurve) -> NDArray[np.int64]:
        """Compute the bound of each order for the curve of all events.

        Returns:
            (n_orders,) int64, units of 2^-44 nats; -1 at an unused order.
        """
        use_effort(WEIGHING)
        gate = self._gate(total)
        bounds = np.full(total.values.shape, CLOSED, dtype=np.int64)
        if total.delta <= gate.room:
            bounds[gate.places] = gate.bounds
        return bounds

    def has_room(self, total: RdpCurve) -> bool:
        """Check whether the part of delta that is set aside covers the events' own."""
        return total.delta <= self._gate(total).room

    def _gate(self, total: RdpCurve) -> FilterBounds:
        limit = Limit(self.epsilon, self.delta)
        return filter_bounds(limit, filter_weights(limit, total, self.grid_version), self.grid_version)


def required_epsilon(total: RdpCurve, delta: float, fixed: float) -> float:
    """Find the smallest epsilon of a limit under which an account without a plan admits all events.

    Args:
        total: curve of all events.
        delta: of the limit, in [1e-30, 0.5).
        fixed: the events' epsilon if fixed in advance, where the search starts.

    Returns:
        Six significant digits, rounded up; infinite if no limit suffices.
    """
    if total.is_zero:
        return 0.0
    return smallest_limit(lambda epsilon: RenyiRule(epsilon, delta).fits(total), fixed * USUAL_SURCHARGE, EPSILONS)


def required_delta(total: RdpCurve, epsilon: float, fixed: float) -> float:
    """Find the smallest delta of a limit, as `required_epsilon`; 1 if no limit suffices."""
    if total.is_zero:
        return 0.0
    found = smallest_limit(lambda delta: RenyiRule(epsilon, delta).fits(total), fixed / USUAL_SHARE, DELTAS)
    return min(found, 1.0)
