"""Certified delta of a composition: a tilted sum of discrete losses, evaluated at few frequencies.

With K_i(t) = ln E exp(t L_i) of part i and K = sum of n_i K_i, the delta at epsilon of the composition is
exp(K(t) - t epsilon) E_t w(S), where S is the sum of the losses, each of them tilted by exp(t L_i - K_i(t)), and
w(s) = exp(-t (s - epsilon)) (1 - exp(epsilon - s)) above epsilon, else 0. On a lattice, E_t w is a sum over the
frequencies of S times those of w. A sum over `size` equally spaced frequencies replaces w by its periodic
continuation, the sum of w(s + j size) over all j. That is nowhere below w, so the result is an upper bound.

Tilting: Esscher 1932; for privacy losses Alghamdi et al. 2023 (arXiv 2208.09595).
"""

from dataclasses import dataclass
from math import ceil, exp, expm1, inf, log, pi, sqrt
from typing import Final

import numpy as np
from numpy.typing import NDArray

from app.accounting.curves import Floats
from app.accounting.pld.connect_the_dots import Distributions, Dots
from app.accounting.pld.frequencies import NEGLIGIBLE, ROUNDING, Complexes, frequencies
from app.accounting.pricing_effort import use_effort

DEVIATIONS: Final = 16.0
"""Length of the period in standard deviations of the tilted sum."""

LARGEST_PERIOD: Final = 2.0**40
"""Maximum places in a period; products of it with numbers of frequencies are exact."""

SMALLEST_TILT: Final = 1e-9
CLOSE_TILT: Final = 1e-3
"""Relative error from which on another tilt would change little."""

LARGEST_TILT: Final = 1e5
"""Maximum tilt times the largest loss, where a lattice is not known yet."""

MAX_TRIALS: Final = 100

TILT, TILT_MASS = 20, 0.012
"""Microseconds for the moments of a tilted sum, and for each mass."""

SUM, SUM_EACH, SUM_MASS, SUM_FREQUENCY = 150, 5, 0.01, 0.08
"""Microseconds for a tilted sum besides its frequencies, for each distribution, for each mass, and for each frequency
that counts."""

DELTA, DELTA_EACH = 60, 0.2
"""Microseconds for a delta, and for each frequency that counts."""


@dataclass(frozen=True, slots=True)
class Tilted:
    """The sum of losses, tilted: its cumulant generating function at `tilt`, and mean and variance there."""

    tilt: float
    log_moment: float
    mean: float
    variance: float


def tilted(distributions: Distributions, counts: Floats, tilt: float) -> Tilted:
    """Compute K, K' and K'' of the sum of (n,) repetitions of each loss."""
    return Tilted(tilt, *(float(counts @ each) for each in tilted_moments(distributions, tilt)))


def tilted_moments(distributions: Distributions, tilt: float) -> tuple[Floats, Floats, Floats]:
    """Compute K, K' and K'' of each of n losses; (n,) each."""
    losses = distributions.losses
    use_effort(TILT + TILT_MASS * distributions.masses.size)
    weights, tops = tilted_masses(distributions, tilt)
    totals = weights.sum(axis=1)
    first = weights @ losses / totals
    second = weights @ losses**2 / totals - first**2
    return tops + np.log(totals), first, np.maximum(second, 0)


def tilted_masses(distributions: Distributions, tilt: float) -> tuple[Floats, Floats]:
    """Compute masses times exp(tilt loss), each distribution's divided by its largest factor, and these logarithms."""
    exponents = tilt * distributions.losses
    tops = exponents[distributions.last]
    return distributions.masses * np.exp(np.minimum(exponents - tops[:, np.newaxis], 0)), tops


