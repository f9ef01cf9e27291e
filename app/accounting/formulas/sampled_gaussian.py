"""Rényi divergence of the Poisson-sampled Gaussian at any order, without cancellation or overflow.

With s the noise multiplier, q the sampling probability and a the order, (a - 1) R(a) = ln A(a), where
A(a) = E[(1 + u)^a], u = q (exp(y) - 1), y = (2x - 1) / (2 s^2) and x is normal with mean 0 and standard deviation s.
Since E[u] = 0, A - 1 is the integral of (1 + u)^a - 1 - a u >= 0. Left of a point called the bend it is summed by the
trapezoid rule. Right of it 1 + u equals q exp(y) up to a share of 1e-4, and orders far above the bend use a short
series of Gaussian integrals.

Source: Mironov, Talwar, Zhang 2019 (arXiv 1908.10530), Theorem 4 and section 3.3.
"""

from dataclasses import dataclass
from math import ceil, exp, floor, log, log1p, pi, sqrt
from typing import Final

import numpy as np
import scipy

from app.accounting.curves import Floats
from app.accounting.formulas.quadrature_sums import LOG_NEGLIGIBLE, Bend, Nodes, OrderPlan, divergences, order_plan

TAIL: Final = 9.5
"""Standard deviations beyond which a Gaussian peak is ignored: exp(-9.5^2 / 2) is 3e-20."""

TRAPEZOID_EXPONENT: Final = 44.0
"""The trapezoid rule's step is chosen for a relative error of about exp(-44) = 8e-20."""

BEND_SHARE: Final = 1e-4
"""Share of 1 - q in q exp(y) at the bend."""

FLAT_NOISE: Final = 0.05
"""Below this noise multiplier u is -q for all x but a share of 1e-23 (10 standard deviations lie below x = 1/2)."""

NEGLIGIBLE: Final = 1e-18
"""Share of a sum below which a term is ignored."""


@dataclass(frozen=True, slots=True)
class _Mechanism:
    """Numbers shared by the nodes and the series; long doubles are multiplied by orders or nodes.

    At q = 1e-9 and s = 5 the terms of (1 + u)^a times the density reach exp(2e4 - 2e4), of which double precision
    would leave 1e-12. Where long double equals double (some ARM machines), the error was measured as 6e-13.
    """

    q: float
    s: float
    curvature: np.longdouble
    """1 / (2 s^2)."""
    log_q: np.longdouble
    log_odds: float
    """ln((1 - q) / q)."""
    bend: Bend
    """The x from which (1 - q) / (q exp(y)) is at most BEND_SHARE, and 1 + u at least 5e3."""


def sampled_gaussian_rdp(q: float, s: float, orders: Floats) -> Floats:
    """Compute the Rényi divergence of a Poisson-sampled Gaussian under add_or_remove_one.

    q is below 1, s is the noise multiplier, in [1e-3, 1e6], and the orders are above 1 and up to 4096, in any sequence,
    else a ValueError is raised. The relative error is at most 1e-10 (measured: 5e-15 for q from 1e-9, 7e-14 for smaller
    q); values below LEAST are rounded up to it.
    """
    plan = order_plan(np.asarray(orders, dtype=np.float64).tobytes())
    mechanism = _mechanism(q, s)
    spread = TAIL * s
    near = int(np.searchsorted(plan.a, mechanism.bend.place + spread))
    log_right = _log_right(mechanism, plan, near)
    return divergences(plan, mechanism.bend, spread, log_right, lambda end: _nodes(mechanism, end))


def _mechanism(q: float, s: float) -> _Mechanism:
    """Precompute the shared numbers of a mechanism."""
    log_q, log_rest = np.log(np.longdouble(q)), np.log1p(-np.longdouble(q))
    log_odds = float(log_rest - log_q)
    y = max(log_odds, 0.0) - log(BEND_SHARE)
    return _Mechanism(
        q=q,
        s=s,
        curvature=1 / (2 * np.longdouble(s) * np.longdouble(s)),
        log_q=log_q,
        log_odds=log_odds,
        bend=Bend(0.5 + s * s * y, float(log_rest) + log1p(exp(y - log_odds))),
    )


def trapezoid_step(s: float) -> float:
    """Choose the trapezoid rule's step.

    Shifting the contour by d multiplies the density by exp(d^2 / (2 s^2)) and leaves exp(-2 pi d / h) of that as
    the error; d may go up to the branch point of (1 + u)^a at Im x = pi s^2.
    """
    free = s * pi * sqrt(2 / TRAPEZOID_EXPONENT)  # with the best d = 2 pi s^2 / h
    at_branch_point = 2 * pi**2 * s * s / (TRAPEZOID_EXPONENT + pi**2 * s * s / 2)
    return free if 2 * pi * s * s / free <= pi * s * s else at_branch_point


