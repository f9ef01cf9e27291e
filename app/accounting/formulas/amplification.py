"""Amplification by Poisson sampling: every record is taken independently with the same probability q.

Whatever the other records are, the outputs on two neighbours are mixtures (1 - q) Q + q P and Q of what the mechanism
does with and without the one record, and a Rényi divergence of mixtures is at most the largest of their parts. With
L = P / Q the moment of order a is 1 + E_Q[phi(ln(1 - q + q L))] where the record was added, and the same with psi where
it was removed. Relations: add_or_remove_one; and replace_special for mechanisms to which a special record is as good as
none.

Where a record is replaced and its absence may show, they are (1 - q) O + q P and (1 - q) O + q Q with an O that is
neither. The moment of order a, the sum of Q (P / Q)^a, is the f-divergence of t^a, which is convex: it is jointly
convex in the pair (Csiszár 1967; Liese, Vajda 2006), and 1 for a pair of equals. So it is at most 1 - q + q A, A the
moment of P and Q. That is the truth where O is disjoint from both. It needs that the coin of the record in question
does not depend on the record, and that the samples of the others are drawn alike on both neighbours.

If some mapping of the outputs exchanges P and Q, then the first is the larger one. With m = 1 - q + q L,
m' = 1 - q + q / L, s = ln m, s' = -ln m' and c = a - 1/2, exchanging P and Q in half of the mean leaves the sign of
E_Q[m^a - m^(1 - a)] to sqrt(m) sinh(c s) - L sqrt(m') sinh(c s') for L > 1. It is 0 at c = 1/2, and
sinh(c s) / sinh(c s') grows with c since m m' >= 1, that is s >= s' > 0. So it is never negative for a >= 1.
For densities that is Theorem 5 of Mironov, Talwar, Zhang 2019 (arXiv 1908.10530).
"""

from math import exp, expm1, log, log1p
from typing import Final

import numpy as np
from numpy.typing import NDArray

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
"""Nodes of a panel for the root of how much the integrand's logarithm may change in half of it, beyond 16 nodes."""

ORDER_GROUPS: Final = (4.0, 16.0, 64.0, 128.0, 256.0, 512.0, np.inf)
"""Orders up to each of these share their nodes."""


