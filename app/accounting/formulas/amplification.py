"""Amplification by Poisson sampling: each record is sampled independently with probability q.

Adding or removing a record (and replace_special for mechanisms to which a special record equals none). For any other
records, the outputs on two neighbours are mixtures (1 - q) Q + q P and Q of the outputs with and without the record,
and a Rényi divergence of mixtures is at most the maximum over their parts. With L = P / Q the moment of order a is
1 + E_Q[phi(ln(1 - q + q L))] if the record was added, and the same with psi if it was removed.

If some mapping of the outputs exchanges P and Q, the former is larger. With m = 1 - q + q L, m' = 1 - q + q / L,
s = ln m, s' = -ln m' and c = a - 1/2, exchanging P and Q in half of the mean gives E_Q[m^a - m^(1 - a)] the sign of
sqrt(m) sinh(c s) - L sqrt(m') sinh(c s') for L > 1. It is 0 at c = 1/2, and sinh(c s) / sinh(c s') increases with c
since m m' >= 1, that is s >= s' > 0. So it is nonnegative for a >= 1. For densities that is Theorem 5 of Mironov,
Talwar, Zhang 2019 (arXiv 1908.10530).

Replacing a record whose absence may show. The outputs are (1 - q) O + q P and (1 - q) O + q Q with a third O. The
moment of order a, the sum of Q (P / Q)^a, is the f-divergence of t^a, which is convex: it is jointly convex in the
pair (Csiszár 1967; Liese, Vajda 2006), and 1 for a pair of equals. So it is at most 1 - q + q A, where A is the moment
of P and Q, with equality if O is disjoint from both. This requires that the record's coin does not depend on the
record, and that the other records are sampled alike on both neighbours.
"""

from math import exp, expm1, log, log1p
from typing import Final

import numpy as np

from app.accounting.curves import Floats
from app.accounting.formulas.mechanisms import gaussian_rdp, laplace_rdp, pure_dp_rdp
from app.accounting.formulas.numerics import (
    EXP_RANGE,
    TINY,
    chord,
    gauss_legendre,
    log1p_u,
    log_phi,
    log_sum_phi,
    rdp_of_excess,
)
from app.accounting.formulas.sampled_gaussian import sampled_gaussian_rdp

MIN_INTEGRATED_NOISE: Final = 0.05
"""Below this noise multiplier the sampled Laplace mechanism is charged as any sampled pure-DP one."""

PANEL: Final = 8.0
"""Length of a panel of the integral; the integrand has a branch point at the distance pi."""

NODES_PER_ROOT: Final = 2.7
"""Nodes per panel, beyond 16, per square root of the change of the integrand's logarithm in half a panel."""

ORDER_GROUPS: Final = (4.0, 16.0, 64.0, 128.0, 256.0, 512.0, np.inf)
"""Upper bounds of groups of orders that share their nodes."""


def sampled_pure_dp_rdp(q: float, epsilon: float, orders: Floats) -> Floats:
    """Compute the largest Rényi divergence of any epsilon-DP mechanism on a Poisson sample.

    The outputs with and without the record, and so their mixtures, can be simulated from binary randomized response
    (Kairouz, Oh, Viswanath 2015, arXiv 1311.0776): sampled randomized response is the worst case at every order. The
    result is tight, with a relative error of at most 1e-13.
    """
    if q == 1 or epsilon == 0:
        return pure_dp_rdp(epsilon, orders)
    losses = log1p_u(q, np.array([epsilon, -epsilon]))
    log_weights = -np.logaddexp(0, np.array([epsilon, -epsilon]))
    b = (orders - 1)[:, np.newaxis]
    log_excess = np.logaddexp.reduce(log_weights + log_phi(b, losses[np.newaxis]), axis=1)
    return rdp_of_excess(log_excess, orders)


