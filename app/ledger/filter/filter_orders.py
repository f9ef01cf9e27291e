"""Loss at the orders of a filter and pure loss, before and after repetitions of one event (ADR 0033).

A filter has at most nine orders. For vectors this short, plain integers take a fifth of numpy's time, and they do not
overflow.
"""

from collections.abc import Callable
from itertools import repeat
from operator import add, floordiv, mul, sub
from typing import Final, NamedTuple, TypeAlias

from app.accounting.curves import EXHAUSTED, UNBOUNDED, UNIT, RdpCurve, pure_nats
from app.ledger.filter.filters import FilterBounds, pure_repetitions

Epsilons: TypeAlias = Callable[[int], float | None]
"""Epsilon by the number of repetitions; None if only the rule can compute it."""

_EXACT: Final = 2.0**53 * UNIT - 1
"""Nats up to which every number of units is a float, and adding the price alone rounds."""


def _no_epsilon(_: int) -> None:
    """Leave epsilon to the rule."""


class FilterOrders(NamedTuple):
    """Loss and cost at the orders of a filter.

    Args:
        gate: the filter's bounds; `bounds` and `prices` are lists of its own.
        spent: units before the repetitions; unlike a curve's, they may be more than EXHAUSTED.
        cost: units of one repetition.
        pure_spent: units of pure loss before the repetitions.
        pure_cost: of one.
    """

    gate: FilterBounds
    bounds: list[int]
    prices: list[float]
    spent: list[int]
    cost: list[int]
    pure_spent: int
    pure_cost: int

    @classmethod
    def of(cls, gate: FilterBounds, spent: RdpCurve, cost: RdpCurve) -> "FilterOrders":
        """Take a loss and an event's cost at the orders of a filter, whose delta is enough for the loss's own."""
        assert spent.delta <= gate.room, "else nothing fits, and epsilon is infinite"
        places = gate.places
        own = gate.bounds.tolist(), gate.prices.tolist()
        return cls(gate, *own, spent.values[places].tolist(), cost.values[places].tolist(), spent.pure, cost.pure)

    def after(self, count: int, curve: RdpCurve) -> "FilterOrders":
        """Charge the repetitions, and continue with another event."""
        charged = self.cost if count == 1 else map(mul, self.cost, repeat(count))
        spent, cost = list(map(add, self.spent, charged)), curve.values[self.gate.places].tolist()
        pure = min(self.pure_spent + self.pure_cost * count, UNBOUNDED)
        return FilterOrders(self.gate, self.bounds, self.prices, spent, cost, pure, curve.pure)

    def repetitions(self) -> tuple[int, int]:
        """Count the repetitions that fit where they have a cost, and where they have none; negative if none fits."""
        if all(self.cost):
            most, endless = max(map(floordiv, map(sub, self.bounds, self.spent), self.cost)), -1
        else:
            left = list(zip(map(sub, self.bounds, self.spent), self.cost, strict=True))
            most = max([units // each for units, each in left if each], default=-1)
            endless = max([units for units, each in left if not each])
        if self.pure_spent == UNBOUNDED:
            return most, endless
        purely = pure_repetitions(self.gate.pure - self.pure_spent, self.pure_cost)
        return (max(most, purely), endless) if self.pure_cost else (most, max(endless, purely))

    def epsilons(self) -> Epsilons:
        """Prepare to compute epsilon as `FilterBounds.epsilon` does, with the same rounding."""
        spent, cost = max(self.spent), max(self.cost)
        if spent >= EXHAUSTED or cost >= EXHAUSTED:  # an infinite divergence is never the least
            rows = zip(self.bounds, self.prices, self.spent, self.cost, strict=True)
            finite = [row for row in rows if row[2] < EXHAUSTED and row[3] < EXHAUSTED]
            if not finite:
                return _no_epsilon
            bounds, prices, losses, costs = map(list, zip(*finite, strict=True))
            return self._replace(bounds=bounds, prices=prices, spent=losses, cost=costs).epsilons()
        if not spent and not cost:  # the curve may be zero, whose epsilon has no price
            return _no_epsilon
        nats = map(mul, self.spent, repeat(UNIT)), map(mul, self.cost, repeat(UNIT))
        orders = list(zip(*nats, self.prices, strict=True))
        exact = _EXACT + min(self.prices)  # an order with a larger divergence, which may be rounded, is not the least

        def epsilon(count: int) -> float | None:
            least = min([before + each * count + price for before, each, price in orders])
            return max(0.0, least) if least < exact else None

        if UNBOUNDED in (self.pure_spent, self.pure_cost):
            return epsilon

        def least_epsilon(count: int) -> float | None:
            by_orders = epsilon(count)
            return None if by_orders is None else min(by_orders, pure_nats(self.pure_spent + self.pure_cost * count))

        return least_epsilon
