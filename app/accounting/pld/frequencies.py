"""Few frequencies of discrete distributions, with a proof that the others are negligible in a composition.

The sum of many losses is smooth: of a million frequencies, some thirty count, and they are computed one by one. That no
other counts follows from pairs of masses. Masses a and b at a distance of g places have at the angle x per place
the absolute value sqrt((a + b)^2 - 2 a b (1 - cos g x)), which is at most a + b - a b / (a + b) (1 - cos g x). So a
distribution of sum 1 has at most 1 - s, where s is the sum of a b / (a + b) (1 - cos g x) over disjoint pairs, and n
repetitions have at most exp(-n s). Where pairs do not suffice, a coarse grid of angles does: between two of its points,
a frequency changes little.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from math import ceil, cos, isqrt, log2, pi, sqrt
from typing import Final, TypeAlias

import numpy as np
import scipy
from numpy.typing import NDArray

from app.accounting.curves import Floats
from app.accounting.pld.pairs import TINY
from app.accounting.pricing_effort import use_effort

Complexes: TypeAlias = NDArray[np.complex128]

NEGLIGIBLE: Final = -46.0
"""Logarithm of the largest absolute value of a frequency of the sum that is bounded, not computed."""

SLACK: Final = -0.1
"""Sum of the errors that may follow a frequency that is negligible already."""

MAX_SIZE, MAX_SIZES = 2**20, 2**24
"""Maximum places in a period of which all frequencies are computed, for one distribution and for all together."""

STRIDES: Final = (1, 4, 16, 64, 256)
"""Places of the lattice from a mass to the one that it is paired with."""

RATIO: Final = sqrt(2)
"""Ratio of the ends of an interval of angles."""

STEEPNESS: Final = (1 - cos(pi / RATIO)) / (pi / RATIO) ** 2
"""The least of (1 - cos y) / y^2 for y up to pi / RATIO: it decreases."""

ANGLE, TRANSFORM = 6, 40
"""Time for an angle, and for each place of a fast transform, in products of a mass and a frequency."""

GRID: Final = 1024
"""Fewest points of a grid of angles."""

LARGEST_GRID: Final = 2**16
"""Most points of a grid of angles, which are at most a quarter of those of the period."""

CHANGE: Final = 0.05
"""Most that a frequency may change between points of a grid."""

MAX_TURNS: Final = 2**23
"""Maximum products of frequencies that are computed one by one and masses."""

MAX_VALUES: Final = 2**21
"""Maximum frequencies that are computed one by one, of all distributions: 32 MB."""

CHUNK: Final = 128
"""Masses that are summed up at first, so that few roundings follow one another."""

BLOCK: Final = 16
"""Fewest frequencies that are computed together: with 2^14 masses, their angles take 4 MB."""

LARGEST_BLOCK: Final = 2**17
"""Most products of frequencies that are computed together and masses, but for BLOCK."""

PAIRED, PAIRED_PLACE, PAIRED_MASS, GRID_MASS = 120, 0.08, 0.05, 0.03
"""Microseconds for pairs of masses, and for each place and mass in them; and for a mass and a grid of angles."""

TURNED, TURNED_EACH, SUMMED = 0.006, 0.001, 0.05
"""Microseconds for the angle of a frequency and a place, and for its products with the masses of each distribution; and
for each frequency of a distribution."""

TRANSFORMED, POWERED = 0.014, 0.15
"""Microseconds for each place of a fast transform, and for each frequency whose power is computed."""

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


def frequencies(
    masses: Floats, counts: Floats, places: NDArray[np.int64], size: int, error: float
) -> Frequencies | None:
    """Compute the frequencies of a composition; None if there are too many.

    Args:
        masses: (n, m) of sum 1 each.
        counts: (n,) positive repetitions of each.
        places: (m,) increasing multiples of a spacing.
        size: least number of places in a period.
        error: of the sum of the masses.
    """
    found = frequency_rows(masses, counts, places, size, error)
    if found is None:
        return None
    size, first, rows = found
    used = np.arange(first)
    logs, largest, growth = np.zeros(first, dtype=complex), np.zeros(first), np.zeros(first)
    for (values, own_error), count in zip(rows, counts, strict=True):
        use_effort(used.size * POWERED)
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


def frequency_rows(
    masses: Floats, counts: Floats, places: NDArray[np.int64], size: int, error: float
) -> tuple[int, int, Iterable[tuple[Complexes, float]]] | None:
    """Compute the first frequencies of each distribution, with bounds on their errors, as `frequencies` takes them.

    Returns:
        The places in a period, the number of frequencies, and them by distribution. Up to half of the period, all
        others of the composition are at most NEGLIGIBLE. None if there are too many.
    """
    first = _first_negligible(masses, counts, places, size, error)
    too_many = size > min(MAX_SIZE, MAX_SIZES // counts.size)
    few = first * places.size <= MAX_TURNS and first * counts.size <= MAX_VALUES
    if few and (too_many or _is_cheap(first, masses, size)):
        use_effort(first * (places.size * (TURNED + TURNED_EACH * counts.size) + SUMMED * counts.size))
        return size, first, _directly(masses, places, size, first)
    if too_many:
        return None
    size = scipy.fft.next_fast_len(size, real=True)
    use_effort(size * counts.size * TRANSFORMED)
    return size, size // 2 + 1, _fast(masses, places, size)


def _is_cheap(first: int, masses: Floats, size: int) -> bool:
    """Check whether to compute the frequencies below `first` one by one takes less time than fast transforms."""
    rows, places = map(int, masses.shape)
    return first * places * (ANGLE + rows) <= TRANSFORM * size * rows


def _first_negligible(masses: Floats, counts: Floats, places: NDArray[np.int64], size: int, error: float) -> int:
    """Find a number from which on, up to half the size, each frequency of the composition is proven negligible.

    Interval i of angles goes from pi RATIO^-(i + 1) to pi RATIO^-i.
    """
    if float(counts.sum()) < -2 * NEGLIGIBLE:  # pairs take half of a frequency at most
        return size // 2 + 1
    use_effort(PAIRED + PAIRED_PLACE * places.size + PAIRED_MASS * masses.size)
    angles = pi * RATIO ** -np.arange(ceil(log2(size / 2) / log2(RATIO)) + 1.0)
    proven = _by_pairs(masses, counts, places, angles, error)
    first = _first_of_proven(proven, angles, size)
    if not _is_cheap(first, masses, size):
        proven |= _by_a_grid(masses, counts, places, angles, min(LARGEST_GRID, size // 4), error)
        first = _first_of_proven(proven, angles, size)
    return first


def _first_of_proven(proven: NDArray[np.bool_], angles: Floats, size: int) -> int:
    if not proven[0]:
        return size // 2 + 1
    end = proven.size if proven.all() else int(np.argmin(proven))
    return ceil(float(angles[end]) / (2 * pi) * size)


def _by_pairs(
    masses: Floats, counts: Floats, places: NDArray[np.int64], angles: Floats, error: float
) -> NDArray[np.bool_]:
    """Prove intervals of (i + 1,) falling angles negligible by pairs of masses.

    In each, 1 - cos g x is at least that of its lower end where g is at most pi over its upper end, and for these it is
    at least STEEPNESS (g x)^2.
    """
    rows, intervals = masses.shape[0], angles.size - 1
    squares = np.zeros((rows, intervals))
    for stride in STRIDES:
        left = np.flatnonzero(np.arange(places.size - stride) // stride % 2 == 0)  # so that pairs are disjoint
        gaps = places[left + stride] - places[left]
        a, b = masses[:, left], masses[:, left + stride]
        weights = a * b / np.maximum(a + b, TINY) * gaps.astype(np.float64) ** 2
        first = np.minimum(np.ceil(np.log2(gaps) / log2(RATIO)).astype(np.int64), intervals)
        at = first + (intervals + 1) * np.arange(rows)[:, np.newaxis]
        each = np.bincount(at.ravel(), weights.ravel(), (intervals + 1) * rows).reshape(rows, intervals + 1)
        squares = np.maximum(squares, each[:, :-1].cumsum(axis=1))
    rounding = float(counts.sum()) * (error + ROUNDING * (64 + places.size))
    proven: NDArray[np.bool_] = counts @ squares * STEEPNESS * angles[1:] ** 2 >= rounding - NEGLIGIBLE
    return proven


def _by_a_grid(
    masses: Floats, counts: Floats, places: NDArray[np.int64], angles: Floats, most: int, error: float
) -> NDArray[np.bool_]:
    """Prove intervals negligible by the frequencies at few angles, pi / g from each other's middles.

    A mass w at place p turns by at most 2 w, and by |p - c| w for each unit of the angle, where c may be any place.
    """
    use_effort(GRID_MASS * masses.size)
    middles = places[np.argmax(masses, axis=1)]
    away = np.abs(places - middles[:, np.newaxis])
    points = GRID
    while True:
        change = (masses * np.minimum(2, pi / points * away)).sum(axis=1)
        if float(change.max()) <= CHANGE:
            break
        points *= 4
        if points > most:
            return np.zeros(angles.size - 1, dtype=bool)
    use_effort(points * counts.size * POWERED / 2)
    folded = np.stack([np.bincount(places % points, row, minlength=points) for row in masses])
    change += error + _error_of_transform(points, 1.0)
    largest = counts @ np.log(np.abs(scipy.fft.rfft(folded)) + change[:, np.newaxis])
    others = np.concatenate([[0], np.cumsum(largest > NEGLIGIBLE)])
    at = angles * points / (2 * pi)
    begin, end = np.floor(at[1:]).astype(np.int64), np.minimum(np.ceil(at[:-1]).astype(np.int64), points // 2)
    proven: NDArray[np.bool_] = others[end + 1] == others[begin]
    return proven


def _directly(masses: Floats, places: NDArray[np.int64], size: int, most: int) -> Iterator[tuple[Complexes, float]]:
    """Compute the frequencies below `most` as sums over the masses, and bounds on their errors.

    Angles are exact multiples of 2 pi / size: a sine or cosine errs by less than 16 roundings, a product of two by less
    than 64, and a sum of sums by one for each term of the longest sum and for each sum.
    """
    width = min(CHUNK, places.size)
    chunks = ceil(places.size / width)
    padded = ((0, 0), (0, chunks * width - places.size))
    folded = np.pad(places % size, padded[1])
    split = np.pad(masses, padded).reshape(-1, chunks, width).transpose(1, 0, 2)
    # Of each block one angle is computed anew, and all are computed in the first one.
    together = max(BLOCK, min(LARGEST_BLOCK // folded.size, 4 * isqrt(most)))

    def turns(numbers: NDArray[np.int64]) -> Complexes:
        angles = np.multiply.outer(numbers, folded) % size * (-2 * pi / size)
        found: Complexes = np.exp(1j * angles)
        return found

    within = turns(np.arange(min(together, most)))
    values = np.empty((masses.shape[0], most), dtype=complex)
    for begin in range(0, most, together):
        block = (turns(np.array([begin])) * within[: most - begin]).reshape(-1, chunks, width).transpose(1, 2, 0)
        sums = (split @ block.real).sum(axis=0) + 1j * (split @ block.imag).sum(axis=0)
        values[:, begin : begin + together] = sums
    error = ROUNDING * (128 + 2 * (chunks + width))
    return ((row, error) for row in values)


def _fast(masses: Floats, places: NDArray[np.int64], size: int) -> Iterator[tuple[Complexes, float]]:
    """Compute all frequencies by fast transforms of masses folded to a period, and bounds on their errors."""
    for row in masses:
        folded = np.bincount(places % size, row, minlength=size)
        norm = sqrt(float(np.square(folded).sum()))
        yield scipy.fft.rfft(folded), _error_of_transform(size, norm)


def _error_of_transform(size: int, norm: float) -> float:
    """Bound the error of each frequency of numbers with a 2-norm.

    The bound is that of Higham 2002 (Accuracy and Stability of Numerical Algorithms, 2nd edition), Theorem 24.2, on
    the 2-norm, with a margin for other radices.
    """
    return 4 * ROUNDING * log2(size) * sqrt(size) * norm
