"""Epsilons of the beginnings of one plan, for a chart or a page that shows many."""

from collections.abc import Sequence

from app.accounting.pld.plans import COARSE, Fineness, plan_epsilon
from app.accounting.pld.prefixes import Part, both_directions, pure_epsilon


class PlanReadings:
    """The epsilons of the first n repetitions of a plan.

    Each number has a coarse lattice of its own, which takes less time than one that suits several numbers.

    Args:
        parts: of the plan, at least one.
    """

    def __init__(self, parts: Sequence[Part]) -> None:
        self._directions = both_directions(parts)

    def epsilon(self, count: int, delta: float, fineness: Fineness = COARSE) -> float:
        """Compute an upper bound on the epsilon at delta of the first `count` repetitions, in nats.

        On a coarse lattice it is at most about 5e-4 above that of a fine one, relative, and 3e-3 for few steps of tiny
        samples.
        """
        if count <= 0:
            return 0.0
        plans = [each.composition(count) for each in self._directions]
        found = max((plan_epsilon(each, delta, fineness) for each in plans if each), default=0.0)
        return min(found, pure_epsilon(self._directions[0].worst_loss(count), delta))
