"""Epsilon and delta of a plan that is fixed in advance: the smaller of two proven numbers, at the full delta.

One is that of the best Rényi order (`conversion`). The other is by privacy loss distributions, where every event has a
pair (`pld`). Neither depends on a limit, a declared plan or the order of the events.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from math import inf

from app.accounting.conversion import DeltaAtOrder, EpsilonAtOrder, delta_of_curve, epsilon_of_curve
from app.accounting.curves import GRID_VERSION, HIGHEST, RdpCurve, orders
from app.accounting.errors import PlanTooExpensiveError, UnsupportedEventError
from app.accounting.events import DpEvent
from app.accounting.pld.accountant import pld_delta, pld_epsilon
from app.accounting.pricing_effort import bounded_apart
from app.planning.assumptions import PlanAssumptions, about_size


@dataclass(frozen=True, slots=True)
class TightestEpsilon:
    """Epsilon of a plan at a delta, in nats; infinite without a bound.

    Args:
        rdp: at the best Rényi order.
        pld: by privacy loss distributions; None where an event has no pair, or it would take too long.
    """

    rdp: EpsilonAtOrder
    pld: float | None

    @property
    def value(self) -> float:
        """The smaller one."""
        return self.rdp.epsilon if self.pld is None else min(self.rdp.epsilon, self.pld)

    def warnings(self, total: RdpCurve, delta: float) -> list[str]:
        """List warnings about this epsilon of a plan with a curve."""
        if self.value == inf:
            own = total.delta_value()
            if own >= delta:
                return [f"The events' own deltas, {own:.4g} together, leave nothing of delta {delta:g}."]
            return ["Every order is exhausted: this plan gives no protection."]
        at_order = [] if self.pld is not None else _about_order(self.rdp.order, self.value > 0)
        return at_order + about_size(self.value)


@dataclass(frozen=True, slots=True)
class TightestDelta:
    """Delta of a plan at an epsilon; 1 without a bound. `rdp` and `pld` are as in `TightestEpsilon`."""

    rdp: DeltaAtOrder
    pld: float | None

    @property
    def value(self) -> float:
        """The smaller one."""
        return self.rdp.delta if self.pld is None else min(self.rdp.delta, self.pld)

    def warnings(self, epsilon: float) -> list[str]:
        """List warnings about this delta at an epsilon."""
        if self.value >= 1:
            return [f"Nothing is proven at epsilon {epsilon:g}: a delta of 1 gives no protection."]
        return [] if self.pld is not None else _about_order(self.rdp.order, self.value > 0)


def tightest_epsilon(
    counts: Mapping[DpEvent, int], total: RdpCurve, delta: float, setting: PlanAssumptions
) -> TightestEpsilon:
    """Compute the epsilon of a plan of events with counts, which has a curve, at delta in [1e-30, 0.5)."""
    rdp = epsilon_of_curve(orders(GRID_VERSION), total, delta)
    return TightestEpsilon(rdp, _by_distributions(lambda: pld_epsilon(counts, setting.relation, delta)))


def tightest_delta(
    counts: Mapping[DpEvent, int], total: RdpCurve, epsilon: float, setting: PlanAssumptions
) -> TightestDelta:
    """Compute the delta of a plan at epsilon in [0, 10000], as above."""
    rdp = delta_of_curve(orders(GRID_VERSION), total, epsilon)
    return TightestDelta(rdp, _by_distributions(lambda: pld_delta(counts, setting.relation, epsilon)))


def _by_distributions(found: Callable[[], float]) -> float | None:
    """Compute a number of a plan by loss distributions; None where an event has no pair, or it takes too long."""
    try:
        with bounded_apart():
            return found()
    except (UnsupportedEventError, PlanTooExpensiveError):
        return None


def _about_order(order: float, something_lost: bool) -> list[str]:  # noqa: FBT001 - the second of two facts
    """Warn about an optimal order at the edge of the newest grid, if the bound there is positive."""
    lowest = orders(GRID_VERSION)[0]
    if not something_lost or order not in {lowest, HIGHEST}:
        return []
    edges = f"{lowest:g} to {HIGHEST:g}"
    return [f"The optimal order {order:g} is at the edge of the grid ({edges}): the true value may be smaller."]
