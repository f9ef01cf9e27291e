"""Dominating pairs of mechanisms, described by the tails of their privacy loss.

A pair (P, Q) dominates a mechanism if, at every epsilon, the hockey-stick divergence of its outputs on two neighbours
is at most that of P from Q. The product of pairs dominates adaptive compositions (Zhu, Dong, Wang 2022, arXiv
2106.08567, Definition 7 and Theorem 10). The privacy loss is ln(P(x) / Q(x)).
"""

from collections.abc import Hashable
from dataclasses import dataclass
from math import exp, expm1, log, log1p
from typing import Final, Protocol, Self

import numpy as np
import scipy

from app.accounting.curves import Floats

ROUNDING: Final = 2.0**-53
"""Relative error of an operation."""

TAIL_ERROR: Final = 2.0**-42
"""Maximum relative error of a tail that counts in an answer."""

FARTHEST: Final = 40.0
"""Standard deviations from which on a tail of the normal distribution is no positive number."""

LOSS_ERROR: Final = 2.0**-48
"""Error allowed for a loss at which tails are computed, relative to the numbers on the way: 32 roundings, which include
those of the pair's parameters and of the loss itself."""


MIXTURE_ERROR: Final = 8 * ROUNDING
"""Relative error that a mixture of two tails adds to theirs."""

HALF: Final = 0.5
TINY: Final = 1e-300
"""Probabilities below it are rounded up to it."""

NONE: Final = np.array([-1e300])
"""A loss, in nats, below all that occur."""


@dataclass(frozen=True, slots=True)
class Tails:
    """Probabilities under P and Q that the privacy loss is at most, or more than, each of (n,) losses.

    Args:
        p_below, p_above, q_below, q_above: (n,) probabilities.
        tail_errors: (n,) bounds on the relative errors of the smaller ones. They matter: each cell of a lattice is
            rounded up, and a billion repetitions make 1e-13 of a thousand cells some percent of epsilon.
        loss_error: nats by which the losses may differ from those given.
    """

    p_below: Floats
    p_above: Floats
    q_below: Floats
    q_above: Floats
    tail_errors: Floats
    loss_error: float


def normal_errors(x: Floats) -> Floats:
    """Bound the relative errors of scipy's normal distribution at (n,) places in standard deviations.

    It is 1/2 + erf / 2 in the middle, and erfc / 2 beyond, whose factor exp(-x^2 / 2) errs by x^2 roundings each for
    the place and its square (Cephes, `ndtr`: at most 3.4e-14 down to -13, where this bound is 7.8e-14).
    """
    found: Floats = ROUNDING * (24 + 4 * np.minimum(np.abs(x), FARTHEST) ** 2)
    return found


def exponential_errors(exponent: float, count: int) -> Floats:
    """Bound the relative errors of `count` tails that are made of a few exponentials of at most so many nats."""
    return np.full(count, ROUNDING * (24 + 4 * exponent))


class Pair(Hashable, Protocol):
    """A dominating pair of distributions in one direction."""

    def tails(self, losses: Floats) -> Tails:
        """Compute the tails of the privacy loss at (n,) increasing losses."""
        ...


@dataclass(frozen=True, slots=True)
class GaussianPair:
    """Normal distributions of standard deviation `noise_multiplier`, means 1 and 0; equal in both directions."""

    noise_multiplier: float

    def tails(self, losses: Floats) -> Tails:
        """Compute the tails: the loss is normal with mean mu^2 / 2 under P, -mu^2 / 2 under Q, and deviation mu."""
        scaled, half = losses * self.noise_multiplier, 0.5 / self.noise_multiplier
        ndtr = scipy.special.ndtr
        below_p, below_q = scaled - half, scaled + half
        error = LOSS_ERROR * (float(np.abs(losses).max()) + half / self.noise_multiplier)
        errors = normal_errors(np.abs(scaled) + half)
        return Tails(ndtr(below_p), ndtr(-below_p), ndtr(below_q), ndtr(-below_q), errors, error)


