"""Rényi divergence of the Gaussian mechanism on a batch without replacement under replace_one.

Notation. q is batch size over data set size; M and M' are the outputs on two neighbours that differ in one record. With
probability q that record is in the batch: M = (1 - q) P0 + q P1, M' = (1 - q) P0 + q P1'. Exchanging the record for
another one of the data set couples P0 with the other two, so that any two of the three are mixtures of Gaussians at
most one replace-one sensitivity apart. P and Q are two Gaussians at that distance, L = 1 - q + q P / Q,
H_t(M || M') is the maximum of M(S) - t M'(S) over all events S, and b = a - 1.

1. For t = 1 + q (s - 1) >= 1, M - t M' = q (P1 - s ((1 - t / s) P0 + (t / s) P1')), so
   H_t(M || M') <= q H_s(P || Q) = H_t(L Q || Q) =: G(t), in both directions.
2. The moment is A(a) = 1 + a b (integral over t > 0 of t^(a - 2) h(t)), where h(t) = H_t(M || M') for t >= 1 and
   t H_(1/t)(M' || M) below, so 0 <= h <= g: g(t) = G(t), t G(1/t) below. With all of g, A is 1 + E_Q[phi + psi; L > 1].
3. At a = 2 a second bound exists: A(2) - 1 = integral of (M - M')^2 / M' is jointly convex, at most
   q^2 ((1 - q) 2 (exp(D) - exp(D / 2)) + q (exp(D) - 1)) =: X with D = 1 / z^2. The first part is three Gaussians at
   equal distances: exp(A) + exp(B) - 2 exp((A + B - C) / 2) with squared distances A, B, C in [0, D] increases with C,
   and at C = D with A and B.
4. For a >= 2 the integral of t^(a - 2) h under 0 <= h <= g and 2 (integral of h) <= X is largest for h = g above some
   1 / T, 0 below (Neyman and Pearson). T >= 1, since X covers all of g above 1. For a <= 2,
   t^(a - 2) <= (a + 1) / 3 + (2 - a) / (3 t^3), and 3. holds for t^-3 h, which exchanges M and M': A - 1 <= a b X / 2.

The moment of the Poisson-sampled Gaussian, E_Q[phi] + 1, is a lower bound: P0 = P1' = Q is possible.
"""

from collections.abc import Sequence
from math import ceil, exp, expm1, inf, log, pi, sqrt
from typing import Final

import numpy as np

from app.accounting.curves import Floats
from app.accounting.formulas.mechanisms import gaussian_rdp
from app.accounting.formulas.numerics import TINY, f, gauss_legendre, log1p_u, mean_of_moments, rdp_of_excess, root
from app.accounting.formulas.sampled_gaussian import sampled_gaussian_rdp

MIN_INTEGRATED_NOISE: Final = 0.2
"""Below this noise multiplier the removed record's contribution to Poisson's moment is bounded by b q: it is small."""

TAIL: Final = 9.5
"""Half-width of the integrals in standard deviations: exp(-9.5^2 / 2) is 3e-20."""

PANEL: Final = 6.0
"""Length of a panel in ln(P / Q): about twice the distance to the integrands' branch point."""

NODES: Final = 48
"""Nodes of a panel."""

NEGLECTED: Final = 1e-14
"""If the bound b q is below this share of Poisson's moment, it replaces the integrals."""

ROUNDING: Final = 1e-12
"""Relative amount by which the part of the integral of h that is cut off is rounded down."""

SECOND: Final = 2.0
"""The smallest order at which the cut of step 4 holds."""

QUIETEST: Final = 1e100
"""Noise multiplier whose square is in range; of more noise the bound is smaller."""


def without_replacement_gaussian_rdp(q: float, noise_multiplier: float, orders: Floats) -> Floats:
    """Bound the Rényi divergence of a Gaussian sum over a batch of fixed size.

    z is over the replace-one L2 sensitivity of the sum, twice the clipping norm. The bound is never above the unsampled
    Gaussian and exact for q = 1. At a = 2 three Gaussians at equal distances attain it in the limit of small q; beyond
    the bend of the curve, where high orders of L dominate, the Poisson-sampled Gaussian does. Measured: at most 1.96
    times the latter.

    Source: the module's steps. 1. is Balle, Barthe, Gaboardi 2018 (arXiv 1807.01647), Theorem 9; 3. has the ternary
    divergence of Wang, Balle, Kasiviswanathan 2019 (arXiv 1808.00087) and the leading term of Birrell, Ebrahimi,
    Behnia, Pacheco 2024 (arXiv 2408.10456), Theorem 3.4. Wang et al.'s whole bound (their Theorem 27) was never below
    this one in the tests.
    """
    if q == 1:
        return gaussian_rdp(noise_multiplier, orders)
    b = orders - 1
    log_moment = np.maximum(b * sampled_gaussian_rdp(q, noise_multiplier, orders), TINY)
    log_poisson = log_moment + np.log(-np.expm1(-log_moment))
    log_added = np.log(b) + log(q)
    if noise_multiplier >= MIN_INTEGRATED_NOISE:
        matters = log_added > log_poisson + log(NEGLECTED)
        added = _added(q, noise_multiplier, orders[matters])
        log_added[matters] = np.log(np.maximum(added, TINY))
    log_excess = np.logaddexp(log_poisson, log_added)
    is_low = orders < SECOND
    low, log_second = orders[is_low], _log_second_moment(q, noise_multiplier)
    log_excess[is_low] = np.minimum(log_excess[is_low], np.log(low * (low - 1) / 2) + log_second)
    bound = np.minimum(rdp_of_excess(log_excess, orders), gaussian_rdp(noise_multiplier, orders))
    bound[is_low] = np.minimum(bound[is_low], np.logaddexp(0, log_second))  # the divergence of order 2
    return np.maximum(bound, TINY)


