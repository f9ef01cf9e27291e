"""Rényi divergence of a sweep that releases only its best run, and the draw of its number of runs."""

from math import exp, expm1, inf, isfinite, log, log1p
from typing import Final

import numpy as np
import scipy

from app.accounting.curves import Floats
from app.accounting.errors import InvalidEventError
from app.accounting.formulas.numerics import log_f, root

ROUNDING: Final = 1e-13
"""Relative increase of ln(1 / gamma), which increases the bound and covers the root's error."""

MAX_MEAN: Final = 1e6
MIN_SHAPE: Final = -0.5
MAX_SHAPE: Final = 1e6
"""Bounds for drawing a number of runs; for a shape nearer to -1, it may be larger than anyone can train."""

LEAST_SHAPE: Final = 1e-6
"""Shapes nearer to 0 are drawn as 1e-9: cancellation would cost more digits than that does."""

NEAR_HALF: Final = 0.5


def repeat_and_select_rdp(nats: Floats, orders: Floats, mean: float, shape: float) -> Floats:
    """Compute the Rényi divergence of the best of K independent runs.

    With a finite shape h, K is truncated negative binomial with some parameter g, and for every order c
    R'(a) = R(a) + (1 + h) ((1 - 1/c) R(c) + ln(1/g) / c) + ln(mean) / (a - 1); the best c is used. Shape 1 is the
    geometric distribution, shape 0 the logarithmic one. With an infinite shape, K is Poisson and
    R'(a) = R(a) + mean delta + ln(mean) / (a - 1), where one run is (ln(1 + 1/(a - 1)), delta)-DP. Divergences increase
    with the order, so a bound at a higher order holds at a lower one. K is drawn independently of the data, only the
    best run's output is released, and runs differ in public choices only.

    Args:
        nats: (n_orders,) divergence of one run, infinity allowed, under the same relation as the result.
        orders: (n_orders,) increasing.
        mean: expected number of runs, at least 1, finite, else an InvalidEventError is raised.
        shape: above -1, else the same; at least -0.9999 for a sharp bound; infinity is Poisson.

    Source: Papernot, Steinke 2022 (arXiv 2110.03620), Theorem 2 (finite shape) and Theorem 6 (Poisson).
    """
    if not (isfinite(mean) and mean >= 1):
        raise InvalidEventError(f"The mean number of runs is {mean:g}, but it must be a finite number of at least 1.")
    if not shape > -1:
        raise InvalidEventError(
            f"The shape is {shape:g}, but it must be above -1; 0 is logarithmic, 1 geometric, infinity Poisson."
        )
    b = orders - 1
    each = nats + log(mean) / b
    if shape == inf:
        each += mean * _delta_of_one_run(nats, orders)
    elif mean == 1:
        return nats.copy()
    else:
        each += (1 + shape) * np.min((b * nats + log_inverse_gamma(mean, shape)) / orders)
    from_above: Floats = np.minimum.accumulate(each[::-1])[::-1]
    return from_above


def _delta_of_one_run(nats: Floats, orders: Floats) -> Floats:
    """Compute the delta of one run at epsilon = ln(1 + 1/(a - 1)) for every order a.

    Every order c proves ln(delta) = (c - 1) (R(c) - epsilon + ln(1 - 1/c)) - ln(c) (Canonne, Kamath, Steinke 2020,
    arXiv 2004.00010, Proposition 12), and total variation delta = sqrt(1 - exp(-R)) (Bretagnolle, Huber 1979).
    """
    epsilon = np.log1p(1 / (orders - 1))
    at_zero = (orders - 1) * (nats - epsilon) - np.log(orders)  # ln(1 - 1/c) is minus the epsilon of the order c
    log_delta = np.zeros_like(orders)
    for slope, intercept in zip(orders - 1, at_zero, strict=True):
        np.minimum(log_delta, intercept - slope * epsilon, out=log_delta)
    delta: Floats = np.minimum(np.exp(log_delta), np.sqrt(-np.expm1(-np.min(nats))))
    return delta


