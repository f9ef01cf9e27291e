"""Discrete distributions of the privacy loss that bound a dominating pair from above: connect the dots.

The hockey-stick divergence of a pair is convex in e^epsilon, so the polygon through some of its points is above it. The
polygon is the divergence of a discrete distribution: the mass of every cell between two losses goes to its ends, so
that both P and Q keep theirs. Source: Doroshenko, Ghazi, Kamath, Kumar, Manurangsi 2022 (arXiv 2207.04380), section 3.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from math import ceil, floor, log2, sqrt
from typing import Final

import numpy as np
from numpy.typing import NDArray

from app.accounting.curves import Floats
from app.accounting.pld.discrete_gaussian import REACH, SUMMED, DiscreteGaussianPair
from app.accounting.pld.gaussian_mixture import CasesPair, GaussianMixturePair, ReplacedMixturePair
from app.accounting.pld.pairs import ROUNDING, Pair, SampledPair, Tails
from app.accounting.pricing_effort import MOST_KNOWN, use_effort, use_effort_once

ROW, ROW_PLACE = 80, 0.15
"""Microseconds for a row, and for each of its places."""

NESTED: Final = 0.07
"""Microseconds for a place and a pair within another one."""

MIXED: Final = 0.35
"""Microseconds for a place and a distance of a mixture: up to 18 rounds of Newton's method were counted."""

MIRRORED: Final = 0.45
"""The same of a mixture and its mirror image."""

SUMMED_MASS: Final = 0.02
"""Microseconds for a mass of a discrete Gaussian."""


def row_work(pair: Pair, places: int) -> float:
    """Estimate an upper bound, in microseconds, on the work of a pair's masses on a lattice of so many places."""
    return ROW + ROW_PLACE * places + _tails_work(pair, places)


def _tails_work(pair: Pair, places: int) -> float:
    """Estimate what the tails of a pair take beyond those of a Gaussian."""
    match pair:
        case SampledPair():
            return NESTED * places + _tails_work(pair.pair, places)
        case CasesPair():
            return sum(NESTED * places + _tails_work(each, places) for each in pair.pairs)
        case GaussianMixturePair():
            return MIXED * places * len(pair.mixture.sizes)
        case ReplacedMixturePair():
            return MIRRORED * places * len(pair.mixture.sizes)
        case DiscreteGaussianPair() if pair.sigma < SUMMED:
            return SUMMED_MASS * REACH * pair.sigma
        case _:
            return 0.0


LARGEST_LOSS: Final = 1e4
"""Nats; larger losses count as infinite."""

LARGEST_EXPONENT: Final = 700.0
"""The largest whose exponential is finite."""

ROUGH: Final = np.concatenate([-np.geomspace(LARGEST_LOSS, 1e-9, 500), [0.0], np.geomspace(1e-9, LARGEST_LOSS, 500)])
"""Losses at which a pair is looked at, to find where its mass is."""


PRODUCT_ERROR: Final = 16 * ROUNDING
"""Error of a mass under P less that under Q times e^loss, relative to their sum."""

PLACED: Final = 0.4
"""Microseconds for each place of a lattice."""

KEPT: Final = 2**13
"""Most places of a lattice on which pairs are cached: 512 of them take 32 MB."""