@dataclass(frozen=True, slots=True)
class LaplacePair:
    """Laplace distributions with scale `noise_multiplier`, centres 1 and 0; equal in both directions.

    It dominates a vector whose coordinates move by distances that sum to 1: for log-concave noise, the trade-off
    function of a sum of distances is the group composition of those of the distances, which is below their product's
    (Dong, Roth, Su 2022, arXiv 1905.02383, Theorem 2.14).
    """

    noise_multiplier: float

    def tails(self, losses: Floats) -> Tails:
        """Compute the tails: with 1 / b the largest loss, the loss is at most l where x is at most (l b + 1) / 2."""
        b = self.noise_multiplier
        x = (losses * b + 1) / 2
        none, every = x < 0, x >= 1
        half_p, half_q = np.exp((np.clip(x, 0, 1) - 1) / b) / 2, np.exp(-np.clip(x, 0, 1) / b) / 2
        p_below, p_above = (
            np.where(none, 0, np.where(every, 1, half_p)),
            np.where(none, 1, np.where(every, 0, 1 - half_p)),
        )
        q_below, q_above = (
            np.where(none, 0, np.where(every, 1, 1 - half_q)),
            np.where(none, 1, np.where(every, 0, half_q)),
        )
        error = LOSS_ERROR * (float(np.abs(losses).max()) + 1 / b)
        return Tails(p_below, p_above, q_below, q_above, exponential_errors(1 / b, losses.size), error)


@dataclass(frozen=True, slots=True)
class BoundedRangePair:
    """The pair that dominates a mechanism whose privacy loss has a range of at most epsilon; equal in both directions.

    Such a mechanism is a post-processing of one with two losses t and t - epsilon, for some t in [0, epsilon] (Dong,
    Durfee, Rogers 2020, arXiv 1909.13830, section 3). With E = e^epsilon, that one's hockey-stick divergence at e^l is
    (E - e^t) (1 - e^(l - t)) / (E - 1), the most where e^t = sqrt(E e^l): (sqrt(E) - sqrt(e^l))^2 / (E - 1) for l in
    [-epsilon, epsilon]. Its slopes are the tails.

    Args:
        epsilon: positive, in nats.
    """

    epsilon: float

    def tails(self, losses: Floats) -> Tails:
        """Compute the tails: Q is more than l with probability (e^((epsilon - l) / 2) - 1) / (e^epsilon - 1)."""
        epsilon, at = self.epsilon, np.clip(losses, -self.epsilon, self.epsilon)
        upper, lower = (epsilon - at) / 2, (epsilon + at) / 2
        # All four divided by e^epsilon, so that none overflows.
        whole = -expm1(-epsilon)
        q_above = np.exp(-lower) * -np.expm1(-upper) / whole
        p_above = -np.expm1(-upper) / whole
        q_below = -np.expm1(-lower) / whole
        p_below = np.exp(-upper) * -np.expm1(-lower) / whole
        error = LOSS_ERROR * (float(np.abs(losses).max()) + epsilon)
        return Tails(p_below, p_above, q_below, q_above, exponential_errors(epsilon, losses.size), error)


