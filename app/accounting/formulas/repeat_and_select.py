"""Rényi divergence of a sweep that releases only its best run."""

from math import expm1, inf, isfinite, log, log1p

import numpy as np
from numpy.typing import NDArray

from app.accounting.errors import InvalidEventError
from app.accounting.formulas.numerics import log_f, root

ROUNDING = 1e-13
"""Relative increase of ln(1 / gamma), which increases the bound and covers the root's error."""


def repeat_and_select_rdp(
    nats: NDArray[np.float64], orders: NDArray[np.float64], mean: float, shape: float
) -> NDArray[np.float64]:
    """Compute the Rényi divergence of the best of K independent runs.

    With a finite shape h, K is truncated negative binomial with some parameter g, and for every order c
    R'(a) = R(a) + (1 + h) ((1 - 1/c) R(c) + ln(1/g) / c) + ln(mean) / (a - 1); the best c is used. Shape 1 is the
    geometric distribution, shape 0 the logarithmic one. With an infinite shape, K is Poisson and
    R'(a) = R(a) + mean delta + ln(mean) / (a - 1), where one run is (ln(1 + 1/(a - 1)), delta)-DP. Divergences increase
    with the order, so a bound at a higher order holds at a lower one. K is drawn independently of the data, only the
    best run's output is released, and runs differ in public choices only.

    Args:
        nats: (n_orders,) divergence of one run in nats, infinity allowed.
        orders: (n_orders,) Rényi orders above 1, increasing.
        mean: expected number of runs, at least 1, finite.
        shape: above -1, at least -0.9999 for a sharp bound; infinity is Poisson.

    Returns:
        (n_orders,) nats, under the same relation as `nats`.

    Raises:
        InvalidEventError: the mean or the shape is out of bounds.

    Source:
        Papernot, Steinke 2022 (arXiv 2110.03620), Theorem 2 (finite shape) and Theorem 6 (Poisson).
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
    from_above: NDArray[np.float64] = np.minimum.accumulate(each[::-1])[::-1]
    return from_above


def _delta_of_one_run(nats: NDArray[np.float64], orders: NDArray[np.float64]) -> NDArray[np.float64]:
    """Compute the delta of one run at epsilon = ln(1 + 1/(a - 1)) for every order a.

    Every order c proves ln(delta) = (c - 1) (R(c) - epsilon + ln(1 - 1/c)) - ln(c) (Canonne, Kamath, Steinke 2020,
    arXiv 2004.00010, Proposition 12), and total variation delta = sqrt(1 - exp(-R)) (Bretagnolle, Huber 1979).
    """
    epsilon = np.log1p(1 / (orders - 1))
    at_zero = (orders - 1) * (nats - epsilon) - np.log(orders)  # ln(1 - 1/c) is minus the epsilon of the order c
    log_delta = np.zeros_like(orders)
    for slope, intercept in zip(orders - 1, at_zero, strict=True):
        np.minimum(log_delta, intercept - slope * epsilon, out=log_delta)
    delta: NDArray[np.float64] = np.minimum(np.exp(log_delta), np.sqrt(-np.expm1(-np.min(nats))))
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
