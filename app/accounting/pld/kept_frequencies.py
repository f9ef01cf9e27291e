"""The frequencies of parts that count in their composition, and a bound on all others."""

from collections.abc import Iterable
from math import exp, expm1, log
from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from app.accounting.curves import Floats
from app.accounting.pld.composition import shares_of_frequencies
from app.accounting.pld.frequencies import Complexes
from app.accounting.pld.pairs import TINY

MOST_VALUES: Final = 2**18
"""Maximum frequencies of all pairs together: 6 MB."""

SIZES: Final = 2.0**-40
"""Error allowed for a bound."""


class TooManyFrequenciesError(Exception):
    """Raised if more than MOST_VALUES frequencies count."""


class KeptFrequencies(NamedTuple):
    """The frequencies that count: (k,) numbers, (n, k) logarithms and those of 1 + relative error, (n,) errors."""

    numbers: NDArray[np.int64]
    logs: Complexes
    growth: Floats
    row_errors: Floats
    left_out: float


def keep_frequencies(
    rows: Iterable[tuple[Complexes, float]], lowest: Floats, sizes: Floats, log_room: float, error: float
) -> KeptFrequencies:
    """Keep the frequencies but for those whose sum is at most e^log_room; raise if they are too many."""
    numbers, bounds = np.arange(sizes.size), np.log(sizes)
    logs, growths, row_errors, left_out = list[Complexes](), list[Floats](), list[float](), 0.0
    hardly = log_room - log(2 * sizes.size)
    for (values, own_error), count in zip(rows, lowest, strict=True):
        row, own = values[numbers], own_error + error
        absolute = np.maximum(np.abs(row), TINY)
        bounds += count * np.log(absolute + own)
        # None is above 1 but for its error, so what hardly counts stays so.
        kept = bounds > hardly
        left_out += float(np.exp(bounds[~kept]).sum())
        numbers, bounds, row, absolute = numbers[kept], bounds[kept], row[kept], absolute[kept]
        logs = [*(each[kept] for each in logs), np.log(np.where(row == 0, TINY, row))]
        growths = [*(each[kept] for each in growths), np.log1p(own / absolute)]
        row_errors.append(own)
        if numbers.size * len(logs) > MOST_VALUES:
            raise TooManyFrequenciesError
    order = np.argsort(bounds)
    sums = np.cumsum(np.exp(bounds[order]))
    dropped = int(np.searchsorted(sums, exp(log_room) / 2))
    left_out += float(sums[dropped - 1]) if dropped else 0.0
    order = np.sort(order[dropped:])
    return KeptFrequencies(
        numbers[order], np.stack(logs)[:, order], np.stack(growths)[:, order], np.array(row_errors), left_out
    )


def weight_sizes(spacing: float, tilt: float, size: int, most: int) -> Floats:
    """Bound the absolute values of the frequencies of the weight below `most`, as often as they are in the sum.

    |1 - e^(-a - i x)|^2 is (1 - e^-a)^2 + 4 e^-a sin^2(x / 2).
    """
    numbers = np.arange(most)
    turned = 4 * np.sin(np.pi / size * numbers) ** 2
    first, second = (expm1(-each * spacing) ** 2 + exp(-each * spacing) * turned for each in (tilt, tilt + 1))
    sizes: Floats = -expm1(-spacing) * shares_of_frequencies(numbers, size) / np.sqrt(first * second)
    return sizes * (1 + SIZES)
