"""Building blocks of the formulas: nothing here loses digits to a subtraction, and nothing overflows.

With b = a - 1 and a ratio of probabilities L = exp(w) of mean 1, the moment E[L^a] of order a is 1 plus the mean of
phi(w) = L^a - 1 - a (L - 1), and E[L^-b], the moment with the two distributions exchanged, is 1 plus the mean of
psi(w) = L^-b - 1 + b (L - 1). Both are made of f(t) = exp(t) - 1 - t, which is never negative:
phi(w) = exp(w) (f(b w) + b f(-w)) and psi(w) = f(-b w) + b f(w).
"""

from collections.abc import Callable
from functools import lru_cache
from math import factorial, log, log1p
from typing import Final

import numpy as np
from numpy.typing import NDArray

TINY: Final = float(np.finfo(np.float64).tiny)

EXP_RANGE: Final = 700.0
"""exp of this is still a float."""

SERIES_RADIUS: Final = 1.0
"""Where |t| is below this, f(t) is summed as a series, since the difference would lose digits."""

SERIES: Final = tuple(1 / factorial(n + 2) for n in reversed(range(17)))
"""Coefficients of f(t) / t^2, the highest power first; the rest is below 2e-17 of the sum."""

CHUNK: Final = 1 << 14
"""Elements of a temporary array: small enough for a processor's cache."""


