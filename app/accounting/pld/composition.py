"""Certified delta of a composition: a tilted sum of discrete losses, evaluated at few frequencies.

With K_i(t) = ln E exp(t L_i) of part i and K = sum of n_i K_i, the delta at epsilon of the composition is
exp(K(t) - t epsilon) E_t w(S), where S is the sum of the losses, each of them tilted by exp(t L_i - K_i(t)), and
w(s) = exp(-t (s - epsilon)) (1 - exp(epsilon - s)) above epsilon, else 0. On a lattice, E_t w is a sum over the
frequencies of S times those of w. A sum over `size` equally spaced frequencies replaces w by its periodic
continuation, the sum of w(s + j size) over all j. That is nowhere below w, so the result is an upper bound.

Tilting: Esscher 1932; for privacy losses Alghamdi et al. 2023 (arXiv 2208.09595).
"""

from collections.abc import Sequence
from dataclasses import dataclass
from math import ceil, exp, expm1, inf, log, log2, pi, sqrt
from typing import Final, TypeAlias

import numpy as np
import scipy
from numpy.typing import NDArray

from app.accounting.curves import Floats
from app.accounting.pld.dots import Dots

Complexes: TypeAlias = NDArray[np.complex128]

DEVIATIONS: Final = 28.0
"""Length of the period in standard deviations of the tilted sum."""

NEGLIGIBLE: Final = -46.0
"""Logarithm of the largest absolute value of a frequency of the sum that is bounded, not computed."""

ROUNDING: Final = 2.0**-52


@dataclass(frozen=True, slots=True)
class Repeated:
    """Independent repetitions of a discrete loss."""

    dots: Dots
    count: int


@dataclass(frozen=True, slots=True)
class Tilted:
    """The sum of losses, tilted: its cumulant generating function at `tilt`, and mean and variance there."""

    tilt: float
    log_moment: float
    mean: float
    variance: float


def tilted(parts: Sequence[Repeated], tilt: float) -> Tilted:
    """Compute K, K' and K'' of the sum of all repetitions."""
    log_moment = mean = variance = 0.0
    for part in parts:
        exponents = tilt * part.dots.losses
        top = float(exponents.max())
        weights = part.dots.masses * np.exp(exponents - top)
        total = float(weights.sum())
        first = float(weights @ part.dots.losses) / total
        second = float(weights @ (part.dots.losses - first) ** 2) / total
        log_moment += part.count * (top + log(total))
        mean += part.count * first
        variance += part.count * second
    return Tilted(tilt, log_moment, mean, variance)


def saddle(parts: Sequence[Repeated], epsilon: float) -> Tilted:
    """Find the tilt that minimises K(t) - t epsilon - ln t (t + 1), the exponent of the saddle-point approximation.

    Any tilt gives an upper bound; this one gives the fewest rounding errors.
    """
    low, high = 1e-9, 1e9
    at = 1.0
    for _ in range(100):
        found = tilted(parts, at)
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


def log_delta(parts: Sequence[Repeated], epsilon: float) -> float:
    """Compute an upper bound on ln delta of the composition of all repetitions.

    All parts have the same spacing. The work grows with `period` over the spacing.
    """
    spacing = parts[0].dots.spacing
    epsilon = max(0.0, epsilon - sum(part.count * part.dots.loss_error for part in parts))
    infinite = sum(part.count * part.dots.infinite for part in parts)
    log_infinite = log(infinite) if infinite else -inf
    if sum(part.count * float(part.dots.losses[-1]) for part in parts) <= epsilon:
        return log_infinite
    found = saddle(parts, epsilon)
    size = scipy.fft.next_fast_len(max(ceil(period(found) / spacing), 64), real=True)
    expected = _expected_weight(parts, found.tilt, epsilon, size)
    exponents = sum(part.count * float(np.abs(found.tilt * part.dots.losses).max()) for part in parts)
    slack = ROUNDING * (exponents + 64 * (1 + sum(part.count for part in parts)) + 4 * found.tilt * epsilon)
    finite = found.log_moment - found.tilt * epsilon + log(expected) + slack
    return float(np.logaddexp(finite, log_infinite))


def _expected_weight(parts: Sequence[Repeated], tilt: float, epsilon: float, size: int) -> float:
    """Compute an upper bound on the expected periodic weight of the tilted sum."""
    logs, largest, errors = np.zeros(size // 2 + 1, dtype=complex), np.zeros(size // 2 + 1), np.zeros(size // 2 + 1)
    for part in parts:
        frequencies, error = _frequencies(part.dots, tilt, size)
        absolute = np.abs(frequencies)
        with np.errstate(divide="ignore"):
            logs += part.count * np.log(frequencies)
            largest += part.count * np.log(absolute + error)
        errors += part.count * error / np.maximum(absolute - error, error)
    used = np.flatnonzero(largest > NEGLIGIBLE)
    weights = _weight_frequencies(epsilon, parts[0].dots.spacing, tilt, size)
    shares = np.full(logs.size, 2 / size)  # of the frequencies and of their conjugates
    shares[0] = 1 / size
    if size % 2 == 0:
        shares[-1] = 1 / size
    absolute = shares * np.abs(weights)
    rounding = np.expm1(errors[used]) + ROUNDING * (16 + 4 * np.abs(logs[used]))
    value = float(shares[used] @ (np.exp(logs[used]) * weights[used].conj()).real)
    value += float((absolute[used] * np.exp(logs[used].real)) @ rounding)
    return value + exp(NEGLIGIBLE) * float(absolute.sum())


def _frequencies(dots: Dots, tilt: float, size: int) -> tuple[Complexes, float]:
    """Compute the discrete Fourier transform of a tilted loss, folded to a period, and a bound on its errors.

    The bound for the transform is that of Higham 2002 (Accuracy and Stability of Numerical Algorithms, 2nd edition),
    Theorem 24.2, on the 2-norm, with a margin for other radices.
    """
    exponents = tilt * dots.losses
    weights = dots.masses * np.exp(exponents - exponents.max())
    folded = np.bincount(dots.places % size, weights / weights.sum(), minlength=size)
    transform = 4 * ROUNDING * log2(size) * sqrt(size) * float(np.linalg.norm(folded))
    return scipy.fft.rfft(folded), transform + ROUNDING * (64 + float(np.abs(exponents).max()))


def _weight_frequencies(epsilon: float, spacing: float, tilt: float, size: int) -> Complexes:
    """Compute the discrete Fourier transform of the periodic weight: two geometric series, without cancellation."""
    first = ceil(epsilon / spacing)
    beyond = first * spacing - epsilon
    number = np.arange(size // 2 + 1)
    angles = np.multiply(2 * pi / size, number, dtype=np.float64)
    turn: Complexes = np.exp(-1j * angles)
    numerator = -expm1(-beyond) - turn * exp(-tilt * spacing - beyond) * expm1(beyond - spacing)
    denominator = np.multiply(_one_minus(tilt * spacing, angles), _one_minus((tilt + 1) * spacing, angles))
    phases = np.exp(-2j * pi / size * (number * first % size))
    found: Complexes = exp(-tilt * beyond) * phases * numerator / denominator
    return found


def _one_minus(decay: float, angles: Floats) -> Complexes:
    """Compute 1 - exp(-decay - i angle)."""
    return -expm1(-decay) + exp(-decay) * (2 * np.sin(angles / 2) ** 2 + 1j * np.sin(angles))
