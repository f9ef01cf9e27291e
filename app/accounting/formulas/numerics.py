"""Numerical primitives without cancellation or overflow.

With b = a - 1 and a ratio of probabilities L = exp(w) of mean 1, the moment E[L^a] of order a is 1 plus the mean of
phi(w) = L^a - 1 - a (L - 1), and E[L^-b], the moment with the two distributions exchanged, is 1 plus the mean of
psi(w) = L^-b - 1 + b (L - 1). Both are sums of f(t) = exp(t) - 1 - t >= 0:
phi(w) = exp(w) (f(b w) + b f(-w)) and psi(w) = f(-b w) + b f(w).

`import scipy` is light: it loads `scipy.special` and `scipy.optimize` at their first use, here and in other formulas.
That takes 0.15 s, and neither a start nor most commands need it.
"""

from collections.abc import Callable, Iterable
from functools import lru_cache
from math import factorial, log, log1p
from typing import Final

import numpy as np
import scipy

from app.accounting.curves import Floats

TINY: Final = float(np.finfo(np.float64).tiny)

EXP_RANGE: Final = 700.0
"""exp of this is finite."""

SERIES_RADIUS: Final = 1.0
"""For |t| below this, f(t) is summed as a series, since the difference would cancel."""

SERIES: Final = tuple(1 / factorial(n + 2) for n in reversed(range(17)))
"""Coefficients of f(t) / t^2, highest power first; the remainder is below 2e-17 of the sum."""

CHUNK: Final = 1 << 14
"""Elements of a temporary array: few enough for a processor's cache."""


def f(t: Floats) -> Floats:
    """Compute exp(t) - 1 - t for t up to 700, to full relative accuracy or 0 on underflow."""
    result = np.expm1(t) - t
    is_small = np.abs(t) < SERIES_RADIUS
    small = t[is_small]
    result[is_small] = _series(small) * small * small
    return result


def log_f(t: Floats) -> Floats:
    """Compute ln(exp(t) - 1 - t) with absolute error about 1e-15; below -1400 at t = 0."""
    result = np.empty_like(t)
    is_small = np.abs(t) < SERIES_RADIUS
    is_high = t >= SERIES_RADIUS
    small, high, low = t[is_small], t[is_high], t[~(is_small | is_high)]
    result[is_small] = 2 * np.log(np.maximum(np.abs(small), TINY)) + np.log(_series(small))
    result[is_high] = high + np.log1p(-(1 + high) * np.exp(-high))
    result[~(is_small | is_high)] = np.log(np.expm1(low) - low)
    return result


def log_phi(b: Floats, w: Floats) -> Floats:
    """Compute ln phi(w); the shapes broadcast, the absolute error is about 1e-15 (1 + |b w|)."""
    return w + np.logaddexp(log_f(b * w), np.log(b) + log_f(-w))


def log_psi(b: Floats, w: Floats) -> Floats:
    """Compute ln psi(w); the shapes broadcast, the absolute error is about 1e-15 (1 + |b w|)."""
    return np.logaddexp(log_f(-b * w), np.log(b) + log_f(w))


