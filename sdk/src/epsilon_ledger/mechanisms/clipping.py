"""Exact clipping and summation, which bound the influence of a record."""

from collections.abc import Sequence
from dataclasses import dataclass
from math import sqrt
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from epsilon_ledger.mechanisms.lattice import MAX_SUMMANDS, Lattice

Floats = NDArray[np.float64]

_AT_ONCE: Final = 1 << 16
"""Numbers clipped at once, to fit a core's cache."""


@dataclass(frozen=True, slots=True)
class ClippedSum:
    """A sum of clipped summands.

    Args:
        multiples: (d,), the exact sum in multiples of the lattice's spacing.
        within: number of summands with a norm of at most the clipping norm; private.
        count: number of summands; private.
    """

    multiples: Floats
    within: int
    count: int


def clipped_sum(rows: Sequence[NDArray[Any]], clipping_norm: float, lattice: Lattice) -> ClippedSum:
    """Clip every summand, round it to the lattice, and add up.

    The norm is the L2 norm over all parameters together. A summand with a non-finite norm (NaN, infinity, overflow)
    counts as zero and as not within; otherwise a single record could make the sum NaN.

    Args:
        rows: one array (n, d_j) for each parameter; row i of all of them is summand i.
        clipping_norm: C, above 0.
        lattice: for the clipped summands.

    Returns:
        The sum. One more summand moves it by at most `rounded_norm`.

    Raises:
        ValueError: there are more than 2^22 summands, whose sum might not be exact.

    Source:
        Abadi et al. 2016 (arXiv 1607.00133), Algorithm 1.
    """
    count = rows[0].shape[0]
    if count > MAX_SUMMANDS:
        raise ValueError(f"There are {count} summands, but at most {MAX_SUMMANDS} can be added up exactly.")
    ends = np.cumsum([part.shape[1] for part in rows])
    size = int(ends[-1])
    step = max(1, min(count, _AT_ONCE // max(1, size)))
    block, sums, multiples, within = np.empty((step, size)), np.empty(size), np.zeros(size), 0
    for start in range(0, count, step):
        vectors = block[: count - start]
        for part, columns in zip(rows, np.split(vectors, ends[:-1], axis=1), strict=True):
            columns[...] = part[start : start + step]
        with np.errstate(over="ignore", invalid="ignore"):
            norms = np.sqrt(np.einsum("ij,ij->i", vectors, vectors))
        lost = ~np.isfinite(norms)
        vectors[lost], norms[lost] = 0.0, np.inf
        within += int(np.count_nonzero(norms <= clipping_norm))
        vectors *= (clipping_norm / np.maximum(norms, clipping_norm) / lattice.spacing)[:, np.newaxis]
        np.rint(vectors, out=vectors)
        multiples += np.add.reduce(vectors, axis=0, out=sums)
    return ClippedSum(multiples, within, count)


def rounded_norm(clipping_norm: float, size: int, lattice: Lattice) -> float:
    """Compute the L2 sensitivity of a sum of `size` coordinates, rounding included.

    Rounding summands moves each coordinate by at most half a spacing. Rounding finished sums can move two neighbours
    apart by a whole one, which is counted here. The norm is computed from `size` products with 53 bits each.
    """
    return clipping_norm * (1 + (size + 8) * 2.0**-52) + sqrt(size) * lattice.spacing
