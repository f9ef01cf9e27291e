"""Rényi divergence of a mixture of Gaussians: a record moves a sum by a random distance.

P is the mixture of normal distributions with means c_i >= 0, shares p_i and standard deviation s; Q has mean 0. With x
from Q, the ratio is L = sum of p_i exp((2 c_i x - c_i^2) / (2 s^2)).

Vectors. Contributions v_i of norm at most c_i, given any other randomness that does not depend on the record, give
L = sum of p_i exp(v_i x - |v_i|^2 / 2) (s = 1), a mixture of log-normal variables whose logarithms have the covariances
v_i v_j <= c_i c_j. The means of convex functions of such a mixture grow with all covariances: Kahane's convexity
inequality (Une inégalité du type de Slepian et Gordon sur les processus gaussiens, 1986). So every f-divergence, both
ways, is at most that of the numbers c_i. Choquette-Choo, Ganesh, Steinke, Thakurta 2024 (arXiv 2310.15526) prove
this for their matrix mechanisms. Contributions may also depend on earlier releases: release along a Brownian motion,
and let u be the mean of the function at the end if from now on they were c_i. By Itô's formula u drifts by half the sum
of its second derivatives times v_i v_j - c_i c_j, so it only falls.

Replacement. One record draws v_i, the other one w_i, by the same coins. P - g Q is then a mixture of the terms of v_i
and of -g times those of w_i, and its positive part is convex, with negative second derivatives between a term of v and
one of w. Since v_i v_j and w_i w_j are at most c_i c_j, and v_i w_j at least -c_i c_j, the same argument holds: c_i
against -c_i, in one dimension, is the worst. These two mirrored mixtures are a pair of two neighbours themselves.

The larger direction. Let B be a Brownian motion and L_t = sum of p_i exp(c_i B_t - c_i^2 t / 2), a martingale; at
t = 1 / s^2 it is L. With F(l) = l^a - l^(1 - a), y(t) = E F(L_t) has y(0) = 0 and, by Itô's formula,
y'(t) = a (a - 1) / 2 E[(L_t^a - L_t^(1 - a)) m_t^2], where m_t is the mean of c_i with the weights of their terms in
L_t. L_t and m_t both grow with B_t, and the bracket has the sign of L_t - 1. So replacing m_t by its value where L_t
is 1 makes the mean no larger: y' >= k y with some k(t) >= 0. Hence y >= 0: the moment of P over Q is the larger one.
"""

from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass, replace
from itertools import pairwise
from math import ceil, cos, floor, fsum, inf, log, log1p, pi, sqrt
from typing import Final, Self

import numpy as np

from app.accounting.curves import HIGHEST, Floats
from app.accounting.formulas.mechanisms import gaussian_rdp
from app.accounting.formulas.numerics import TINY, log_one_minus_exp, rdp_of_excess
from app.accounting.formulas.quadrature_sums import Bend, Nodes, divergences, order_plan
from app.accounting.formulas.sampled_gaussian import TAIL, TRAPEZOID_EXPONENT, sampled_gaussian_rdp, trapezoid_step
from app.accounting.formulas.without_replacement import mixed_batches_rdp

MIN_SUMMED_NOISE: Final = 0.02
"""Below this noise multiplier the moment is bounded by the mean of the parts' moments."""

MAX_SUMMED_WORK: Final = 600_000
"""Microseconds; a mixture whose sum takes longer is bounded likewise."""

HALF: Final = 0.5

BEND_SHARE: Final = 1e-14
"""Share of all other parts in the ratio of the largest one beyond the bend."""

MAX_REPLACED: Final = 16
"""Different distances of a replaced record; of more, neighbouring ones are raised to the largest."""


HIGHEST_REPLACED: Final = 64.0
"""Order up to which the moment for a replaced record is summed."""

MAX_REPLACED_NODES: Final = 20_000

TURN: Final = 0.8
"""Radians by which a term of a mixture may turn where the trapezoid rule's error is bounded."""


