"""Clip each summand to a norm and add them up, exactly: the part of a release that bounds what one record can do."""

from collections.abc import Sequence
from dataclasses import dataclass
from math import sqrt
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from epsilon_ledger.mechanisms.lattice import MAX_SUMMANDS, Lattice

Floats = NDArray[np.float64]

_AT_ONCE: Final = 1 << 16
"""Numbers that are clipped together, so that they stay in a core's cache."""


@dataclass(frozen=True, slots=True)
class ClippedSum:
    """A sum of clipped summands.

    Args:
        multiples: (d,), the sum in multiples of the lattice's spacing, exact.
        within: how many summands had a norm of at most the clipping norm; private.
        count: how many there were; private.
    """

    multiples: Floats
    within: int
    count: int


def clipped_sum(rows: Sequence[NDArray[Any]], clipping_norm: float, lattice: Lattice) -> ClippedSum:
    """Scale every summand down to the clipping norm, round it to the lattice, and add up.

    The norm is the L2 norm of a summand's whole vector, over all parameters together. A summand whose norm is not a
    finite number (a NaN, an infinity, a square that overflows) counts as zero and as not within: else a single record
    could decide whether the sum is a number.

    Args:
        rows: one array (n, d_j) for each parameter; row i of all of them is summand i.
        clipping_norm: C, above 0.
        lattice: to which the clipped summands are rounded.

    Returns:
        The sum. With a summand more it moves by at most `rounded_norm`.

    Raises:
        ValueError: there are more than 2^22 summands, of which the sum might not be exact.

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
    """Return how far one summand can move a sum, with rounding included.

    Where each summand is rounded to the lattice, its coordinates move by at most half a spacing. Where the finished sum
    is rounded, the sums of two neighbours may move apart by a whole one, which is what is counted here. The norm itself
    is computed from `size` products with 53 bits each.

    Args:
        clipping_norm: C.
        size: coordinates of the vector.
        lattice: to which the summands, or their sum, are rounded.

    Returns:
        The L2 sensitivity, a little above C.
    """
    return clipping_norm * (1 + (size + 8) * 2.0**-52) + sqrt(size) * lattice.spacing
