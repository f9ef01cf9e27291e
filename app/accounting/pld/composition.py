"""Certified delta of a composition: a tilted sum of discrete losses, evaluated at few frequencies.

With K_i(t) = ln E exp(t L_i) of part i and K = sum of n_i K_i, the delta at epsilon of the composition is
exp(K(t) - t epsilon) E_t w(S), where S is the sum of the losses, each of them tilted by exp(t L_i - K_i(t)), and
w(s) = exp(-t (s - epsilon)) (1 - exp(epsilon - s)) above epsilon, else 0. On a lattice, E_t w is a sum over the
frequencies of S times those of w. A sum over `size` equally spaced frequencies replaces w by its periodic
continuation, the sum of w(s + j size) over all j. That is nowhere below w, so the result is an upper bound.

Tilting: Esscher 1932; for privacy losses Alghamdi et al. 2023 (arXiv 2208.09595).
"""

from dataclasses import dataclass
from math import ceil, exp, expm1, inf, log, log2, pi, sqrt
from typing import Final, TypeAlias

import numpy as np
import scipy
from numpy.typing import NDArray

from app.accounting.curves import Floats
from app.accounting.pld.dots import Dots

Complexes: TypeAlias = NDArray[np.complex128]

DEVIATIONS: Final = 16.0
"""Length of the period in standard deviations of the tilted sum."""

NEGLIGIBLE: Final = -46.0
"""Logarithm of the largest absolute value of a frequency of the sum that is bounded, not computed."""

MAX_SIZE: Final = 2**20
"""Maximum places in a period; a shorter period gives a looser bound."""

STEEPEST: Final = 100.0
"""Maximum tilt times spacing: no weight next to epsilon underflows."""

ROUNDING: Final = 2.0**-52


@dataclass(frozen=True, slots=True)
class Tilted:
    """The sum of losses, tilted: its cumulant generating function at `tilt`, and mean and variance there."""

    tilt: float
    log_moment: float
    mean: float
    variance: float


def tilted(dots: Dots, tilt: float) -> Tilted:
    """Compute K, K' and K'' of the sum of all repetitions."""
    weights, tops = _tilted_masses(dots, tilt)
    totals = weights.sum(axis=1)
    first = weights @ dots.losses / totals
    second = weights @ dots.losses**2 / totals - first**2
    moments = tops + np.log(totals), first, np.maximum(second, 0)
    return Tilted(tilt, *(float(dots.counts @ each) for each in moments))


def _tilted_masses(dots: Dots, tilt: float) -> tuple[Floats, Floats]:
    """Compute masses times exp(tilt loss), each distribution's divided by its largest factor, and these logarithms."""
    exponents = tilt * dots.losses
    tops = exponents[dots.last]
    return dots.masses * np.exp(np.minimum(exponents - tops[:, np.newaxis], 0)), tops


def saddle(dots: Dots, epsilon: float, start: float = 1.0) -> Tilted:
    """Find the tilt that minimises K(t) - t epsilon - ln t (t + 1), the exponent of the saddle-point approximation.

    Any tilt gives an upper bound; this one gives the fewest rounding errors.
    """
    low, high = 1e-9, STEEPEST / dots.spacing
    at = min(start, high)
    for _ in range(100):
        found = tilted(dots, at)
        slope = found.mean - epsilon - 1 / at - 1 / (at + 1)
        if slope > 0:
            high = at
        else:
            low = at
        curvature = found.variance + 1 / at**2 + 1 / (at + 1) ** 2
        following = at - slope / curvature
        if not low < following < high:
            following = sqrt(low * high)
        if abs(following - at) <= 1e-3 * at:
            break
        at = following
    return found


def period(found: Tilted) -> float:
    """Compute a length, in nats, that holds the tilted sum but for a negligible part."""
    return DEVIATIONS * sqrt(found.variance + 1 / found.tilt**2)


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
        weights, sizes = _weight_frequencies(epsilon, self.spacing, self.tilt, self.size, self.numbers)
        terms = (self.powers * weights[:-1].conj()).real
        # No frequency of a positive function is above its first.
        expected = float(terms.sum() + self.errors @ sizes[:-1]) + 2 * exp(NEGLIGIBLE) * sizes[-1]
        assert expected > 0, "it bounds a positive number"
        slack = self.rounding + 4 * ROUNDING * self.tilt * epsilon
        return float(np.logaddexp(self.log_moment - self.tilt * epsilon + log(expected) + slack, self.log_infinite))


def tilted_sum(dots: Dots, found: Tilted) -> TiltedSum:
    """Compute the frequencies of a tilted composition. The work grows with `period` over the spacing."""
    size = scipy.fft.next_fast_len(max(ceil(min(period(found) / dots.spacing, MAX_SIZE)), 64), real=True)
    logs, largest, growth = np.zeros(size // 2 + 1, dtype=complex), np.zeros(size // 2 + 1), np.zeros(size // 2 + 1)
    weights, _ = _tilted_masses(dots, found.tilt)
    reach = found.tilt * max(abs(float(dots.losses[0])), abs(float(dots.losses[-1])))
    for row, count in zip(weights, dots.counts, strict=True):
        frequencies, error = _frequencies(row, dots.places, size)
        error += ROUNDING * (64 + reach)
        absolute = np.abs(frequencies)
        with np.errstate(divide="ignore"):
            logs += count * np.log(frequencies)
            largest += count * np.log(absolute + error)
            growth += count * np.log1p(error / absolute)
    used = np.flatnonzero(largest > NEGLIGIBLE)
    shares = np.where((used == 0) | (2 * used == size), 1 / size, 2 / size)
    powers = shares * np.exp(logs[used])
    # |x^n - y^n| <= (|x| + e)^n - |x|^n for |x - y| <= e
    errors = shares * np.exp(largest[used]) * -np.expm1(-growth[used])
    errors += ROUNDING * (64 + 4 * np.abs(logs[used])) * (np.abs(powers) + errors)
    repetitions = float(dots.counts.sum())
    return TiltedSum(
        tilt=found.tilt,
        log_moment=found.log_moment,
        log_infinite=log(dots.infinite) if dots.infinite else -inf,
        loss_error=dots.loss_error,
        most=dots.largest_loss,
        rounding=ROUNDING * (repetitions * (reach + 64) + 64),
        spacing=dots.spacing,
        size=size,
        numbers=np.append(used, 0),
        powers=powers,
        errors=errors,
    )


def _frequencies(masses: Floats, places: NDArray[np.int64], size: int) -> tuple[Complexes, float]:
    """Compute the discrete Fourier transform of masses of sum 1, folded to a period, and a bound on its errors.

    The bound is that of Higham 2002 (Accuracy and Stability of Numerical Algorithms, 2nd edition), Theorem 24.2, on
    the 2-norm, with a margin for other radices.
    """
    folded = np.bincount(places % size, masses / masses.sum(), minlength=size)
    return scipy.fft.rfft(folded), 4 * ROUNDING * log2(size) * sqrt(size) * float(np.linalg.norm(folded))


def _weight_frequencies(
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
