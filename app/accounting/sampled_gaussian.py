"""Rényi divergence of the Poisson-sampled Gaussian, with no subtraction that loses digits and no overflow.

With s the noise multiplier, q the sampling probability and a the order, (a - 1) R(a) = ln A(a), where
A(a) = E[(1 + u)^a], u = q (exp((2x - 1) / (2 s^2)) - 1) and x is normal with mean 0 and standard deviation s.
Since E[u] = 0, A - 1 is a sum (integer orders) or integral (fractional ones) of positive terms only.

Source: Mironov, Talwar, Zhang 2019 (arXiv 1908.10530), Theorem 4 and section 3.3.
"""

from collections.abc import Iterator
from functools import lru_cache
from math import ceil, factorial, floor, log, log1p, pi, sqrt
from typing import Final

import numpy as np
from numpy.typing import NDArray

MIN_QUADRATURE_NOISE: Final = 0.2
"""Below this noise multiplier the integrand needs too many nodes: fractional orders get an upper bound."""

TAIL: Final = 9.5
"""Half-width of the integral in standard deviations beyond its outermost peaks: exp(-9.5^2 / 2) is 3e-20."""

TRAPEZOID_EXPONENT: Final = 44.0
"""The trapezoid rule's step is chosen for a relative error of about exp(-44) = 8e-20."""

NEGLECTED: Final = 1e-4
"""Share of 1 - q in 1 + u beyond which the integrand is treated as Gaussian when choosing nodes (not in its value)."""

EXP_RANGE: Final = 700.0
"""exp of this is still a float."""

TINY: Final = float(np.finfo(np.float64).tiny)

CHUNK: Final = 1 << 14
"""Elements of a temporary array of the quadrature: small enough for a processor's cache."""

SERIES_RADIUS: Final = 0.5
"""Where |t| is below this, exp(t) - 1 - t is summed as a series, since the difference would lose digits."""

SERIES: Final = tuple(1 / factorial(n + 2) for n in reversed(range(15)))
"""Coefficients of (exp(t) - 1 - t) / t^2, the highest power first; the rest is below 1e-18."""


