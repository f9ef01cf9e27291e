"""Few frequencies of discrete distributions, with a proof that the others are negligible in a composition.

The sum of many losses is smooth: of a million frequencies, some thirty count, and they are computed one by one. That no
other counts follows from pairs of masses. Masses a and b at a distance of g places have at the angle x per place
the absolute value sqrt((a + b)^2 - 2 a b (1 - cos g x)), which is at most a + b - a b / (a + b) (1 - cos g x). So a
distribution of sum 1 has at most 1 - (sum over disjoint pairs of a b / (a + b) (1 - cos g x)), and n repetitions have at
most exp of minus n times that sum.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from math import ceil, cos, log2, pi, sqrt
from typing import Final, TypeAlias

import numpy as np
import scipy
from numpy.typing import NDArray

from app.accounting.curves import Floats
from app.accounting.pld.pairs import TINY

Complexes: TypeAlias = NDArray[np.complex128]

NEGLIGIBLE: Final = -46.0
"""Logarithm of the largest absolute value of a frequency of the sum that is bounded, not computed."""

SLACK: Final = -0.1
"""Sum of the errors that may follow a frequency that is negligible already."""

MAX_SIZE: Final = 2**20
"""Maximum places in a period of which all frequencies are computed; a shorter period gives a looser bound."""

STRIDES: Final = (1, 4, 16, 64, 256)
"""Places of the lattice from a mass to the one that it is paired with."""

RATIO: Final = sqrt(2)
"""Ratio of the ends of an interval of angles."""

STEEPNESS: Final = (1 - cos(pi / RATIO)) / (pi / RATIO) ** 2
"""The least of (1 - cos y) / y^2 for y up to pi / RATIO: it decreases."""

TERMS_PER_PLACE: Final = 2
"""Products of frequencies and masses that take the time of a fast transform, for each of its places."""

MAX_DIRECT: Final = 4096
"""Maximum number of frequencies that are computed one by one, where a period would have to be shorter."""

BLOCK: Final = 16
"""Frequencies whose angles are computed; others are their products."""

ROUNDING: Final = 2.0**-52


@dataclass(frozen=True, slots=True, eq=False)
class Frequencies:
    """Frequencies of a composition, as logarithms; k are not negligible.

    Args:
        size: places in a period.
        numbers: (k,) numbers of the frequencies, increasing, from 0.
        logs: (k,) logarithms of the frequencies.
        largest: (k,) logarithms of the largest absolute values that errors allow.
        growth: (k,) those over the absolute values, as logarithms.
    """

    size: int
    numbers: NDArray[np.int64]
    logs: Complexes
    largest: Floats
    growth: Floats


def frequencies(masses: Floats, counts: Floats, places: NDArray[np.int64], size: int, error: float) -> Frequencies:
    """Compute the frequencies of a composition.

    Args:
        masses: (n, m) of sum 1 each.
        counts: (n,) positive repetitions of each.
        places: (m,) increasing multiples of a spacing.
        size: wanted number of places in a period.
        error: of the sum of the masses.
    """
    first = _first_negligible(masses, counts, places, size)
    if first * places.size <= TERMS_PER_PLACE * size or (size > MAX_SIZE and first <= MAX_DIRECT):
        rows: Iterable[tuple[Complexes, float]] = _directly(masses, places, size, first)
    else:
        size = scipy.fft.next_fast_len(min(size, MAX_SIZE), real=True)
        first, rows = size // 2 + 1, _fast(masses, places, size)
    used = np.arange(first)
    logs, largest, growth = np.zeros(first, dtype=complex), np.zeros(first), np.zeros(first)
    for (values, own_error), count in zip(rows, counts, strict=True):
        row = values[used]
        absolute, own = np.maximum(np.abs(row), TINY), own_error + error
        largest += count * np.log(absolute + own)
        # None is above 1 but for its error, so what is negligible stays so.
        kept = largest > NEGLIGIBLE + SLACK
        used, row, absolute = used[kept], row[kept], absolute[kept]
        logs, largest, growth = logs[kept], largest[kept], growth[kept]
        logs += count * np.log(np.where(row == 0, TINY, row))
        growth += count * np.log1p(own / absolute)
    return Frequencies(size, used, logs, largest, growth)


def _first_negligible(masses: Floats, counts: Floats, places: NDArray[np.int64], size: int) -> int:
    """Find a number from which on, up to half the size, each frequency of the composition is proven negligible.

    Interval i of angles goes from pi RATIO^-(i + 1) to pi RATIO^-i. In it, 1 - cos g x is at least that of its lower
    end where g is at most RATIO^i, and for these it is at least STEEPNESS (g x)^2.
    """
    if float(counts.sum()) < -2 * NEGLIGIBLE:  # pairs take half of a frequency at most
        return size // 2 + 1
    intervals = ceil(log2(size / 2) / log2(RATIO))
    squares = np.zeros((masses.shape[0], intervals))
    for stride in STRIDES:
        left = np.flatnonzero(np.arange(places.size - stride) // stride % 2 == 0)  # so that pairs are disjoint
        gaps = places[left + stride] - places[left]
        a, b = masses[:, left], masses[:, left + stride]
        weights = a * b / np.maximum(a + b, TINY) * gaps.astype(np.float64) ** 2
        first = np.minimum(np.ceil(np.log2(gaps) / log2(RATIO)).astype(np.int64), intervals)
        at = first + (intervals + 1) * np.arange(masses.shape[0])[:, np.newaxis]
        each = np.bincount(at.ravel(), weights.ravel(), (intervals + 1) * masses.shape[0]).reshape(-1, intervals + 1)
        squares = np.maximum(squares, each[:, :-1].cumsum(axis=1))
    lower = pi * RATIO ** -np.arange(1.0, intervals + 1)
    proven = counts @ squares * STEEPNESS * lower**2 >= -NEGLIGIBLE
    if not proven[0]:
        return size // 2 + 1
    last = int(np.argmin(proven)) - 1 if not proven.all() else intervals - 1
    return ceil(float(lower[last]) / (2 * pi) * size)


def _directly(masses: Floats, places: NDArray[np.int64], size: int, most: int) -> Iterator[tuple[Complexes, float]]:
    """Compute the frequencies below `most` as sums over the masses, and bounds on their errors.

    Angles are exact multiples of 2 pi / size: a sine or cosine errs by less than 16 roundings, a product of two by less
    than 64, and a sum of m by one for each of its terms.
    """
    folded = places % size

    def turns(numbers: NDArray[np.int64]) -> Complexes:
        angles = np.multiply.outer(numbers, folded) % size * (-2 * pi / size)
        found: Complexes = np.exp(1j * angles)
        return found

    blocks = turns(BLOCK * np.arange(-(-most // BLOCK)))
    within = turns(np.arange(min(BLOCK, most)))
    all_turns = (blocks[:, np.newaxis] * within).reshape(-1, places.size)[:most]
    values = masses @ all_turns.real.T + 1j * (masses @ all_turns.imag.T)
    error = ROUNDING * (128 + 2 * places.size)
    return ((row, error) for row in values)


def _fast(masses: Floats, places: NDArray[np.int64], size: int) -> Iterator[tuple[Complexes, float]]:
    """Compute all frequencies by fast transforms of masses folded to a period.

    The bound on errors is that of Higham 2002 (Accuracy and Stability of Numerical Algorithms, 2nd edition), Theorem
    24.2, on the 2-norm, with a margin for other radices.
    """
    for row in masses:
        folded = np.bincount(places % size, row, minlength=size)
        yield scipy.fft.rfft(folded), 4 * ROUNDING * log2(size) * sqrt(size) * float(np.linalg.norm(folded))