def log_sum_phi(weights: Floats, w: Floats, orders: Floats) -> Floats:
    """Compute the logarithm of the weighted sum of phi(w) over nodes, for every order.

    `weights` is (n_nodes,), nonnegative, that of the largest w above 1e-300; `w` is (n_nodes,), ln L, each between -700
    and 700, the largest above 0. The result is (n_orders,), absolute error about 1e-15 (1 + |b w|).
    """
    result = np.empty_like(orders)
    weights = weights * np.exp(w)
    constant = f(-w) @ weights
    rows = max(1, CHUNK // w.size)
    for start in range(0, orders.size, rows):
        part = slice(start, start + rows)
        b = orders[part, np.newaxis] - 1
        # Everything is divided by exp(b w) at the largest w; where that is infinite only the exponentials matter.
        t, shift = b * w, b * w.max()
        scale = np.exp(-shift)
        terms = np.exp(t - shift) - scale * (1 + t)
        is_small = np.abs(t) < SERIES_RADIUS
        small = t[is_small]
        terms[is_small] = _series(small) * small * small * np.broadcast_to(scale, t.shape)[is_small]
        total = terms @ weights + (scale * b).ravel() * constant
        result[part] = shift.ravel() + np.log(np.maximum(total, TINY))
    return result


def log_one_minus_exp(t: Floats) -> Floats:
    """Compute ln(1 - exp(-t)) for t >= 0; at 0, the logarithm of the smallest normal float."""
    return np.log(np.maximum(-np.expm1(-t), TINY))


def log1p_u(q: float, y: Floats) -> Floats:
    """Compute ln(1 - q + q exp(y)), the log-ratio of a sampled pair, to full relative accuracy."""
    near = np.log1p(q * np.expm1(np.minimum(y, EXP_RANGE)))
    far = np.logaddexp(log1p(-q), log(q) + y)
    return np.where(y <= EXP_RANGE, near, far)


def rdp_of_excess(log_excess: Floats, orders: Floats) -> Floats:
    """Compute the divergence ln(A) / (a - 1) > 0 for A = 1 + exp(log_excess)."""
    return np.maximum(np.logaddexp(0, log_excess) / (orders - 1), TINY)


def mean_of_moments(parts: Iterable[tuple[float, Floats]], orders: Floats) -> Floats:
    """Compute the divergence whose moment is the mean of those of other divergences, given as (share, nats).

    The moment is jointly convex in a pair of distributions (Csiszár 1967): of two mixtures with equal shares it is at
    most the mean. Shares are at least 0 and sum to 1.
    """
    total = np.full_like(orders, log(TINY))
    for share, nats in parts:
        if share:
            log_moment = (orders - 1) * nats
            total = np.logaddexp(total, log(share) + log_moment + log_one_minus_exp(log_moment))
    return rdp_of_excess(total, orders)


def chord(at_integers: Callable[[Floats], Floats], orders: Floats) -> Floats:
    """Extend divergences at integer orders to all orders by interpolation.

    (a - 1) R(a) is interpolated linearly. It is convex in the order (Hölder) and 0 at a = 1, so interpolation gives an
    upper bound. `at_integers` takes increasing integer orders above 1.
    """
    knots = np.unique(np.concatenate([[1.0], np.floor(orders), np.ceil(orders)]))
    log_moments = np.zeros_like(knots)
    log_moments[1:] = (knots[1:] - 1) * at_integers(knots[1:])
    lines: Floats = np.interp(orders, knots, log_moments)
    return lines / (orders - 1)


def gauss_legendre(low: float, high: float, panels: int, n: int) -> tuple[Floats, Floats]:
    """Compute nodes and weights of Gauss-Legendre quadrature over panels of equal length.

    `n` is the number of nodes per panel, rounded up to a multiple of 8 so that few sets of nodes are computed.
    """
    nodes, weights = _unit_nodes(-(-n // 8) * 8)
    half = (high - low) / (2 * panels)
    middles = low + half * np.arange(1, 2 * panels, 2)
    return (middles[:, np.newaxis] + half * nodes).ravel(), np.tile(half * weights, panels)


def root(of: Callable[[float], float], low: float, high: float, xtol: float = 1e-300, rtol: float = 1e-14) -> float:
    """Find the zero of a continuous function between ends of opposite sign (Brent's method).

    The tolerance is the larger of `xtol`, absolute, and `rtol`, relative.
    """
    return float(scipy.optimize.brentq(of, low, high, xtol=xtol, rtol=rtol))


@lru_cache(maxsize=64)
def _unit_nodes(n: int) -> tuple[Floats, Floats]:
    """Compute and cache the n Gauss-Legendre nodes in [-1, 1] and their weights."""
    # numpy's own routine takes ten times as long for hundreds of nodes.
    nodes, weights = scipy.special.roots_legendre(n)
    return nodes, weights


def _series(t: Floats) -> Floats:
    """Compute f(t) / t^2 for |t| below SERIES_RADIUS."""
    result = np.full_like(t, SERIES[0])
    for coefficient in SERIES[1:]:
        result = result * t + coefficient
    return result