def f(t: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return exp(t) - 1 - t.

    Args:
        t: any shape, at most 700.

    Returns:
        The same shape, to full relative accuracy; 0 where it is below every float.
    """
    result = np.expm1(t) - t
    is_small = np.abs(t) < SERIES_RADIUS
    small = t[is_small]
    result[is_small] = _series(small) * small * small
    return result


def log_f(t: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return ln(exp(t) - 1 - t).

    Args:
        t: any shape, finite.

    Returns:
        The same shape, absolute error about 1e-15; at t = 0 a number below -1400 stands for minus infinity.
    """
    result = np.empty_like(t)
    is_small = np.abs(t) < SERIES_RADIUS
    is_high = t >= SERIES_RADIUS
    small, high, low = t[is_small], t[is_high], t[~(is_small | is_high)]
    result[is_small] = 2 * np.log(np.maximum(np.abs(small), TINY)) + np.log(_series(small))
    result[is_high] = high + np.log1p(-(1 + high) * np.exp(-high))
    result[~(is_small | is_high)] = np.log(np.expm1(low) - low)
    return result


def log_phi(b: NDArray[np.float64], w: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return ln(L^a - 1 - a (L - 1)) with L = exp(w).

    Args:
        b: a - 1, above 0.
        w: ln L; `b` and `w` broadcast together.

    Returns:
        The broadcast shape, absolute error about 1e-15 (1 + |b w|).
    """
    return w + np.logaddexp(log_f(b * w), np.log(b) + log_f(-w))


def log_psi(b: NDArray[np.float64], w: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return ln(L^-b - 1 + b (L - 1)) with L = exp(w).

    Args:
        b: a - 1, above 0.
        w: ln L; `b` and `w` broadcast together.

    Returns:
        The broadcast shape, absolute error about 1e-15 (1 + |b w|).
    """
    return np.logaddexp(log_f(-b * w), np.log(b) + log_f(w))


def log_sum_phi(
    weights: NDArray[np.float64], w: NDArray[np.float64], orders: NDArray[np.float64]
) -> NDArray[np.float64]:
    """Return ln of the weighted sum of phi(w) over nodes, for every order.

    Args:
        weights: (n_nodes,) weights, none negative, that of the largest w above 1e-300.
        w: (n_nodes,) ln L, each between -700 and 700, the largest above 0.
        orders: (n_orders,) Rényi orders above 1.

    Returns:
        (n_orders,) logarithms, absolute error about 1e-15 (1 + |b w|).
    """
    result = np.empty_like(orders)
    weights = weights * np.exp(w)
    constant = f(-w) @ weights
    rows = max(1, CHUNK // w.size)
    for start in range(0, orders.size, rows):
        part = slice(start, start + rows)
        b = orders[part, np.newaxis] - 1
        # Everything is divided by exp(b w) at the largest w; where that is infinite only the exponentials count.
        t, shift = b * w, b * w.max()
        scale = np.exp(-shift)
        terms = np.exp(t - shift) - scale * (1 + t)
        is_small = np.abs(t) < SERIES_RADIUS
        small = t[is_small]
        terms[is_small] = _series(small) * small * small * np.broadcast_to(scale, t.shape)[is_small]
        total = terms @ weights + (scale * b).ravel() * constant
        result[part] = shift.ravel() + np.log(np.maximum(total, TINY))
    return result


def log1p_u(q: float, y: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return ln(1 - q + q exp(y)), the log-ratio of a sampled pair whose unsampled one is y.

    Args:
        q: sampling probability, in (0, 1).
        y: any shape.

    Returns:
        The same shape, to full relative accuracy.
    """
    near = np.log1p(q * np.expm1(np.minimum(y, EXP_RANGE)))
    far = np.logaddexp(log1p(-q), log(q) + y)
    return np.where(y <= EXP_RANGE, near, far)


def rdp_of_excess(log_excess: NDArray[np.float64], orders: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return the divergence whose moment of order a is 1 + exp(log_excess).

    Args:
        log_excess: (n_orders,) ln(A - 1).
        orders: (n_orders,) Rényi orders above 1.

    Returns:
        (n_orders,) ln(A) / (a - 1) in nats; positive, even where it is below every float.
    """
    return np.maximum(np.logaddexp(0, log_excess) / (orders - 1), TINY)


def chord(
    at_integers: Callable[[NDArray[np.float64]], NDArray[np.float64]], orders: NDArray[np.float64]
) -> NDArray[np.float64]:
    """Extend divergences at integer orders to all orders by straight lines of (a - 1) R(a).

    That function is convex in the order (Hölder) and 0 at a = 1, so the lines are never below it.

    Args:
        at_integers: takes integer orders above 1, increasing, and returns their divergences in nats.
        orders: (n_orders,) Rényi orders above 1.

    Returns:
        (n_orders,) nats: the same at integer orders, an upper bound between them.
    """
    knots = np.unique(np.concatenate([[1.0], np.floor(orders), np.ceil(orders)]))
    log_moments = np.zeros_like(knots)
    log_moments[1:] = (knots[1:] - 1) * at_integers(knots[1:])
    lines: NDArray[np.float64] = np.interp(orders, knots, log_moments)
    return lines / (orders - 1)


def gauss_legendre(low: float, high: float, panels: int, n: int) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Return nodes and weights that integrate over an interval, panel by panel.

    Args:
        low: lower end.
        high: upper end.
        panels: number of panels of equal length.
        n: nodes in each panel; rounded up to a multiple of 8, so that few sets of nodes are ever computed.

    Returns:
        Two vectors of as many numbers as there are nodes.
    """
    nodes, weights = _unit_nodes(-(-n // 8) * 8)
    half = (high - low) / (2 * panels)
    middles = low + half * np.arange(1, 2 * panels, 2)
    return (middles[:, np.newaxis] + half * nodes).ravel(), np.tile(half * weights, panels)


def root(of: Callable[[float], float], low: float, high: float, xtol: float = 1e-300, rtol: float = 1e-14) -> float:
    """Return where a function is zero (Brent's method).

    Args:
        of: continuous, with opposite signs at the two ends.
        low: lower end.
        high: upper end.
        xtol: how far off the answer may be; the larger of both counts.
        rtol: the same, as a share of the answer.

    Returns:
        A number between the ends.
    """
    # Loaded when it is needed: few events are, and it is a tenth of what every start of the service loads.
    from scipy.optimize import brentq  # noqa: PLC0415 - as said

    return float(brentq(of, low, high, xtol=xtol, rtol=rtol))


@lru_cache(maxsize=64)
def _unit_nodes(n: int) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Return the n Gauss-Legendre nodes in [-1, 1] and their weights."""
    from scipy.special import roots_legendre  # noqa: PLC0415 - it takes 0.1 s to load, and no start needs it

    # numpy's own take ten times as long for hundreds of nodes.
    nodes, weights = roots_legendre(n)
    return nodes, weights


def _series(t: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return f(t) / t^2 for |t| below SERIES_RADIUS."""
    result = np.full_like(t, SERIES[0])
    for coefficient in SERIES[1:]:
        result = result * t + coefficient
    return result