def sampled_pure_dp_rdp(q: float, epsilon: float, orders: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return the largest Rényi divergence of any epsilon-DP mechanism on a Poisson sample.

    The mechanism's outputs with and without the record can be made from those of binary randomized response, and so
    can the mixtures: the sampled randomized response is the worst case, at every order.

    Args:
        q: sampling probability, in (0, 1].
        epsilon: nats, at least 0, finite.
        orders: (n_orders,) Rényi orders above 1.

    Returns:
        (n_orders,) nats, tight, relative error at most 1e-13; 0 for epsilon 0.

    Source:
        Kairouz, Oh, Viswanath 2015 (arXiv 1311.0776): the reduction. Relations: see the module.
    """
    if q == 1 or epsilon == 0:
        return pure_dp_rdp(epsilon, orders)
    losses = log1p_u(q, np.array([epsilon, -epsilon]))
    log_weights = -np.logaddexp(0, np.array([epsilon, -epsilon]))
    b = (orders - 1)[:, np.newaxis]
    log_excess = np.logaddexp.reduce(log_weights + log_phi(b, losses[np.newaxis]), axis=1)
    return rdp_of_excess(log_excess, orders)


def sampled_laplace_rdp(q: float, noise_multiplier: float, orders: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return the Rényi divergence of a sum with Laplace noise in every coordinate, on a Poisson sample.

    One coordinate moved by the whole sensitivity is the worst case also here: moved by v (in scales) its hockey-stick
    divergence at exp(e) is 1 - exp((e - v) / 2) for |e| <= v, 0 above and 1 - exp(e) below; integrating that over
    the losses of a second coordinate gives at most the same formula with v + w. So every f-divergence is at most that
    of one coordinate, also after mixing. There, with E = 1 / z, ln L is -E with probability 1/2, E with probability
    exp(-E) / 2, and has the density exp(-(E + l) / 2) / 4 between: one smooth integral over a finite interval.

    Args:
        q: sampling probability, in (0, 1].
        noise_multiplier: scale z of the noise over the L1 sensitivity of the sum, in [1e-3, 1e6].
        orders: (n_orders,) Rényi orders in (1, 1024].

    Returns:
        (n_orders,) nats, exact up to a relative error of 1e-13; below a noise multiplier of 0.05 the upper bound
        for any 1/z-DP mechanism.

    Source:
        Direct integration; Zhu, Dong, Wang 2022 (arXiv 2106.08567) for domination by hockey-stick divergences.
        Relations: see the module.
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


def sampled_discrete_gaussian_rdp(
    q: float, noise_multiplier: float, orders: NDArray[np.float64]
) -> NDArray[np.float64]:
    """Return a bound on the Rényi divergence of an integer sum with discrete Gaussian noise, on a Poisson sample.

    At integer orders k the moments E_Q[L^k] are those of the continuous Gaussian, exp(k (k - 1) / (2 z^2)), and the
    sampled moment is made of them: there the divergence is that of the sampled Gaussian. Between them ln A is convex
    in the order, and A is at most 1 - q + q exp(a (a - 1) / (2 z^2)) because it is convex in the mixture.

    Args:
        q: sampling probability, in (0, 1].
        noise_multiplier: parameter z of the noise over the L2 sensitivity of the sum, in [1e-3, 1e6].
        orders: (n_orders,) Rényi orders in (1, 1024].

    Returns:
        (n_orders,) nats: exact at integer orders, relative error at most 1e-10; an upper bound between them.

    Source:
        Canonne, Kamath, Steinke 2020 (arXiv 2004.00010), Proposition 5; Mironov, Talwar, Zhang 2019
        (arXiv 1908.10530), section 3.3. Relations: see the module.
    """
    unsampled = gaussian_rdp(noise_multiplier, orders)
    if q == 1:
        return unsampled
    between = chord(lambda integers: sampled_gaussian_rdp(q, noise_multiplier, integers), orders)
    mixture = log1p_u(q, (orders - 1) * unsampled) / (orders - 1)
    return np.maximum(np.minimum(between, mixture), TINY)


def taken_or_not_rdp(q: float, nats: NDArray[np.float64], orders: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return a bound on the Rényi divergence of any mechanism on a Poisson sample, one record replaced.

    It holds whatever the output shows of who was taken: ln(1 - q + q exp(b R)) / b, b = a - 1.

    Args:
        q: sampling probability, in (0, 1).
        nats: (n_orders,) divergence R of the mechanism on records that are taken, infinity allowed.
        orders: (n_orders,) Rényi orders above 1.

    Returns:
        (n_orders,) nats, at most `nats`; exact where the output shows who was taken; positive where `nats` is.

    Source:
        Joint convexity: see the module. Relations: replace_one, replace_special.
    """
    b = orders - 1
    finite = np.isfinite(nats)
    bound = np.full_like(nats, np.inf)
    bound[finite] = np.maximum(log1p_u(q, b[finite] * nats[finite]) / b[finite], TINY)
    return np.where(nats > 0, np.minimum(bound, nats), 0.0)


def sampled_epsilon_delta(q: float, epsilon: float, delta: float) -> tuple[float, float]:
    """Return what an (epsilon, delta)-DP mechanism is on a Poisson sample: ln(1 + q (exp(epsilon) - 1)) and q delta.

    Args:
        q: sampling probability, in (0, 1].
        epsilon: nats, at least 0, finite.
        delta: in [0, 1].

    Returns:
        The new epsilon and delta, relative error at most 1e-15.

    Source:
        Balle, Barthe, Gaboardi 2018 (arXiv 1807.01647), Theorem 8. Relations: see the module.
    """
    if q == 1:
        return epsilon, delta
    if epsilon <= EXP_RANGE:
        return log1p(q * expm1(epsilon)), q * delta
    return epsilon + log(q + (1 - q) * exp(-epsilon)), q * delta