def sampled_gaussian_rdp(q: float, s: float, orders: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return the Rényi divergence of a Gaussian mechanism on a Poisson sample, one record added or removed.

    Args:
        q: sampling probability, in (0, 1).
        s: noise multiplier, in [1e-3, 1e6].
        orders: (n_orders,) Rényi orders in (1, 1024].

    Returns:
        (n_orders,) nats, positive, relative error at most 1e-10 (measured: 2e-14); below a noise multiplier
        of 0.2 fractional orders get an upper bound instead.

    Source:
        Mironov, Talwar, Zhang 2019 (arXiv 1908.10530), Theorem 4 and section 3.3.
    """
    is_integer = orders == np.floor(orders)
    if s < MIN_QUADRATURE_NOISE:
        log_a = _bounded(q, s, orders)
    else:
        log_a = np.empty_like(orders)
        log_a[is_integer] = _log_a_at_integers(q, s, orders[is_integer])
        log_a[~is_integer] = _log_a_by_quadrature(q, s, orders[~is_integer])
    # The true value is positive; where it is below every float (q near 1e-160 and less) it must not become 0.
    return np.maximum(log_a / (orders - 1), TINY)


def _bounded(q: float, s: float, orders: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return ln A at integer orders and the smaller of two upper bounds between them.

    ln A is convex in the order (Hölder) and ln A(1) = 0, so the chord between integer orders is above it; and A is
    convex in the sampled distribution, so 1 - q + q exp(a (a - 1) / (2 s^2)) is above it, which is exact at q = 1.
    """
    knots = np.unique(np.concatenate([[1.0], np.floor(orders), np.ceil(orders)]))
    log_a = np.concatenate([[0.0], _log_a_at_integers(q, s, knots[1:])])
    chord: NDArray[np.float64] = np.interp(orders, knots, log_a)
    mixture = _log1p_u(q, orders * (orders - 1) / (2 * s * s))
    return np.minimum(chord, mixture)


def _log_a_at_integers(q: float, s: float, orders: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return ln A from A - 1 = sum_{k=2}^{a} C(a, k) (1 - q)^(a - k) q^k expm1((k^2 - k) / (2 s^2))."""
    if orders.size == 0:
        return orders
    k, rest, log_binomial, starts = _binomials(tuple(int(order) for order in orders))
    exponent = (k * k - k) / (2 * s * s)
    log_term = log_binomial + rest * log1p(-q) + k * log(q) + exponent + np.log(-np.expm1(-exponent))
    largest = np.maximum.reduceat(log_term, starts)
    lengths = np.diff(starts, append=k.size)
    total = np.add.reduceat(np.exp(log_term - np.repeat(largest, lengths)), starts)
    log_a: NDArray[np.float64] = np.logaddexp(0, largest + np.log(total))
    return log_a


@lru_cache(maxsize=16)
def _binomials(
    orders: tuple[int, ...],
) -> tuple[NDArray[np.float64], NDArray[np.float64], NDArray[np.float64], NDArray[np.intp]]:
    """Return k, a - k and ln C(a, k) for k = 2 ... a of all orders a in turn, and where each order starts."""
    k = np.concatenate([np.arange(2, a + 1) for a in orders])
    rest = np.concatenate([np.arange(a - 2, -1, -1) for a in orders])
    # Exact integers: differences of ln Gamma would leave an error of 1e-12 at order 1024.
    log_binomial = np.array([log(c) for a in orders for c in _binomial_row(a)])
    starts = np.cumsum([0, *(a - 1 for a in orders[:-1])], dtype=np.intp)
    return k.astype(np.float64), rest.astype(np.float64), log_binomial, starts


def _binomial_row(a: int) -> Iterator[int]:
    """Yield C(a, k) for k = 2 ... a, each exactly, from the one before it."""
    value = a
    for k in range(2, a + 1):
        value = value * (a - k + 1) // k
        yield value


def _log_a_by_quadrature(q: float, s: float, orders: NDArray[np.float64]) -> NDArray[np.float64]:
    """Integrate A - 1 at any orders above 1 by the trapezoid rule, which converges geometrically here.

    The integrand's outermost peaks are at x = 0 and x = max(a, 2). Beyond the bend, where 1 + u is q exp(.) up to the
    share NEGLECTED, its logarithm bends like a Gaussian's around a, so nodes between the bend and TAIL standard
    deviations before a are left out: together they are worth exp(-TAIL^2 / 2) of the peak.
    """
    log_excess = np.empty_like(orders)
    if orders.size == 0:
        return log_excess
    step = _step(s)
    first = floor(-TAIL * s / step)
    x = step * np.arange(first, ceil((max(2.0, orders.max()) + TAIL * s) / step) + 3)
    table = _integrand_table(q, s, x)
    bend = 0.5 + s * s * (max(log1p(-q) - log(q), 0.0) - log(NEGLECTED))
    window_start = orders * (1 - NEGLECTED) - TAIL * s
    far = window_start > bend
    if not far.all():
        stop = ceil((max(2.0, orders[~far].max()) + TAIL * s) / step) - first + 1
        log_excess[~far] = _log_sum(table, orders[~far], np.arange(stop)[np.newaxis])
    if far.any():
        left = _log_sum(table, orders[far], np.arange(ceil(bend / step) - first)[np.newaxis])
        window = np.arange(ceil((2 * TAIL * s + NEGLECTED * orders.max()) / step) + 2)
        starts = np.floor(window_start[far] / step).astype(np.intp) - first
        right = _log_sum(table, orders[far], starts[:, np.newaxis] + window)
        log_excess[far] = np.logaddexp(left, right)
    return np.logaddexp(0, log_excess + log(step / (s * sqrt(2 * pi))))


def _step(s: float) -> float:
    """Return the trapezoid rule's step for noise multiplier s.

    Shifting the contour by d multiplies the density by exp(d^2 / (2 s^2)) and leaves exp(-2 pi d / h) of that as
    the error; d may go up to the branch point of (1 + u)^a at Im x = pi s^2.
    """
    free = s * pi * sqrt(2 / TRAPEZOID_EXPONENT)  # with the best d = 2 pi s^2 / h
    at_branch_point = 2 * pi**2 * s * s / (TRAPEZOID_EXPONENT + pi**2 * s * s / 2)
    return free if 2 * pi * s * s / free <= pi * s * s else at_branch_point


def _integrand_table(q: float, s: float, x: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return (3, n_nodes): ln of exp(w) times the density without its constant; w = ln(1 + u); and f(-w)."""
    w = _log1p_u(q, (2 * x - 1) / (2 * s * s))
    f, scale = _scaled_f(-w)
    return np.stack([w - x * x / (2 * s * s), w, f / scale])


def _log_sum(table: NDArray[np.float64], orders: NDArray[np.float64], nodes: NDArray[np.intp]) -> NDArray[np.float64]:
    """Sum the integrand over nodes: the same ones for all orders, shape (1, n), or each order's own, (n_orders, n).

    With b = a - 1 and f(t) = exp(t) - 1 - t, which is never negative,
    (1 + u)^a - 1 - a u = exp(w) (f(b w) + b f(-w)): nothing cancels at any order and any u.
    """
    result = np.empty_like(orders)
    rows = max(1, CHUNK // nodes.shape[1])
    for start in range(0, orders.size, rows):
        part = slice(start, start + rows)
        log_weight, w, f_of_minus_w = table[:, nodes[part] if len(nodes) > 1 else nodes]
        b = orders[part, np.newaxis] - 1
        t = b * w
        exponent = log_weight + np.maximum(t, 0)
        largest = exponent.max(axis=1, keepdims=True)
        f, scale = _scaled_f(t)
        total = (np.exp(exponent - largest) * (f + b * f_of_minus_w * scale)).sum(axis=1)
        # For q near 1e-160 and less every term may be below the smallest float.
        result[part] = largest.ravel() + np.log(np.maximum(total, TINY))
    return result


def _log1p_u(q: float, y: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return ln(1 + q (exp(y) - 1)) to full relative accuracy and without overflow."""
    near = np.log1p(q * np.expm1(np.minimum(y, EXP_RANGE)))
    far = np.logaddexp(log1p(-q), log(q) + y)
    return np.where(y <= EXP_RANGE, near, far)


def _scaled_f(t: NDArray[np.float64]) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Return f(t) = exp(t) - 1 - t times a scale, and the scale exp(-max(t, 0)): nothing overflows or cancels."""
    decay = np.exp(-np.abs(t))
    positive = t > 0
    scale = np.where(positive, decay, 1.0)
    f = np.where(positive, 1 - (1 + t) * decay, decay - 1 - t)
    is_small = np.abs(t) < SERIES_RADIUS
    small = t[is_small]
    series = np.full_like(small, SERIES[0])
    for coefficient in SERIES[1:]:
        series = series * small + coefficient
    f[is_small] = series * small * small * scale[is_small]
    return f, scale
