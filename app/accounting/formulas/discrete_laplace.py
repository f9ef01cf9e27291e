"""Rényi divergence of discrete Laplace noise on sums of integers.

With parameter c, an integer x has a probability proportional to exp(-c |x|). Let P be such noise around the integer
s > 0, Q around 0. With E = exp(-c), the loss is c (2 x - s) at x = 0 ... s, those below and above having the losses of
the ends: Q has 1 / (1 + E) at 0 and below, (1 - E) E^x / (1 + E) at x = 1 ... s - 1, and E^s / (1 + E) from s on.
So the hockey-stick divergence at a loss l = c (2 x - s) is 1 - exp((l - c s) / 2), that of continuous Laplace noise.
Between these losses it is linear in exp(l): a polygon with these points of a convex curve. A polygon with fewer of the
points, both ends among them, is above it. It is the divergence of a pair with these losses only. With d and d' the
distances from x to the next points on either side, infinite at the ends, that pair's Q has
exp(-c x) (tanh(c d / 2) + tanh(c d' / 2)) / 2 at x: the slope of the polygon changes by as much.

Reflection exchanges P and Q, so both directions are equal.

Summing over x, with b = a - 1: A(a) = u exp(c b s) + v exp(-c a s), where u = (1 - exp(-2 a c)) / ((1 + E)
(1 - exp(-(2 a - 1) c))) and v = 1 - u are nonnegative. So ln A is convex in the distance s and 0 at distance 0: it is
superadditive, and a vector that is moved by s in all costs at most what one coordinate does.
"""

from typing import Final

import numpy as np

from app.accounting.curves import Floats
from app.accounting.formulas.amplification import sampled_pure_dp_rdp
from app.accounting.formulas.numerics import TINY, log1p_u, log_f, log_one_minus_exp, log_sum_phi, rdp_of_excess

MAX_SUMMED: Final = 128
"""The longest distance of which each loss is summed on a sample; of a longer one, as many losses dominate."""

MAX_LOSS: Final = 600.0
"""Nats; above, a sample is charged as that of any mechanism of this pure epsilon: the probabilities would underflow."""


def discrete_laplace_rdp(noise_parameter: float, shift: int, orders: Floats) -> Floats:
    """Compute the Rényi divergence of discrete Laplace noise in every coordinate.

    With m = exp(-c a) and p = exp(c b), A - 1 is u (p - 1) (sum of p^k - m^k) + X (sum of m^k), k = 0 ... s - 1, where
    X = (p - 1) (1 - m) / (1 + E) is A - 1 at distance 1: no term is negative. The result is exact, with a relative
    error of at most 1e-12. Source: the module's sum.

    Args:
        noise_parameter: c, positive.
        shift: s, the L1 distance by which integers are moved, at least 1.
        orders: (n_orders,) above 1.
    """
    c, b = noise_parameter, orders - 1
    rise, fall = c * b, -c * orders
    both = np.logaddexp(0, -c)
    log_u = log_one_minus_exp(2 * c * orders) - log_one_minus_exp(c * (2 * orders - 1)) - both
    log_rise = rise + log_one_minus_exp(rise)  # of p - 1
    log_difference = np.logaddexp(_log_surplus(rise, shift) - log_rise, _log_surplus(fall, shift) - _log_drop(fall))
    log_single = log_rise + _log_drop(fall) - both
    log_sum = _log_drop(shift * fall) - _log_drop(fall)
    apart = log_u + log_rise + log_difference
    return rdp_of_excess(np.logaddexp(apart, log_single + log_sum) if shift > 1 else log_single, orders)


def sampled_discrete_laplace_rdp(q: float, noise_parameter: float, shift: int, orders: Floats) -> Floats:
    """Compute the Rényi divergence of discrete Laplace noise in every coordinate, on a Poisson sample.

    One coordinate moved by the whole distance dominates (`app.accounting.pld.discrete_laplace`), also after mixing
    (Zhu, Dong, Wang 2022, arXiv 2106.08567, Theorem 11): the moment is summed over its losses, or over MAX_SUMMED + 1
    of them, which dominate.
    The relative error of the sum is at most 1e-12, and the result is at most that of any (c s)-DP mechanism.
    """
    pure = sampled_pure_dp_rdp(q, noise_parameter * shift, orders)
    bound = np.minimum(pure, discrete_laplace_rdp(noise_parameter, shift, orders))
    if noise_parameter * shift > MAX_LOSS:
        return bound
    x = np.unique(np.round(np.linspace(0, shift, min(shift, MAX_SUMMED) + 1)))
    halves = np.tanh(noise_parameter * (np.diff(x, prepend=-np.inf, append=np.inf) / 2))
    weights = np.exp(-noise_parameter * x) * (halves[:-1] + halves[1:]) / 2
    losses = log1p_u(q, noise_parameter * (2 * x - shift))
    return np.minimum(rdp_of_excess(log_sum_phi(weights, losses, orders), orders), bound)


def _log_surplus(t: Floats, shift: int) -> Floats:
    """Compute ln |sum of exp(k t) - s, k = 0 ... s - 1| |exp(t) - 1|, that is ln(f(s t) - s f(t))."""
    whole, parts = log_f(shift * t), np.log(shift) + log_f(t)
    surplus: Floats = whole + np.log(np.maximum(-np.expm1(np.minimum(parts - whole, 0)), TINY))
    return surplus


def _log_drop(t: Floats) -> Floats:
    """Compute ln(1 - exp(t)) for t <= 0."""
    return log_one_minus_exp(-t)