def log_inverse_gamma(mean: float, shape: float) -> float:
    """Compute y = ln(1/gamma) of the truncated negative binomial distribution, rounded up.

    The mean is h (exp(y) - 1) / (1 - exp(-h y)), (exp(y) - 1) / y for h = 0, and increases with y from 1 at y = 0.
    """
    log_mean = log1p(mean - 1)

    def excess(y: float) -> float:
        return _log_growth(y) - _log_growth(-shape * y) - log_mean

    # The mean is about 1 + (1 + h) y / 2 near y = 0, and for h < 1 at least exp((1 + h) y / 2).
    high = 2 * log_mean / (1 + min(shape, 0.0)) + 1
    return root(excess, 0.0, high) * (1 + ROUNDING)


def _log_growth(y: float) -> float:
    """Compute ln((exp(y) - 1) / y), 0 at y = 0; near it ln(1 + f(y) / y)."""
    if y == 0:
        return 0.0
    if y < -1:
        return log(-expm1(y) / -y)
    size = abs(y)
    grown = float(np.logaddexp(0, log_f(np.array([size]))[0] - log(size)))
    return grown if y > 0 else grown - size


def number_of_runs(mean: float, shape: float | None, uniform: float) -> int:
    """Draw the number K of runs: the smallest k with P(K > k) <= `uniform`.

    With a finite shape h and g = gamma of the mean, K is truncated negative binomial, P(K = k) proportional to
    (1 - g)^k (k + h - 1 choose k) for k = 1, 2, ...; with shape None it is Poisson, and may be 0.

    K must not be released, nor any output except the best run's (Papernot, Steinke 2022, arXiv 2110.03620,
    Definition 1).

    Args:
        mean: expected number of runs, in [1, 1e6], else an InvalidEventError is raised.
        shape: in [-0.5, 1e6], else the same, or None for Poisson.
        uniform: in (0, 1), drawn uniformly and independently of the data.
    """
    if not 1 <= mean <= MAX_MEAN or not (shape is None or MIN_SHAPE <= shape <= MAX_SHAPE):
        raise InvalidEventError(
            f"A number of runs is drawn for a mean in [1, {MAX_MEAN:g}] and a shape in [{MIN_SHAPE}, {MAX_SHAPE:g}] or "
            f"null; these are {mean:g} and {shape}."
        )
    assert 0 < uniform < 1, "both ends are excluded"
    if mean == 1 and shape is not None:
        return 1
    log_inverse = 0.0 if shape is None else log_inverse_gamma(mean, shape)

    def tail(runs: int) -> float:
        return float(scipy.special.gammainc(runs + 1, mean)) if shape is None else _tail(runs, shape, log_inverse)

    least = 0 if shape is None else 1
    if tail(least) <= uniform:
        return least
    below, above = least, 2 * max(least, 1)
    while tail(above) > uniform:
        below, above = above, 2 * above
    while above - below > 1:
        middle = (below + above) // 2
        below, above = (middle, above) if tail(middle) > uniform else (below, middle)
    return above


def _tail(runs: int, shape: float, log_inverse_gamma: float) -> float:
    """Compute P(K > runs) of the truncated negative binomial distribution.

    Without the truncation it is I(1 - g; runs + 1, h), the regularised incomplete beta function. For h < 0 that is
    continued by I(x; a, h) = I(x; a, h + 1) - x^a (1 - x)^h Gamma(a + h) / (Gamma(a) Gamma(h + 1)) (DLMF 8.17.4,
    8.17.21).
    """
    a, gamma = runs + 1, exp(-log_inverse_gamma)
    h = shape if abs(shape) >= LEAST_SHAPE else 1e-9
    kept = -expm1(-h * log_inverse_gamma)
    if h > 0:
        beyond = scipy.special.betaincc(h, a, gamma) if h >= NEAR_HALF else scipy.special.betainc(a, h, 1 - gamma)
        return float(beyond) / kept
    log_gamma = scipy.special.gammaln
    log_step = a * log1p(-gamma) - h * log_inverse_gamma + log_gamma(a + h) - log_gamma(a) - log_gamma(h + 1)
    return float(scipy.special.betaincc(h + 1, a, gamma) - exp(log_step)) / kept
