"""Discrete distributions of the privacy loss that bound a dominating pair from above: connect the dots.

The hockey-stick divergence of a pair is convex in e^epsilon, so the polygon through some of its points is above it. The
polygon is the divergence of a discrete distribution: the mass of every cell between two losses goes to its ends, so
that both P and Q keep theirs. Source: Doroshenko, Ghazi, Kamath, Kumar, Manurangsi 2022 (arXiv 2207.04380), section 3.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from math import sqrt
from typing import Final

import numpy as np
from numpy.typing import NDArray

from app.accounting.curves import Floats
from app.accounting.pld.pairs import TAIL_ERROR, Pair, Tails

LARGEST_LOSS: Final = 1e4
"""Nats; larger losses count as infinite."""

LARGEST_EXPONENT: Final = 700.0
"""The largest whose exponential is finite."""

ROUGH: Final = np.concatenate([-np.geomspace(LARGEST_LOSS, 1e-9, 2000), [0.0], np.geomspace(1e-9, LARGEST_LOSS, 2000)])
"""Losses at which a pair is looked at, to find where its mass is."""

WIDTH: Final = 1 / 24
"""Largest width of a cell over the distance from 0, where that is more than the spacing."""


@dataclass(frozen=True, slots=True)
class Spread:
    """Range of the privacy loss of a pair under P.

    Args:
        deviation: approximate standard deviation, in nats.
        size: approximate root of the mean square, in nats.
        lowest: the probability of a smaller loss is negligible.
        highest: the probability of a larger loss is negligible, or it counts as infinite.
        infinite: the probability of a loss that counts as infinite.
    """

    deviation: float
    size: float
    lowest: float
    highest: float
    infinite: float


@dataclass(frozen=True, slots=True, eq=False)
class Dots:
    """A composition of n discrete distributions of the privacy loss on m multiples of a spacing.

    Args:
        counts: (n,) repetitions of each.
        places: (m,) increasing multiples.
        losses: (m,) the same in nats.
        masses: (n, m) probabilities, rounded up: they may sum to more than 1.
        last: (n,) indices of the last positive masses.
        infinite: probability of an infinite loss, of all repetitions.
        spacing: nats.
        loss_error: nats by which the sum of all losses may be larger.
    """

    counts: Floats
    places: NDArray[np.int64]
    losses: Floats
    masses: Floats
    last: NDArray[np.intp]
    infinite: float
    spacing: float
    loss_error: float

    @property
    def largest_loss(self) -> float:
        """The sum of the largest finite losses of all repetitions, in nats."""
        return float(self.counts @ self.losses[self.last])


def spread(pair: Pair, negligible: float) -> Spread:
    """Find where the privacy loss of a pair lies, but for a negligible probability on either side."""
    deviation, size, below, above = _rough(pair)
    last = int(np.argmax(above <= negligible)) or ROUGH.size - 1
    first = max(int(np.argmax(below > negligible)) - 1, 0)
    return Spread(deviation, size, float(ROUGH[first]), float(ROUGH[last]), float(above[-1]))


@lru_cache(maxsize=256)
def _rough(pair: Pair) -> tuple[float, float, Floats, Floats]:
    """Compute deviation, size and tails under P of a privacy loss at the losses ROUGH."""
    tails = pair.tails(ROUGH)
    mass = np.where(tails.p_below[1:] < tails.p_above[:-1], np.diff(tails.p_below), -np.diff(tails.p_above))
    middle = (ROUGH[1:] + ROUGH[:-1]) / 2
    deviation = sqrt(float(mass @ (middle - float(mass @ middle)) ** 2))
    return deviation, sqrt(float(mass @ middle**2)), tails.p_below, tails.p_above


def lattice(spacing: float, lowest: float, highest: float, widest: float) -> NDArray[np.int64]:
    """Choose multiples of a spacing, dense around 0 and sparser with the distance from it, up to `widest` nats."""
    most = max(1, int(min(widest, LARGEST_LOSS) / spacing))
    sides = []
    for end in (-lowest, highest):
        places, reach = [0], max(1.0, end / spacing)
        while places[-1] < reach:
            places.append(places[-1] + min(most, max(1, int(places[-1] * WIDTH))))
        sides.append(places)
    return np.array([-place for place in sides[0][:0:-1]] + sides[1], dtype=np.int64)


def connect_the_dots(plan: Mapping[Pair, int], places: NDArray[np.int64], spacing: float) -> Dots:
    """Move the mass of each cell to its ends; that below the first place to it, that above the last to infinity."""
    losses: Floats = np.multiply(places, spacing, dtype=np.float64)
    masses = np.zeros((len(plan), places.size))
    infinite = loss_error = 0.0
    for row, (pair, count) in zip(masses, plan.items(), strict=True):
        tails = pair.tails(losses)
        row[:] = _ends(tails, losses)
        infinite += count * float(tails.p_above[-1]) * (1 + TAIL_ERROR)
        loss_error += count * tails.loss_error
    last = places.size - 1 - np.argmax(masses[:, ::-1] > 0, axis=1)
    counts = np.array(list(plan.values()), dtype=np.float64)
    return Dots(counts, places, losses, masses, last, infinite, spacing, loss_error)


def _ends(tails: Tails, losses: Floats) -> Floats:
    """Compute the masses at (m,) losses.

    A cell (a, b] with masses P and Q puts (P - e^a Q) / (1 - e^(a - b)) at b and the rest of P at a. All
    rounding gives more mass to larger losses.
    """
    p, p_error = _cells(tails.p_below, tails.p_above)
    q, q_error = _cells(tails.q_below, tails.q_above)
    p = p + p_error
    q_scale = np.exp(np.minimum(losses[:-1], LARGEST_EXPONENT))  # a smaller scale gives larger losses
    upper = p - q_scale * np.maximum(q - q_error, 0)
    upper += TAIL_ERROR * (p + q_scale * q)
    upper = np.clip(upper / -np.expm1(losses[:-1] - losses[1:]), 0, p)
    masses = np.zeros(losses.size)
    masses[1:] += upper
    masses[:-1] += p - upper
    masses[0] += tails.p_below[0] * (1 + TAIL_ERROR)
    return masses


def _cells(below: Floats, above: Floats) -> tuple[Floats, Floats]:
    """Compute the masses between (n,) losses from the smaller tails, and bounds on their errors."""
    left = below[1:] < above[:-1]
    mass = np.where(left, below[1:] - below[:-1], above[:-1] - above[1:])
    error = TAIL_ERROR * np.where(left, below[1:] + below[:-1], above[:-1] + above[1:])
    return np.maximum(mass, 0), error