def saddle(distributions: Distributions, counts: Floats, epsilon: float, start: float = 1.0) -> Tilted:
    """Find the tilt that minimises K(t) - t epsilon - ln t (t + 1), the exponent of the saddle-point approximation.

    Any tilt gives an upper bound; this one gives the fewest rounding errors.
    """
    low, high = SMALLEST_TILT, LARGEST_TILT / float(distributions.losses[-1])
    at = min(start, high)
    for _ in range(MAX_TRIALS):
        found = tilted(distributions, counts, at)
        slope = found.mean - epsilon - 1 / at - 1 / (at + 1)
        low, high = (low, at) if slope > 0 else (at, high)
        following = at - slope / _curvature(found)
        if not low < following < high:
            following = sqrt(low * high)
        if abs(following - at) <= CLOSE_TILT * at:
            break
        at = following
    return found


def saddle_of_delta(distributions: Distributions, counts: Floats, goal: float) -> tuple[Tilted, float]:
    """Find the tilt, and its epsilon, for which the saddle-point approximation of ln delta is `goal`."""
    low, high = SMALLEST_TILT, LARGEST_TILT / float(distributions.losses[-1])
    at = min(1.0, high)
    for _ in range(MAX_TRIALS):
        found = tilted(distributions, counts, at)
        epsilon = found.mean - 1 / at - 1 / (at + 1)
        excess = approximate_log_delta(found, epsilon) - goal
        low, high = (at, high) if excess > 0 else (low, at)
        # Epsilon grows with the tilt by the curvature, and ln delta falls by the tilt times as much.
        following = at * exp(min(max(excess / (at**2 * _curvature(found)), -2.0), 2.0))
        if not low < following < high:
            following = sqrt(low * high)
        if abs(following - at) <= CLOSE_TILT * at:
            break
        at = following
    return found, epsilon


def approximate_log_delta(found: Tilted, epsilon: float) -> float:
    """Compute the saddle-point approximation of ln delta at the epsilon that a tilt suits: a guess, not a bound."""
    t = found.tilt
    return found.log_moment - t * epsilon - log(t * (t + 1)) - log(2 * pi * _curvature(found)) / 2


def _curvature(found: Tilted) -> float:
    return found.variance + 1 / found.tilt**2 + 1 / (found.tilt + 1) ** 2


def period(found: Tilted) -> float:
    """Compute a length, in nats, that holds the tilted sum but for a negligible part."""
    return DEVIATIONS * sqrt(found.variance + 1 / found.tilt**2)


def places_in_period(found: Tilted, spacing: float) -> int:
    """Compute the least number of places in a period."""
    return max(ceil(min(period(found) / spacing, LARGEST_PERIOD)), 64)


def largest_exponent(distributions: Distributions, tilt: float) -> float:
    """Compute the largest absolute value of the exponents in a tilt."""
    return tilt * max(abs(float(distributions.losses[0])), abs(float(distributions.losses[-1])))


def shares_of_frequencies(numbers: NDArray[np.int64], size: int) -> Floats:
    """Compute how often frequencies and their conjugates are in a sum over all, over the places in a period."""
    found: Floats = np.where((numbers == 0) | (2 * numbers == size), 1 / size, 2 / size)
    return found


@dataclass(frozen=True, slots=True, eq=False)
class TiltedSum:
    """A composition, ready for its delta at any epsilon; the closer to the one of its tilt, the tighter the bound.

    Args:
        tilt: t.
        log_moment: K(t).
        log_infinite: logarithm of the probability of an infinite loss.
        loss_error: nats by which the sum may be larger.
        most: its largest finite value, in nats.
        rounding: error of the logarithm of the moment, which is that of delta but for `errors`.
        spacing: nats.
        size: number of places in a period.
        numbers: (n + 1,) numbers of its frequencies that are not negligible, and 0.
        powers: (n,) their values, each as often as it and its conjugate are in the sum, over `size`.
        errors: (n,) bounds on their errors, and on those of their products with numbers of size 1.
    """

    tilt: float
    log_moment: float
    log_infinite: float
    loss_error: float
    most: float
    rounding: float
    spacing: float
    size: int
    numbers: NDArray[np.int64]
    powers: Complexes
    errors: Floats

    def log_delta(self, epsilon: float) -> float:
        """Compute an upper bound on ln delta at epsilon."""
        epsilon = max(0.0, epsilon * (1 - 4 * ROUNDING) - self.loss_error)
        if self.most <= epsilon:
            return self.log_infinite
        use_effort(DELTA + DELTA_EACH * self.numbers.size)
        weights, sizes = weight_frequencies(epsilon, self.spacing, self.tilt, self.size, self.numbers)
        # No frequency of a positive function is above its first.
        with np.errstate(over="ignore", invalid="ignore"):
            terms = (self.powers * weights[:-1].conj()).real + self.errors * sizes[:-1]
            expected = float(terms.sum()) + 2 * exp(NEGLIGIBLE) * sizes[-1]
        if not 0 < expected < inf:  # after so many repetitions rounding errors leave no bound
            return 0.0
        slack = self.rounding + 4 * ROUNDING * self.tilt * epsilon
        return float(np.logaddexp(self.log_moment - self.tilt * epsilon + log(expected) + slack, self.log_infinite))