def _nodes(mechanism: _Mechanism, end: float) -> Nodes:
    """Compute the trapezoid rule's nodes up to `end`, weighted by density times step.

    Below FLAT_NOISE one node of weight 1 represents all x below 1/2: there u differs from -q by q exp(y), and
    E[exp(y); x < 1/2] is the probability of the tail below -1/(2 s). Other nodes start at x = 1/2, where u = 0.
    """
    q, s = mechanism.q, mechanism.s
    step = trapezoid_step(s)
    flat = int(s < FLAT_NOISE)
    first = ceil(0.5 / step) if flat else floor(-TAIL * s / step)
    x = np.longdouble(step) * np.arange(first, ceil(end / step) + 2)
    long_y = (2 * x - 1) * mechanism.curvature
    w = long_y + mechanism.log_q  # ln of q exp(y)
    y = long_y.astype(np.float64)
    one, crossing = np.searchsorted(y, (1.0, max(mechanism.log_odds, 1.0)))
    middle = slice(one, crossing)
    # Each form of ln(1 + u) where it neither cancels nor overflows.
    w[:one] = np.log1p(q * np.expm1(y[:one]))
    w[middle] = np.log1p(np.exp(w[middle].astype(np.float64)) - q)
    w[crossing:] += np.log1p(np.exp(mechanism.log_odds - y[crossing:]))
    log_weight = w - x * x * mechanism.curvature + log(step / (s * sqrt(2 * pi)))
    table = np.empty((5, flat + x.size))
    places = np.zeros(flat + x.size)
    places[flat:] = x
    own = table[:, flat:]
    own[0], own[1] = log_weight, w
    own[2], own[3] = w - own[1], log_weight - own[0]
    if flat:
        table[:4, 0] = log1p(-q), log1p(-q), 0.0, 0.0
    np.exp(table[0], out=table[4])
    return Nodes(places, table)


def _log_right(mechanism: _Mechanism, plan: OrderPlan, near: int) -> Floats:
    """Compute ln E[(1 + u)^a - 1 - a u; x > bend] at orders at least TAIL s above the bend.

    With r = (1 - q) / (q exp(y)) <= BEND_SHARE, (1 + u)^a = sum_k C(a, k) r^k (q exp(y))^a. Over all x the k-th term is
    a Gaussian integral around x = a - k,

        C(a, k) (1 - q)^k q^(a - k) exp((a - k) (a - k - 1) / (2 s^2)).

    Terms with a - k below the bend are omitted, the others are integrated over all x. Either error is at most
    C(a, k) BEND_SHARE^k exp(-g^2 / 2) / 2 of the first term, g = (a - bend) / s >= TAIL: relative to the first term's,
    the k-th integrand's share is C(a, k) r^k with r = r(bend) exp(-(x - bend) / s^2), and a normal tail from t is at
    most exp(-t^2 / 2) / 2. Their sum is (1 + BEND_SHARE)^a exp(-g^2 / 2) / 2, below 2e-20.
    """
    a, b = plan.a[near:], plan.b[near:]
    slope = (a * mechanism.curvature + mechanism.log_q).astype(np.float64)
    log_series = np.log1p(_series(mechanism, a, b))
    log_q = float(mechanism.log_q)
    log_right: Floats = b * slope + log_q + log_series
    # The subtrahend E[1 + a u; x > bend] <= a E[1 + u; x > bend] is at most a / (1 + u(bend))^b of the rest.
    few = int(np.searchsorted(b, LOG_NEGLIGIBLE / mechanism.bend.log_ratio + 1))
    if few:
        a, b = a[:few], b[:few]
        # It equals a q P(x > bend - 1) + (1 - a q) P(x > bend).
        log_shifted = float(scipy.special.log_ndtr((1 - mechanism.bend.place) / mechanism.s))
        ratio = float(scipy.special.log_ndtr(-mechanism.bend.place / mechanism.s)) - log_shifted
        log_other = np.log1p(np.exp(ratio - log_q - np.log(a)) - exp(ratio))
        log_subtracted = log_q + np.log1p(b) + log_shifted + log_other
        difference = b * slope[:few] + log_series[:few] - np.log1p(b) - log_shifted - log_other
        log_right[:few] = log_subtracted + difference + np.log(-np.expm1(-difference))
    return log_right


def _series(mechanism: _Mechanism, a: Floats, b: Floats) -> Floats:
    """Sum the terms from k = 1 on, relative to the term at k = 0."""
    result = np.zeros_like(a)
    if not a.size:
        return result
    variance = mechanism.s * mechanism.s
    start = int(a.searchsorted(mechanism.bend.place + 1))
    stop = int(b.searchsorted(variance * (mechanism.log_odds + log(a[-1] / NEGLIGIBLE))))
    ratio = np.exp(mechanism.log_odds - b[start:stop] / variance)
    term = ratio * a[start:stop]
    k = 1
    while term.size and term[0] > NEGLIGIBLE:  # the terms fall with the order: a - k > bend > 9.2 s^2
        result[start:stop] += np.where(term > NEGLIGIBLE, term, 0.0)
        left_out = int(a[start:stop].searchsorted(mechanism.bend.place + k + 1))
        start += left_out
        ratio = ratio[left_out:]
        term = term[left_out:] * ratio * (a[start:stop] - k) * (exp(k / variance) / (k + 1))
        k += 1
    return result