@dataclass(frozen=True, slots=True)
class Lattice:
    """Multiples of a spacing, dense around 0 and sparser with the distance from it.

    Args:
        spacing: nats.
        lowest, highest: the first and last multiple are at or beyond them; at most and at least 0.
        widest: largest difference between two positive multiples next to each other. A tilt makes the masses of the
            negative ones small.
        width: largest width of a cell over the distance from 0, where that is more than the spacing.
    """

    spacing: float
    lowest: int
    highest: int
    widest: int
    width: float

    @classmethod
    def over(cls, lowest: float, highest: float, spacing: float, widest: float, width: float) -> "Lattice":
        """Choose the lattice from `lowest` to `highest` nats with cells of at most `widest` nats.

        Spacing and widest cell are rounded down to powers of two, so that plans of about equal size share a lattice.
        """
        narrow = 2.0 ** floor(log2(spacing))
        cells = max(widest / narrow, 1.0)
        ends = min(floor(lowest / narrow), 0), max(ceil(highest / narrow), 1)
        return cls(narrow, *ends, 2 ** floor(log2(cells)), width)

    def coarser(self) -> "Lattice":
        """Double the spacing."""
        ends = self.lowest // 2, -(-self.highest // 2)
        return Lattice(2 * self.spacing, *ends, max(self.widest // 2, 1), self.width)

    def places(self) -> NDArray[np.int64]:
        """Compute the multiples; (m,) increasing integers."""
        sides = []
        for reach, most in ((-self.lowest, -self.lowest), (self.highest, self.widest)):
            places, place, end, widest = [0], 0, max(reach, 1), max(most, 1)
            while place < end:
                width = int(place * self.width)
                place += min(width, widest) if width else 1
                places.append(place)
            sides.append(places)
        return np.array([-place for place in sides[0][:0:-1]] + sides[1], dtype=np.int64)


@dataclass(frozen=True, slots=True)
class Spread:
    """Range of the privacy loss of a pair under P.

    Args:
        deviation: approximate standard deviation, in nats.
        middle: approximate median.
        lowest: the probability of a smaller loss is negligible.
        highest: the probability of a larger loss is negligible, or it counts as infinite.
        beyond: probability of a loss above `highest`, rounded up.
        infinite: probability of a loss that counts as infinite.
        loss_error: nats by which `highest` may be wrong.
    """

    deviation: float
    middle: float
    lowest: float
    highest: float
    beyond: float
    infinite: float
    loss_error: float


@dataclass(frozen=True, slots=True, eq=False)
class Distributions:
    """Discrete distributions of n privacy losses.

    Args:
        losses: (m,) increasing, in nats.
        masses: (n, m) probabilities, rounded up: they may sum to more than 1.
        last: (n,) indices of the last positive masses.
    """

    losses: Floats
    masses: Floats
    last: NDArray[np.intp]


@dataclass(frozen=True, slots=True, eq=False)
class Dots(Distributions):
    """Distributions on a lattice that bound those of pairs from above.

    Args:
        places: (m,) multiples of the spacing.
        spacing: nats.
        infinite: (n,) probabilities of an infinite loss.
        loss_errors: (n,) nats by which the losses may be larger.
    """

    places: NDArray[np.int64]
    spacing: float
    infinite: Floats
    loss_errors: Floats


def spread(pair: Pair, negligible: float) -> Spread:
    """Find where the privacy loss of a pair lies, but for a negligible probability on either side."""
    deviation, tails, _ = _rough(pair)
    last = int(np.argmax(tails.p_above <= negligible)) or ROUGH.size - 1
    first = max(int(np.argmax(tails.p_below > negligible)) - 1, 0)
    beyond, infinite = (float(tails.p_above[place] * (1 + tails.tail_errors[place])) for place in (last, -1))
    middle = float(ROUGH[int(np.argmin(np.abs(tails.p_below - tails.p_above)))])
    return Spread(deviation, middle, float(ROUGH[first]), float(ROUGH[last]), beyond, infinite, tails.loss_error)


def use_effort_of_look(pair: Pair) -> None:
    """Count the work of looking at a pair, once for a request."""
    use_effort_once(pair, row_work(pair, ROUGH.size))


@lru_cache(maxsize=MOST_KNOWN)
def _rough(pair: Pair) -> tuple[float, Tails, Floats]:
    """Compute deviation, tails and masses of a privacy loss at the losses ROUGH."""
    tails = pair.tails(ROUGH)
    mass, _ = _cells(tails.p_below, tails.p_above, tails.tail_errors)
    middle = (ROUGH[1:] + ROUGH[:-1]) / 2
    deviation = sqrt(float(mass @ (middle - float(mass @ middle)) ** 2))
    return deviation, tails, _ends(tails, ROUGH)


def rough_distributions(pairs: Sequence[Pair], lowest: float, highest: float) -> Distributions:
    """Approximate the privacy losses of pairs between two losses, to guess where a finer lattice has to be."""
    first, last = np.searchsorted(ROUGH, [lowest, highest])
    masses = np.stack([_rough(pair)[2][first : last + 1] for pair in pairs])
    return Distributions(ROUGH[first : last + 1], masses, _last_positive(masses))


def connect_the_dots(pairs: Sequence[Pair], lattice: Lattice) -> Dots:
    """Move the mass of each cell to its ends; that below the first place to it, that above the last to infinity."""
    places = _places(lattice)
    is_kept = places.size <= KEPT
    use_effort_once(lattice, PLACED * places.size)
    rows = []
    for pair in pairs:
        work = row_work(pair, places.size)
        if is_kept:
            use_effort_once((pair, lattice), work)
            rows.append(_kept_row(pair, lattice))
        else:
            use_effort(work)
            rows.append(_row(pair, lattice))
    masses = np.stack([row for row, _, _ in rows])
    infinite, errors = (np.array([row[which] for row in rows]) for which in (1, 2))
    losses = np.multiply(places, lattice.spacing, dtype=np.float64)
    return Dots(losses, masses, _last_positive(masses), places, lattice.spacing, infinite, errors)


@lru_cache(maxsize=32)
def _places(lattice: Lattice) -> NDArray[np.int64]:
    return lattice.places()


def _row(pair: Pair, lattice: Lattice) -> tuple[Floats, float, float]:
    """Compute the masses of one pair, its probability of an infinite loss, and the error of its losses."""
    losses = np.multiply(_places(lattice), lattice.spacing, dtype=np.float64)
    tails = pair.tails(losses)
    return _ends(tails, losses), float(tails.p_above[-1] * (1 + tails.tail_errors[-1])), tails.loss_error


_kept_row = lru_cache(maxsize=MOST_KNOWN)(_row)


def _last_positive(masses: Floats) -> NDArray[np.intp]:
    last: NDArray[np.intp] = masses.shape[1] - 1 - np.argmax(masses[:, ::-1] > 0, axis=1)
    return last


def _ends(tails: Tails, losses: Floats) -> Floats:
    """Compute the masses at (m,) losses.

    A cell (a, b] with masses P and Q puts (P - e^a Q) / (1 - e^(a - b)) at b and the rest of P at a. All
    rounding gives more mass to larger losses.
    """
    p, p_error = _cells(tails.p_below, tails.p_above, tails.tail_errors)
    q, q_error = _cells(tails.q_below, tails.q_above, tails.tail_errors)
    p = p + p_error
    q_scale = np.exp(np.minimum(losses[:-1], LARGEST_EXPONENT))  # a smaller scale gives larger losses
    upper = p - q_scale * np.maximum(q - q_error, 0)
    upper += PRODUCT_ERROR * (p + q_scale * q)
    upper = np.clip(upper / -np.expm1(losses[:-1] - losses[1:]), 0, p)
    masses = np.zeros(losses.size)
    masses[1:] += upper
    masses[:-1] += p - upper
    masses[0] += tails.p_below[0] * (1 + tails.tail_errors[0])
    return masses


def _cells(below: Floats, above: Floats, errors: Floats) -> tuple[Floats, Floats]:
    """Compute the masses between (n,) losses from the smaller tails, and bounds on their errors."""
    left = below[1:] < above[:-1]
    mass = np.where(left, below[1:] - below[:-1], above[:-1] - above[1:])
    below, above = below * errors, above * errors
    error = np.where(left, below[1:] + below[:-1], above[:-1] + above[1:])
    return np.maximum(mass, 0), error