def tilted_sum(dots: Dots, counts: Floats, tilt: float) -> TiltedSum | None:
    """Compute the frequencies of the tilted composition of (n,) repetitions of each distribution, all positive.

    None if there are too many; then a larger spacing is needed.
    """
    use_effort(SUM + SUM_EACH * counts.size + SUM_MASS * dots.masses.size)
    found = tilted(dots, counts, tilt)
    weights, _ = tilted_masses(dots, tilt)
    size, reach = places_in_period(found, dots.spacing), largest_exponent(dots, tilt)
    weights /= weights.sum(axis=1, keepdims=True)
    parts = frequencies(weights, counts, dots.places, size, ROUNDING * (64 + reach))
    if parts is None:
        return None
    use_effort(SUM_FREQUENCY * parts.numbers.size)
    shares = shares_of_frequencies(parts.numbers, parts.size)
    powers: Complexes = np.multiply(np.exp(parts.logs), shares)
    # |x^n - y^n| <= (|x| + e)^n - |x|^n for |x - y| <= e
    with np.errstate(over="ignore", invalid="ignore"):  # of too many repetitions nothing is known, and `log_delta` 0
        errors = shares * np.exp(parts.largest) * -np.expm1(-parts.growth)
        errors += ROUNDING * (64 + 4 * np.abs(parts.logs)) * (np.abs(powers) + errors)
    infinite = float(counts @ dots.infinite)
    return TiltedSum(
        tilt=tilt,
        log_moment=found.log_moment,
        log_infinite=log(infinite) if infinite else -inf,
        loss_error=float(counts @ dots.loss_errors),
        most=float(counts @ dots.losses[dots.last]),
        rounding=ROUNDING * (float(counts.sum()) * (reach + 64) + 64),
        spacing=dots.spacing,
        size=parts.size,
        numbers=np.append(parts.numbers, 0),
        powers=powers,
        errors=errors,
    )


def weight_frequencies(
    epsilon: float, spacing: float, tilt: float, size: int, number: NDArray[np.int64]
) -> tuple[Complexes, Floats]:
    """Compute some frequencies of the periodic weight: two geometric series. Their sizes bound errors, too."""
    first = ceil(epsilon / spacing)
    beyond = min(max(first * spacing - epsilon, 0.0), spacing)
    angles = np.multiply(2 * pi / size, number, dtype=np.float64)
    turn: Complexes = np.exp(-1j * angles)
    now, then = -expm1(-beyond), -exp(-tilt * spacing - beyond) * expm1(beyond - spacing)
    divisor = np.multiply(_one_minus(tilt * spacing, angles), _one_minus((tilt + 1) * spacing, angles))
    factor = exp(-tilt * beyond) / divisor
    phases = np.exp(-2j * pi / size * (number * (first % size) % size))
    return phases * (now + turn * then) * factor, (now + then) * np.abs(factor)


def _one_minus(decay: float, angles: Floats) -> Complexes:
    """Compute 1 - exp(-decay - i angle)."""
    return -expm1(-decay) + exp(-decay) * (2 * np.sin(angles / 2) ** 2 + 1j * np.sin(angles))