@dataclass(frozen=True, slots=True)
class Mixture:
    """Distances by which a record moves a sum, in units of the largest, with their probabilities.

    Args:
        noise_multiplier: the noise's standard deviation over the largest distance.
        sizes: at least 0, increasing, the last one 1.
        shares: their probabilities, positive.
    """

    noise_multiplier: float
    sizes: tuple[float, ...]
    shares: tuple[float, ...]

    @classmethod
    def of(
        cls, standard_deviation: float, distances: Iterable[float], probabilities: Iterable[float], taken: float = 1.0
    ) -> Self:
        """Build a mixture from positive probabilities, which are divided by their sum.

        `taken` is the probability that a record is on the Poisson sample: else its distance is 0.
        """
        shares = defaultdict[float, list[float]](list)
        for distance, probability in zip(distances, probabilities, strict=True):
            if probability:
                shares[distance].append(probability)
        total = fsum(share for parts in shares.values() for share in parts)
        mixed = {distance: max(fsum(parts) / total * taken, TINY) for distance, parts in sorted(shares.items())}
        if taken < 1:
            mixed = {0.0: 1 - taken + mixed.pop(0.0, 0.0)} | mixed
        largest = max(mixed)
        return cls(standard_deviation / largest, tuple(each / largest for each in mixed), tuple(mixed.values()))

    @property
    def only_share(self) -> float | None:
        """The share of the largest distance, if all other ones are 0."""
        return self.shares[-1] if not any(self.sizes[:-1]) else None

    @property
    def reached(self) -> tuple[float, ...]:
        """Probabilities of moving at least as far as each size but the first."""
        return tuple(fsum(self.shares[place:]) for place in range(1, len(self.shares)))

    def with_reached(self, reached: Iterable[float]) -> Self:
        """Copy the mixture with other probabilities of moving at least as far as each size but the first."""
        bounds = (1.0, *reached, 0.0)
        return replace(self, shares=tuple(one - other for one, other in pairwise(bounds)))

    def log_ratio(self, x: Floats) -> Floats:
        """Compute w = ln L at (n,) places x, in units of the largest distance, without cancellation or overflow."""
        exponents = self._exponents(x)
        excess = np.maximum(np.array(self.shares) @ np.expm1(np.minimum(exponents, 1.0)), -HALF)
        is_near = (exponents.max(axis=0) < 1) & (excess > -HALF)
        far: Floats = np.logaddexp.reduce(exponents + self._log_shares(), axis=0)
        return np.where(is_near, np.log1p(excess), far)

    def slope(self, x: Floats) -> Floats:
        """Compute the derivative of `log_ratio`."""
        terms = self._exponents(x) + self._log_shares()
        weights = np.exp(terms - terms.max(axis=0))
        found: Floats = np.array(self.sizes) @ weights / weights.sum(axis=0) / self.noise_multiplier**2
        return found

    def _exponents(self, x: Floats) -> Floats:
        sizes = np.array(self.sizes)[:, np.newaxis]
        found: Floats = sizes * (2 * x - sizes) / (2 * self.noise_multiplier**2)
        return found

    def _log_shares(self) -> Floats:
        found: Floats = np.log(self.shares)[:, np.newaxis]
        return found


def gaussian_mixture_rdp(mixture: Mixture, orders: Floats) -> Floats:
    """Compute the Rényi divergence of a mixture of Gaussians, the larger of both directions.

    The moment is summed as that of the sampled Gaussian: E[L^a - 1 - a (L - 1)] by the trapezoid rule, no term of which
    is negative, and from the bend on as the largest part's moment. In a strip of half the width pi s^2 around the real
    line, all terms of L have positive parts in one direction, so L has no zero: the rule's step is that of the sampled
    Gaussian. The relative error is at most 1e-10. Below a noise multiplier of MIN_SUMMED_NOISE, and for mixtures
    whose sum would take too long, the result is an upper bound, the mean of the parts' moments (joint convexity).
    """
    s, only = mixture.noise_multiplier, mixture.only_share
    if only is not None:
        return sampled_gaussian_rdp(only, s, orders) if len(mixture.sizes) > 1 else gaussian_rdp(s, orders)
    b = orders - 1
    sizes, shares = (np.array(each)[:, np.newaxis] for each in (mixture.sizes, mixture.shares))
    moving = sizes.ravel() > 0
    exponents = np.square(sizes[moving]) * orders * b / (2 * s * s)
    parts = np.log(shares[moving]) + exponents + log_one_minus_exp(exponents)
    bound = rdp_of_excess(np.logaddexp.reduce(parts, axis=0), orders)
    return np.minimum(_summed(mixture, orders), bound) if is_summed(mixture) else bound


def replaced_mixture_rdp(mixture: Mixture, orders: Floats) -> Floats:
    """Bound the Rényi divergence of a mixture of Gaussians if a record is replaced, which draws the same distance.

    Up to order HIGHEST_REPLACED it is that of the mirrored mixtures, with a relative error of at most 1e-10. Above, and
    where the sum would take too long, it is larger: given a distance c > 0, the two outputs and that without a
    contribution are at most 2 c apart, as on a batch of fixed size that holds the record with the probability of a
    positive distance (`mixed_batches_rdp`).
    """
    found = _replaced_bound(mixture, orders)
    if _replaced_nodes(mixture):
        low = orders <= HIGHEST_REPLACED
        found[low] = np.minimum(found[low], _replaced(mixture, orders[low]))
    return found


def replaced_work(mixture: Mixture, *, few: bool) -> int:
    """Estimate an upper bound on the microseconds that the sum for a replaced record takes."""
    return int(_replaced_nodes(mixture) * ((2 if few else 10) + 0.1 * len(mixture.sizes)))


def _replaced_nodes(mixture: Mixture) -> int:
    """Count the nodes of the sum for a replaced record; 0 if it is bounded instead."""
    s = mixture.noise_multiplier
    nodes = int((HIGHEST_REPLACED + 2 * _reach(s)) / _replaced_step(s))
    return nodes if len(mixture.sizes) > 1 and nodes <= MAX_REPLACED_NODES else 0