@dataclass(frozen=True, slots=True)
class FinitePair:
    """Distributions with few outputs.

    Args:
        p, q: (n,) probabilities of each output, all positive, in the order of increasing losses ln(p / q).
    """

    p: tuple[float, ...]
    q: tuple[float, ...]

    @classmethod
    def exchanged(cls, epsilon: float, common: float = 0.0) -> Self:
        """Build a pair with two exchanged probabilities of ratio e^epsilon, and other outputs, which say nothing.

        Without others it dominates every mechanism of pure epsilon (Kairouz, Oh, Viswanath 2015, arXiv 1311.0776).
        """
        likely = (1 - common) / (1 + exp(-epsilon))
        unlikely = exp(-epsilon) * likely
        others = (common,) if common else ()
        return cls((unlikely, *others, likely), (likely, *others, unlikely))

    def tails(self, losses: Floats) -> Tails:
        """Compute the tails: sums of probabilities from either end."""
        steps = np.log(np.array(self.p) / np.array(self.q))
        at = np.searchsorted(steps, losses, side="right")
        (p_below, p_above), (q_below, q_above) = _sums(self.p), _sums(self.q)
        error = LOSS_ERROR * (1 + float(np.abs(losses).max()) + float(np.abs(steps).max()))
        errors = exponential_errors(len(self.p), losses.size)
        return Tails(p_below[at], p_above[at], q_below[at], q_above[at], errors, error)


def _sums(masses: tuple[float, ...]) -> tuple[Floats, Floats]:
    """Sum the masses from either end; (n + 1,) each."""
    return np.cumsum([0.0, *masses]), np.cumsum([0.0, *masses[::-1]])[::-1]


@dataclass(frozen=True, slots=True)
class SampledPair:
    """A pair on a Poisson sample: the mixture of P and Q against Q, or Q against the mixture.

    Source: Zhu, Dong, Wang 2022 (arXiv 2106.08567), Theorem 11, for adding or removing one record.

    Args:
        sampling_probability: q in (0, 1), the share of P in the mixture.
        pair: of the mechanism when the record is in the sample; equal in both directions.
        removes: whether the record is removed: the mixture comes first.
    """

    sampling_probability: float
    pair: Pair
    removes: bool

    def tails(self, losses: Floats) -> Tails:
        """Compute the tails: where the mixture's loss is l = ln(1 - q + q e^v), the pair's is v."""
        q = self.sampling_probability
        inner = self._inner(losses if self.removes else -losses[::-1])
        below, above = (1 - q) * inner.q_below + q * inner.p_below, (1 - q) * inner.q_above + q * inner.p_above
        errors, error = inner.tail_errors + MIXTURE_ERROR, inner.loss_error
        if self.removes:
            return Tails(below, above, inner.q_below, inner.q_above, errors, error)
        return Tails(inner.q_above[::-1], inner.q_below[::-1], above[::-1], below[::-1], errors[::-1], error)

    def _inner(self, losses: Floats) -> Tails:
        """Compute the pair's tails where the mixture has these losses l, with the error of l.

        An error of v changes l by its share q e^v / (1 - q + q e^v) = 1 - (1 - q) e^-l, which grows with l, and by at
        most e^d where v grows by d: a tiny sample hardly shows the error of v.
        """
        q = self.sampling_probability
        inside = losses > log1p(-q)
        with np.errstate(invalid="ignore", over="ignore", divide="ignore"):
            # Neither cancels: 1 - q is exact from one half on.
            taken = np.exp(losses) - (1 - q) if q >= HALF else np.expm1(losses) + q
            near = np.log(np.maximum(taken, TINY) / q)
            far = losses + np.log1p(-(1 - q) * np.exp(-losses)) - log(q)
        own = np.where(losses > 1, far, near)[inside]
        found, outside = self.pair.tails(own), self.pair.tails(NONE)
        place = np.maximum(np.arange(1 + own.size - losses.size, 1 + own.size), 0)  # the smallest losses are outside
        p_below, p_above, q_below, q_above, errors = (
            np.concatenate(each)[place]
            for each in (
                (outside.p_below, found.p_below),
                (outside.p_above, found.p_above),
                (outside.q_below, found.q_below),
                (outside.q_above, found.q_above),
                (outside.tail_errors, found.tail_errors),
            )
        )
        share = -expm1(min(log1p(-q) - float(losses[-1]), 0.0)) * exp(found.loss_error)
        error = LOSS_ERROR * (1 + float(np.abs(losses).max())) + share * found.loss_error
        return Tails(p_below, p_above, q_below, q_above, errors, error)