def sampled_laplace_rdp(q: float, noise_multiplier: float, orders: Floats) -> Floats:
    """Compute the Rényi divergence of Laplace noise in every coordinate, on a Poisson sample.

    One coordinate moved by the whole sensitivity is the worst case: moved by v (in scales) its hockey-stick divergence
    at exp(e) is 1 - exp((e - v) / 2) for |e| <= v, 0 above and 1 - exp(e) below; integrating that over the losses of a
    second coordinate gives at most the same formula with v + w. So every f-divergence is at most that of one
    coordinate, also after mixing (Zhu, Dong, Wang 2022, arXiv 2106.08567). There, with E = 1 / z, ln L is -E with
    probability 1/2, E with probability exp(-E) / 2, and has the density exp(-(E + l) / 2) / 4 between: one smooth
    integral over a finite interval. The relative error is at most 1e-13; for z below 0.05 the result is the upper bound
    for any 1/z-DP mechanism. z is over the L1 sensitivity.
    """
    if q == 1:
        return laplace_rdp(noise_multiplier, orders)
    end = 1 / noise_multiplier
    if noise_multiplier < MIN_INTEGRATED_NOISE:
        return np.minimum(sampled_pure_dp_rdp(q, end, orders), laplace_rdp(noise_multiplier, orders))
    panels = int(np.ceil(2 * end / PANEL))
    log_excess = np.empty_like(orders)
    groups = np.searchsorted(ORDER_GROUPS, orders)
    for group in np.unique(groups):
        members = groups == group
        # The integrand is exponential with a rate up to the order. Nodes gather at the ends, so a root is enough.
        n = 16 + int(NODES_PER_ROOT * np.sqrt(orders[members].max() * end / panels))
        loss, weights = gauss_legendre(-end, end, panels, n)
        loss = np.concatenate([loss, [-end, end]])
        weights = np.concatenate([weights * np.exp(-(loss[:-2] + end) / 2) / 4, [1 / 2, exp(-end) / 2]])
        log_excess[members] = log_sum_phi(weights, log1p_u(q, loss), orders[members])
    return rdp_of_excess(log_excess, orders)


def sampled_discrete_gaussian_rdp(q: float, noise_multiplier: float, orders: Floats) -> Floats:
    """Bound the Rényi divergence of discrete Gaussian noise on a Poisson sample.

    At integer orders k the moments E_Q[L^k] are those of the continuous Gaussian, exp(k (k - 1) / (2 z^2)), and the
    sampled moment is composed of them: there the divergence is that of the sampled Gaussian. Between them ln A is
    convex in the order, and A is at most 1 - q + q exp(a (a - 1) / (2 z^2)) because it is convex in the mixture. The
    relative error at integer orders is at most 1e-10. z is the noise's parameter over the L2 sensitivity.

    Source: Canonne, Kamath, Steinke 2020 (arXiv 2004.00010), Proposition 5; Mironov, Talwar, Zhang 2019 (arXiv
    1908.10530), section 3.3.
    """
    unsampled = gaussian_rdp(noise_multiplier, orders)
    if q == 1:
        return unsampled
    between = chord(lambda integers: sampled_gaussian_rdp(q, noise_multiplier, integers), orders)
    mixture = log1p_u(q, (orders - 1) * unsampled) / (orders - 1)
    return np.maximum(np.minimum(between, mixture), TINY)


def replace_sampled_rdp(q: float, nats: Floats, orders: Floats) -> Floats:
    """Bound the Rényi divergence of any mechanism on a Poisson sample, one record replaced.

    The bound ln(1 - q + q exp(b R)) / b, b = a - 1, holds even if the output shows who was sampled, and is exact then.
    `nats` is the divergence R of the mechanism on sampled records, infinity allowed.
    """
    b = orders - 1
    finite = np.isfinite(nats)
    bound = np.full_like(nats, np.inf)
    bound[finite] = np.maximum(log1p_u(q, b[finite] * nats[finite]) / b[finite], TINY)
    return np.where(nats > 0, np.minimum(bound, nats), 0.0)


def sampled_epsilon_delta(q: float, epsilon: float, delta: float) -> tuple[float, float]:
    """Amplify (epsilon, delta)-DP by Poisson sampling: ln(1 + q (exp(epsilon) - 1)) and q delta.

    Source: Balle, Barthe, Gaboardi 2018 (arXiv 1807.01647), Theorem 8.
    """
    if q == 1:
        return epsilon, delta
    if epsilon <= EXP_RANGE:
        return log1p(q * expm1(epsilon)), q * delta
    return epsilon + log(q + (1 - q) * exp(-epsilon)), q * delta