def _replaced(mixture: Mixture, orders: Floats) -> Floats:
    """Sum E_Q[L^a - 1 - a (L - 1)] for the mirrored mixtures, with ln L = w(x) - w(-x)."""
    plan = order_plan(np.asarray(orders, dtype=np.float64).tobytes())
    s = mixture.noise_multiplier
    step, reach = _replaced_step(s), _reach(s)

    def nodes(end: float) -> Nodes:
        x = step * np.arange(floor(-reach / step), ceil(end / step) + 2.0)
        w = mixture.log_ratio(x)
        table = np.zeros((5, x.size))
        table[0] = w - x * x / (2 * s * s) + log(step / (s * sqrt(2 * pi)))
        table[1] = w - mixture.log_ratio(-x)
        np.exp(table[0], out=table[4])
        return Nodes(x, table)

    return divergences(plan, Bend(inf, 0.0), reach, np.empty(0), nodes)


def _reach(s: float) -> float:
    """Compute how far from 0, and from the order, terms are not negligible: the peak of order a is below 2 a."""
    return HIGHEST_REPLACED + TAIL * s


def _replaced_step(s: float) -> float:
    """Choose the trapezoid rule's step for mirrored mixtures.

    Along Im x = t s^2, a mixture keeps at least cos(t / 2) of its size, since its terms turn by at most t. So its
    power 1 - a, and the density, grow by at most the following exponent, and exp(-2 pi t s^2 / step) of that is left.
    """
    t = min(TURN, sqrt(2 * TRAPEZOID_EXPONENT) / s)
    return 2 * pi * t * s * s / (TRAPEZOID_EXPONENT + t * t * s * s / 2 - HIGHEST_REPLACED * log(cos(t / 2)))


def _replaced_bound(mixture: Mixture, orders: Floats) -> Floats:
    """Bound the divergence for a replaced record by that of batches of fixed size."""
    taken = [(size, share) for size, share in zip(mixture.sizes, mixture.shares, strict=True) if size > 0]
    q = fsum(share for _, share in taken) if len(taken) < len(mixture.sizes) else 1.0
    places = np.linspace(0, len(taken), min(len(taken), MAX_REPLACED) + 1).astype(int)
    groups = [taken[first:last] for first, last in pairwise(places)]
    noises = [mixture.noise_multiplier / (2 * group[-1][0]) for group in groups]
    return mixed_batches_rdp(q, noises, [fsum(share for _, share in group) / q for group in groups], orders)


def is_summed(mixture: Mixture) -> bool:
    """Check whether the moment of a mixture is summed over nodes, not bounded."""
    return mixture.noise_multiplier >= MIN_SUMMED_NOISE and mixture_work(mixture, few=False) <= MAX_SUMMED_WORK


def mixture_work(mixture: Mixture, *, few: bool) -> int:
    """Estimate an upper bound on the microseconds that the sum of a mixture takes; `few` orders take less."""
    s = mixture.noise_multiplier
    if mixture.only_share is not None or s < MIN_SUMMED_NOISE:
        return 0
    nodes = (min(_bend(mixture) + TAIL * s, HIGHEST) + 2 * TAIL * s) / trapezoid_step(s)
    return int(nodes * ((2 if few else 25) + 2 * len(mixture.sizes)))


def _summed(mixture: Mixture, orders: Floats) -> Floats:
    """Sum the moments over nodes, and from the bend on take the largest part's."""
    s = mixture.noise_multiplier
    plan = order_plan(np.asarray(orders, dtype=np.float64).tobytes())
    place, spread = _bend(mixture), TAIL * s
    near = int(np.searchsorted(plan.a, place + spread))
    a, b = plan.a[near:], plan.b[near:]
    log_right = a * (log(mixture.shares[-1]) + log1p(BEND_SHARE) + b / (2 * s * s))
    bend = Bend(place, float(mixture.log_ratio(np.array([place]))[0]))
    return divergences(plan, bend, spread, log_right, lambda end: _nodes(mixture, end))


def _bend(mixture: Mixture) -> float:
    """Find an x from which all other parts are together at most BEND_SHARE of the largest one."""
    s, share = mixture.noise_multiplier, mixture.shares[-1]
    few = log(BEND_SHARE / len(mixture.sizes))
    return max(
        (1 + size) / 2 + max(s * s * (log(other / share) - few) / (1 - size), 0.0)
        for size, other in zip(mixture.sizes[:-1], mixture.shares[:-1], strict=True)
    )


def _nodes(mixture: Mixture, end: float) -> Nodes:
    """Compute the trapezoid rule's nodes up to `end`, weighted by density times step."""
    s = mixture.noise_multiplier
    step = trapezoid_step(s)
    x = step * np.arange(floor(-TAIL * s / step), ceil(end / step) + 2.0)
    w = mixture.log_ratio(x)
    table = np.zeros((5, x.size))
    table[0] = w - x * x / (2 * s * s) + log(step / (s * sqrt(2 * pi)))
    table[1] = w
    np.exp(table[0], out=table[4])
    return Nodes(x, table)
