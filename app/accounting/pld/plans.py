"""Delta and epsilon of plans that were fixed in advance."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from math import ceil, exp, expm1, inf, log, log2, sqrt
from typing import Final, NamedTuple

import numpy as np

from app.accounting.calibration.monotone_search import USUAL_SLOPE, root
from app.accounting.curves import Floats
from app.accounting.formulas.analytic_gaussian import gaussian_delta, gaussian_epsilon
from app.accounting.pld.composition import Tilted, TiltedSum, approximate_log_delta, saddle, saddle_of_delta, tilted_sum
from app.accounting.pld.connect_the_dots import (
    Distributions,
    Lattice,
    Spread,
    connect_the_dots,
    rough_distributions,
    spread,
    use_effort_of_look,
)
from app.accounting.pld.pairs import LOSS_ERROR, GaussianPair, Pair
from app.accounting.pricing_effort import use_effort

PLACES_BELOW: Final = 128.0
"""Places of the lattice between 0 and epsilon."""

LEAST_TILTED: Final = 1e-3
"""Tilt times epsilon from which on `PLACES_BELOW` counts. Below it ln delta hardly depends on epsilon: places as far
apart as there change it by 5e-12 for a repetition."""

SPACINGS: Final = 8.0
"""Maximum width of cells in spacings, where half of the losses are smaller."""

NARROWEST: Final = 1 / 1024
"""Minimum width of cells over the distance from 0, for the sake of `SPACINGS`."""

MAX_PLACES: Final = 4096.0
"""Places of a lattice whose widest cells would have to be narrower."""

CLOSE: Final = 1e-5
"""Tolerance of the logarithm of delta, from where numbers are tried one after the other."""

MAX_TILTS: Final = 12
SETTLED: Final = 0.03
"""Relative change of epsilon from which on a new tilt would change little."""

LARGEST_LOG: Final = 700.0
"""Smaller deltas count as exp of minus this."""

OVERFLOWING: Final = 1e-9
"""Share of delta that losses above the lattice may have."""

GUESS: Final = 1e-9
"""Delta for which a lattice is made first, where only epsilon is known."""


SMALLEST_SLOPE: Final = 0.1
"""Smaller slopes are not trusted."""

SMALLEST_EPSILON: Final = 1e-9
"""Nats below which epsilons do not differ."""


LOOK, LOOK_EACH = 100, 50
"""Microseconds for what is known of a plan without a lattice, and for each of its pairs, whose tails are cached."""


class Fineness(NamedTuple):
    """How fine a lattice is.

    Args:
        precision: share of ln delta by which the spacing may change it, about.
        width: largest width of a cell over the distance from 0, where that is more than the spacing.
        widest: largest width of a cell times tilt.
    """

    precision: float
    width: float
    widest: float


FINE: Final = Fineness(2e-5, 1 / 64, 0.05)
FINEST: Final = Fineness(2e-6, 1 / 192, 0.016)
"""For answers of six digits."""

COARSE: Final = Fineness(1e-4, 1 / 32, 0.1)
"""For numbers of a chart, in half of the time."""


def plan_delta(plan: Mapping[Pair, int], epsilon: float, fineness: Fineness = FINE) -> float:
    """Compute an upper bound on the delta at epsilon of a plan of pairs with counts."""
    found = plan_log_delta(plan, epsilon, GUESS, fineness)
    if found < log(GUESS):
        found = min(found, plan_log_delta(plan, epsilon, exp(max(found, -LARGEST_LOG)), fineness))
    return min(1.0, exp(found))


def plan_epsilon(plan: Mapping[Pair, int], delta: float, fineness: Fineness = FINE) -> float:
    """Compute the smallest epsilon at which the delta of a plan of pairs with counts is proven to be at most `delta`.

    It is infinite if none is found up to the largest loss that is looked at.
    """
    mu = gaussian_distance(plan)
    if mu is not None:
        return gaussian_epsilon(mu, delta)
    return Composition.of(plan, delta).epsilon(log(delta), fineness)


def plan_log_delta(plan: Mapping[Pair, int], epsilon: float, delta: float, fineness: Fineness = FINE) -> float:
    """Compute an upper bound on ln delta at epsilon of a plan of pairs with counts, precise near `delta`."""
    mu = gaussian_distance(plan)
    if mu is not None:
        exact = gaussian_delta(mu, epsilon)
        return log(exact) if exact else -inf
    return Composition.of(plan, delta).log_delta(epsilon, fineness)


def approximate_plan_log_delta(plan: Mapping[Pair, int], epsilon: float, delta: float) -> float:
    """Guess ln delta at epsilon of a plan, from what is known without a lattice."""
    if gaussian_distance(plan) is not None:
        return plan_log_delta(plan, epsilon, delta)
    return Composition.of(plan, delta).approximate_log_delta(epsilon)


def gaussian_distance(plan: Mapping[Pair, int]) -> float | None:
    """Compute the distance in standard deviations of a plan of Gaussians, which has a closed form; None for others."""
    if not all(isinstance(pair, GaussianPair) for pair in plan):
        return None
    squares = sum(count / pair.noise_multiplier**2 for pair, count in plan.items() if isinstance(pair, GaussianPair))
    return sqrt(squares) * (1 + LOSS_ERROR)


@dataclass(frozen=True, slots=True, eq=False)
class Composition:
    """A plan, with what is known of its losses without a lattice.

    Args:
        pairs: n different ones.
        counts: (n,) positive repetitions.
        spreads: (n,) ranges of the losses.
        rough: the losses, for guesses.
    """

    pairs: tuple[Pair, ...]
    counts: Floats
    spreads: tuple[Spread, ...]
    rough: Distributions

    @classmethod
    def of(cls, plan: Mapping[Pair, int], delta: float) -> "Composition":
        """Look at a plan, for a delta."""
        pairs, counts = tuple(plan), np.array(list(plan.values()), dtype=np.float64)
        use_effort(LOOK + LOOK_EACH * len(pairs))
        for pair in pairs:
            use_effort_of_look(pair)
        # Rounded to a power of two, so that plans of about equal size share a lattice.
        negligible = OVERFLOWING * delta / 2.0 ** ceil(log2(float(counts.sum())))
        spreads = tuple(spread(pair, negligible) for pair in pairs)
        rough = rough_distributions(pairs, min(s.lowest for s in spreads), max(s.highest for s in spreads))
        return cls(pairs, counts, spreads, rough)

    @property
    def infinite(self) -> float:
        """Probability of a loss that counts as infinite."""
        return float(self.counts @ [each.infinite for each in self.spreads])

    def log_delta(self, epsilon: float, fineness: Fineness = FINE) -> float:
        """Compute an upper bound on ln delta at epsilon."""
        if self.infinite >= 1:
            return 0.0
        if self._most() <= epsilon or self.rough.losses[-1] <= 0:  # the tilt would have no end, or nothing to tilt
            return self._log_delta_of_most(epsilon)
        found = saddle(self.rough, self.counts, epsilon)
        return min(self.total(self.lattice(found, epsilon, fineness), found.tilt).log_delta(epsilon), 0.0)

    def approximate_log_delta(self, epsilon: float) -> float:
        """Guess ln delta at epsilon."""
        if self.infinite >= 1:
            return 0.0
        if self._most() <= epsilon or self.rough.losses[-1] <= 0:
            return self._log_delta_of_most(epsilon)
        return approximate_log_delta(saddle(self.rough, self.counts, epsilon), epsilon)

    def _log_delta_of_most(self, epsilon: float) -> float:
        """Bound ln delta as if every loss were the largest one, or beyond the spreads."""
        beyond = float(self.counts @ [each.beyond for each in self.spreads])
        delta = beyond - expm1(min(epsilon - self._most(), 0.0))
        return log(min(delta, 1.0)) if delta else -inf

    def _most(self) -> float:
        """Sum the largest losses that are not beyond the spreads, rounded up."""
        return float(self.counts @ [each.highest + each.loss_error for each in self.spreads])

    def epsilon(self, goal: float, fineness: Fineness = FINE) -> float:
        """Find the smallest epsilon at which ln delta is proven to be at most `goal`."""
        if log(self.infinite or exp(-LARGEST_LOG)) > goal:
            return inf
        if self.rough.losses[-1] <= 0:  # there is nothing to tilt
            return max(0.0, self._most())
        tilt, near = saddle_of_delta(self.rough, self.counts, goal)
        best = inf
        for _ in range(MAX_TILTS):
            near = max(near, 0.0)
            total = self.total(self.lattice(tilt, near, fineness), tilt.tilt)
            if near * tilt.tilt <= 1 and total.log_delta(0.0) <= goal:
                return 0.0
            found = _proven_root(total, goal, near)
            if found >= best * (1 - SETTLED) or abs(found - near) <= SETTLED * found:
                break
            best, near = found, found
            tilt = saddle(self.rough, self.counts, found, tilt.tilt)
        return min(found, best)

    def lattice(self, found: Tilted, epsilon: float, fineness: Fineness = FINE) -> Lattice:
        """Choose a lattice that suits delta at epsilon.

        Moving the mass of a cell of width h to its ends adds about t (t + 1) h^2 / 12 to ln E exp(t L).
        """
        lowest, highest = float(self.rough.losses[0]), float(self.rough.losses[-1])
        t, repetitions = found.tilt, float(self.counts.sum())
        wide = max(fineness.widest / t, (highest - lowest) / MAX_PLACES)
        fine = sqrt(12 * fineness.precision * max(1.0, t * epsilon) / (repetitions * t * (t + 1)))
        fine = min(fine, max(epsilon, LEAST_TILTED / t) / PLACES_BELOW) if epsilon > 0 else fine
        middle = max(abs(each.middle) for each in self.spreads)  # there, cells may be little wider than the spacing
        width = min(fineness.width, max(SPACINGS * fine / middle, NARROWEST)) if middle else fineness.width
        return Lattice.over(lowest, highest, min(fine, wide), wide, width)

    def total(self, lattice: Lattice, tilt: float) -> TiltedSum:
        """Connect the dots of all pairs on a lattice, or a coarser one, and tilt their composition."""
        total = tilted_sum(connect_the_dots(self.pairs, lattice), self.counts, tilt)
        return total or self.total(lattice.coarser(), tilt)


def _proven_root(total: TiltedSum, goal: float, start: float) -> float:
    """Find about the smallest epsilon at which ln delta is at most `goal`; infinite if none is."""
    found = _root_in_epsilon(total, goal, start)
    step = max(found, SMALLEST_EPSILON) * CLOSE
    while found < inf and total.log_delta(found) > goal:
        found += step
        step *= 2
    return found


def _root_in_epsilon(total: TiltedSum, goal: float, start: float) -> float:
    """Find about where ln delta, which falls by about the tilt per nat, is `goal`."""

    def excess(epsilon: float) -> float:
        return max(total.log_delta(epsilon), -LARGEST_LOG) - goal

    most = total.most + 2 * total.loss_error
    return max(root_with_slope(excess, min(start, most), (0.0, most), total.tilt, CLOSE), 0.0)


def root_with_slope(
    falling: Callable[[float], float], start: float, bounds: tuple[float, float], slope: float, close: float
) -> float:
    """Find the zero of a decreasing function, as `root`, whose slope is known about."""
    scale = USUAL_SLOPE / max(slope, SMALLEST_SLOPE)
    low, high = bounds
    return root(lambda at: falling(at * scale), start / scale, (low / scale, high / scale), close) * scale