def mixed_batches_rdp(q: float, noises: Sequence[float], shares: Sequence[float], orders: Floats) -> Floats:
    """Bound the Rényi divergence if a record is taken with probability q, and then moves the sum by a random distance.

    The outputs on two neighbours are mixtures, with equal shares, of (1 - q) P0 + q Pk and (1 - q) P0 + q Pk', where
    any two of P0, Pk and Pk' are mixtures of Gaussians at most one replace-one sensitivity of the k-th distance apart:
    each pair is that of a batch of fixed size. The moment is jointly convex in the pair, so it is at most the mean.

    `noises` are noise multipliers over the replace-one sensitivity of each distance, `shares` the probabilities of the
    distances, given that the record is taken.
    """
    parts = (without_replacement_gaussian_rdp(q, min(z, QUIETEST), orders) for z in noises)
    return mean_of_moments(zip(shares, parts, strict=True), orders)


def _log_second_moment(q: float, z: float) -> float:
    """Compute ln X."""
    d = 1 / (z * z)
    return 2 * log(q) + d + log(-2 * (1 - q) * expm1(-d / 2) - q * expm1(-d))


def _added(q: float, z: float, orders: Floats) -> Floats:
    """Compute the excess of the bound over the Poisson-sampled Gaussian's moment.

    That is E_Q[psi'; L > 1] - E_Q[phi; L < 1] >= 0, where psi' is psi up to L = T and linear beyond (a >= 2).
    """
    added = np.empty_like(orders)
    is_low = orders < SECOND
    below = _below_one(q, z, orders)
    added[is_low] = _above_one(q, z, orders[is_low], inf) - below[is_low]
    added[~is_low] = _above_one(q, z, orders[~is_low], _cut(q, z)) - below[~is_low]
    return added


# With x = 1/2 + r under Q, a normal distribution with mean 0 and standard deviation z, ln(P / Q) is y = r / z^2.
# Reflecting x at 1/2 exchanges P with Q and y with -y.


def _density(r: Floats, z: float, mean: float) -> Floats:
    density: Floats = np.exp(-((r + 0.5 - mean) ** 2) / (2 * z * z)) / (z * sqrt(2 * pi))
    return density


def _nodes(low: float, high: float, z: float) -> tuple[Floats, Floats]:
    return gauss_legendre(low, high, max(1, ceil((high - low) / (PANEL * z * z))), NODES)


def _end(z: float) -> float:
    """Compute an r beyond which the density is negligible under P, and more so under Q."""
    return 0.5 + TAIL * z


def _below_one(q: float, z: float, orders: Floats) -> Floats:
    """Compute E_Q[phi; L < 1]; phi = L (f(b w) + b f(-w)), w = ln L < 0."""
    r, weights = _nodes(0.0, _end(z), z)
    w = log1p_u(q, -r / z**2)
    weights = weights * _density(r, z, mean=1.0) * np.exp(w)
    b = orders - 1
    return f(np.multiply.outer(b, w)) @ weights + b * (f(-w) @ weights)


def _above_one(q: float, z: float, orders: Floats, cut: float) -> Floats:
    """Compute E_Q[psi'; L > 1]; psi = f(-b w) + b f(w), and its tangent beyond the cut."""
    r, weights = _nodes(0.0, min(cut, _end(z)), z)
    w = log1p_u(q, r / z**2)
    weights = weights * _density(r, z, mean=0.0)
    b = orders - 1
    total = f(np.multiply.outer(-b, w)) @ weights + b * (f(w) @ weights)
    if cut < _end(z):
        w_cut = log1p_u(q, np.array([cut / z**2]))
        weights, rise = _beyond(q, z, cut)
        psi_at_cut = f(-b * w_cut) + b * f(w_cut)
        total += psi_at_cut * weights.sum() - b * np.expm1(-orders * w_cut) * (rise @ weights)
    return total


def _beyond(q: float, z: float, cut: float) -> tuple[Floats, Floats]:
    """Compute the weights under Q, and L - T, of nodes beyond the cut."""
    r, weights = _nodes(cut, _end(z), z)
    return weights * _density(r, z, mean=0.0), q * exp(cut / z**2) * np.expm1((r - cut) / z**2)


def _cut(q: float, z: float) -> float:
    """Compute the r at which L = T, rounded up; infinite without a cut.

    Cutting off h below 1 / T removes E_Q[(L - T)^2 / (L T^2); L > T] from A(2) - 1. The budget for it is the excess of
    g over X.
    """
    two = np.array([SECOND])
    d = 1 / (z * z)
    excess = float(_above_one(q, z, two, inf)[0] - _below_one(q, z, two)[0]) - (1 - q) * (q * expm1(d / 2)) ** 2
    budget = excess * (1 - ROUNDING)

    def taken_beyond_budget(cut: float) -> float:
        weights, rise = _beyond(q, z, cut)
        t = 1 + q * expm1(cut / z**2)
        return float((rise * rise / ((t + rise) * t * t)) @ weights) - budget

    if budget <= 0:
        return inf
    if taken_beyond_budget(0.0) <= 0:
        return 0.0
    cut = root(taken_beyond_budget, 0.0, _end(z))
    return cut * (1 + ROUNDING)
