"""Delta and epsilon of plans that were fixed in advance."""

from collections.abc import Mapping
from math import exp, inf, log, sqrt
from typing import Final

from app.accounting.calibration.monotone_search import root
from app.accounting.formulas.analytic_gaussian import gaussian_delta, gaussian_epsilon
from app.accounting.pld.composition import MAX_SIZE, TiltedSum, period, saddle, tilted_sum
from app.accounting.pld.dots import Spread, connect_the_dots, lattice, spread
from app.accounting.pld.pairs import LOSS_ERROR, GaussianPair, Pair

PRECISION: Final = 2e-4
"""Share of ln delta by which the spacing of the lattice may change it, about."""

PLACES_BELOW: Final = 32.0
"""Places of the lattice between 0 and epsilon."""

WIDEST: Final = 0.1
"""Widest cell times tilt."""

MAX_PLACES: Final = 4096.0
"""Places of a lattice whose widest cells would have to be narrower."""

CLOSE: Final = 1e-5
"""Tolerance of the logarithm of delta, from where numbers are tried one after the other."""

MAX_TILTS: Final = 12
SETTLED: Final = 1e-3
"""Relative change of epsilon from which on a new tilt would change little."""

LARGEST_LOG: Final = 700.0
"""Smaller deltas count as exp of minus this."""

OVERFLOWING: Final = 1e-9
"""Share of delta that losses above the lattice may have."""

GUESS: Final = 1e-9
"""Delta for which a lattice is made first, where only epsilon is known."""


def plan_delta(plan: Mapping[Pair, int], epsilon: float) -> float:
    """Compute an upper bound on the delta at epsilon of a plan of pairs with counts."""
    found = plan_log_delta(plan, epsilon, GUESS)
    if found < log(GUESS):
        found = min(found, plan_log_delta(plan, epsilon, exp(max(found, -LARGEST_LOG))))
    return min(1.0, exp(found))


def plan_epsilon(plan: Mapping[Pair, int], delta: float) -> float:
    """Compute the smallest epsilon at which the delta of a plan of pairs with counts is proven to be at most `delta`.

    It is infinite if none is found up to the largest loss that is looked at.
    """
    mu = _gaussian_distance(plan)
    if mu is not None:
        return gaussian_epsilon(mu, delta)
    around = _spreads(plan, delta)
    variance = sum(count * around[pair].deviation ** 2 for pair, count in plan.items())
    most = sum(count * max(around[pair].highest, 0.0) for pair, count in plan.items())
    goal = log(delta)
    if _infinite(plan, around) > delta:
        return inf
    if plan_log_delta(plan, 0.0, delta) <= goal:
        return 0.0
    # From below: a tilt that is too small costs less than one that is too large.
    found = min(variance / 2 + sqrt(-2 * variance * log(delta)), most / 2)
    for _ in range(MAX_TILTS):  # each lattice and tilt suit the epsilon found before
        total = _tilted_sum(plan, around, found)
        found, before = _root_in_epsilon(total, goal, found), found
        if abs(found - before) <= SETTLED * found:
            break
    step = found * CLOSE
    while found < inf and total.log_delta(found) > goal:
        found += step
        step *= 2
    return found


def plan_log_delta(plan: Mapping[Pair, int], epsilon: float, delta: float) -> float:
    """Compute an upper bound on ln delta at epsilon of a plan of pairs with counts, precise near `delta`."""
    mu = _gaussian_distance(plan)
    if mu is not None:
        exact = gaussian_delta(mu, epsilon)
        return log(exact) if exact else -inf
    around = _spreads(plan, delta)
    if _infinite(plan, around) >= 1:
        return 0.0
    return _tilted_sum(plan, around, epsilon).log_delta(epsilon)


def _gaussian_distance(plan: Mapping[Pair, int]) -> float | None:
    """Compute the distance in standard deviations of a plan of Gaussians, which has a closed form; None for others."""
    if not all(isinstance(pair, GaussianPair) for pair in plan):
        return None
    squares = sum(count / pair.noise_multiplier**2 for pair, count in plan.items() if isinstance(pair, GaussianPair))
    return sqrt(squares) * (1 + LOSS_ERROR)


def _spreads(plan: Mapping[Pair, int], delta: float) -> dict[Pair, Spread]:
    negligible = OVERFLOWING * delta / sum(plan.values())
    return {pair: spread(pair, negligible) for pair in plan}


def _infinite(plan: Mapping[Pair, int], around: Mapping[Pair, Spread]) -> float:
    return sum(count * around[pair].infinite for pair, count in plan.items())


def _tilted_sum(plan: Mapping[Pair, int], around: Mapping[Pair, Spread], epsilon: float) -> TiltedSum:
    """Connect the dots of all pairs on a lattice that suits delta at epsilon, and tilt their composition for it.

    Moving the mass of a cell of width h to its ends adds about t (t + 1) h^2 / 12 to ln E exp(t L).
    """
    total = sum(plan.values())
    lowest, highest = min(each.lowest for each in around.values()), max(each.highest for each in around.values())
    spacing = sqrt(sum(plan[pair] * each.size**2 for pair, each in around.items()) / total) or 1.0
    narrowest = (highest - lowest) / MAX_PLACES
    widest, t = inf, 1.0
    while True:
        dots = connect_the_dots(plan, lattice(spacing, lowest, highest, widest), spacing)
        found = saddle(dots, min(epsilon, dots.largest_loss), t)
        t = found.tilt
        wide = max(WIDEST / t, narrowest)
        fine = sqrt(12 * PRECISION * max(1.0, t * epsilon) / (total * t * (t + 1)))
        fine = min(fine, epsilon / PLACES_BELOW) if epsilon else fine
        least = period(found) / MAX_SIZE
        wished = max(min(fine, wide), least)
        if least <= spacing <= 1.5 * wished and widest <= 1.5 * wide:
            return tilted_sum(dots, found)
        spacing, widest = max(min(spacing, wished), 1.1 * least), min(widest, wide)


def _root_in_epsilon(total: TiltedSum, goal: float, start: float) -> float:
    """Find about where ln delta is `goal`."""
    most = total.most + 2 * total.loss_error
    lowest = log(most) - 40

    def excess(log_epsilon: float) -> float:
        return max(total.log_delta(exp(log_epsilon)), -LARGEST_LOG) - goal

    return exp(root(excess, min(max(log(start), lowest), log(most)), (lowest, log(most)), CLOSE))
