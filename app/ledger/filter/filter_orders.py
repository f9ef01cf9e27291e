"""Loss at the orders of a filter and exact loss, before and after repetitions of one event (ADR 0033).

A filter has at most nine orders. For vectors this short, plain integers take a fifth of numpy's time, and they do not
overflow.
"""

from itertools import repeat
from math import inf
from operator import add, floordiv, mul, sub
from typing import NamedTuple

from app.accounting.curves import EXHAUSTED, RdpCurve
from app.ledger.filter.filters import FilterBounds, exact_repetitions


class FilterOrders(NamedTuple):
    """Loss and cost at the orders of a filter.

    Args:
        gate: the filter's bounds; `bounds` is a list of its own.
        spent: units before the repetitions; unlike a curve's, they may be more than EXHAUSTED.
        cost: units of one repetition.
        exact_spent: units of the exact loss before the repetitions.
        exact_cost: of one.
        has_exact_loss: whether what is spent has a bound on its exact loss.
    """

    gate: FilterBounds
    bounds: list[int]
    spent: list[int]
    cost: list[int]
    exact_spent: int
    exact_cost: int
    has_exact_loss: bool

    @classmethod
    def of(cls, gate: FilterBounds, spent: RdpCurve, cost: RdpCurve) -> "FilterOrders":
        """Take a loss and an event's cost at the orders of a filter, whose delta is enough for the loss's own."""
        assert spent.delta <= gate.room, "else nothing fits"
        places, bounds = gate.places, gate.bounds.tolist()
        return cls(
            gate,
            bounds,
            spent.values[places].tolist(),
            cost.values[places].tolist(),
            gate.exact_loss(spent),
            gate.exact_loss(cost),
            gate.exact_loss(spent) != gate.unbounded,
        )

    def after(self, count: int, curve: RdpCurve) -> "FilterOrders":
        """Charge the repetitions, and continue with another event."""
        charged = self.cost if count == 1 else map(mul, self.cost, repeat(count))
        spent, cost = list(map(add, self.spent, charged)), curve.values[self.gate.places].tolist()
        unbounded = self.gate.unbounded
        exact = min(self.exact_spent + self.exact_cost * count, unbounded)
        return FilterOrders(self.gate, self.bounds, spent, cost, exact, self.gate.exact_loss(curve), exact != unbounded)

    def repetitions(self) -> tuple[int, int]:
        """Count the repetitions that fit where they have a cost, and where they have none; negative if none fits."""
        if all(self.cost):
            most, endless = max(map(floordiv, map(sub, self.bounds, self.spent), self.cost)), -1
        else:
            left = list(zip(map(sub, self.bounds, self.spent), self.cost, strict=True))
            most = max([units // each for units, each in left if each], default=-1)
            endless = max([units for units, each in left if not each])
        if not self.has_exact_loss:
            return most, endless
        exactly = exact_repetitions(self.gate.most - self.exact_spent, self.exact_cost)
        return (max(most, exactly), endless) if self.exact_cost else (most, max(endless, exactly))

    def least_share(self, count: int, ahead: int = 0) -> "LeastShare":
        """Find the order that has the least share of its bound after repetitions, and look some further ones ahead."""
        _, place = self._least(count)
        if ahead:
            share, later = self._least(count + ahead)
            ahead = ahead if later == place and share <= 1 else 0  # above 1, infinite orders are left out
        return LeastShare(count, count + ahead, self.bounds[place], self.spent[place], self.cost[place])

    def _least(self, count: int) -> tuple[float, int]:
        """Compute the least share of a bound after repetitions, infinite without one, and the place of its order."""
        rows = zip(self.bounds, self.spent, self.cost, strict=True)
        losses = [(bound, spent + cost * count) for bound, spent, cost in rows]
        shares = [loss / bound if bound > 0 and loss < EXHAUSTED else inf for bound, loss in losses]
        least = min(shares)
        return least, shares.index(least)

    def exact_share(self, count: int) -> float:
        """Compute the exact loss after repetitions as a share of the largest one; infinite without a bound."""
        return self.gate.exact_share(min(self.exact_spent + self.exact_cost * count, self.gate.unbounded))


class LeastShare(NamedTuple):
    """The order at which a loss takes the least share of its bound, from some number of repetitions to another one.

    The least of shares that rise linearly is concave. So an order that has it at both ends has it between them.

    Args:
        first: number of repetitions.
        last: the largest one.
        bound: units at the order; of all orders without a positive one, any.
        spent: before the repetitions.
        cost: of one.
    """

    first: int
    last: int
    bound: int
    spent: int
    cost: int

    def after(self, count: int) -> float:
        """Compute the share after repetitions, as `FilterBounds.used` does; infinite if no order has a bound."""
        loss = self.spent + self.cost * count
        return loss / self.bound if self.bound > 0 and loss < EXHAUSTED else inf
