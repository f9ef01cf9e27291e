"""The exact privacy curve of unsampled Gaussian noise, rounded up and without cancellation.

Gaussian mechanisms that were fixed in advance compose to one whose neighbouring outputs are normal with standard
deviation 1 and means mu apart, mu^2 = sum of (sensitivity / noise's standard deviation)^2. With x = epsilon/mu - mu/2
and y = epsilon/mu + mu/2, its delta is Phi(-x) - e^epsilon Phi(-y), and since e^epsilon phi(y) = phi(x) that is
phi(x) (m(x) - m(y)) with Mills' ratio m(t) = Phi(-t) / phi(t) = integral over v > 0 of exp(-t v - v^2 / 2).

Source: Balle & Wang 2018 (arXiv 1805.06530), Theorem 8; composition: Dong, Roth, Su 2019 (arXiv 1905.02383),
Corollary 3.3.
"""

from math import exp, inf, log, nextafter, pi, sqrt
from typing import Final

import numpy as np
import scipy

from app.accounting.formulas.numerics import root

ROUNDING: Final = 2.0**-50
"""Relative error allowed for each number in a logarithm of delta: 8 roundings; there are at most 4."""

DIRECT_MU: Final = 1.0
"""From here on m(x) - m(y) may be subtracted, since m(y) is at most x / (x + mu) of m(x); below, it is integrated."""

SMALLEST_MU: Final = 1e-80
"""Smaller mu are rounded up to this: the integral does not underflow, and delta stays below 1e-80."""

_T: Final = np.arange(-4.5, 4.75, 1 / 16)
NODES: Final = np.exp(_T - np.exp(-_T))
WEIGHTS: Final = (1 + np.exp(-_T)) * NODES / 16
"""The trapezoid rule after v = exp(t - exp(-t)), which falls double-exponentially towards 0 (Takahasi & Mori 1974)."""


def gaussian_delta(mu: float, epsilon: float) -> float:
    """Compute the exact delta, rounded up, of Gaussian mechanisms fixed in advance.

    `mu` is the root of the sum of (sensitivity / standard deviation)^2; delta is 0 only if `mu` is 0.
    """
    if mu == 0:
        return 0.0
    log_delta = min(_log_delta(max(mu, SMALLEST_MU), epsilon), 0.0)
    return min(1.0, nextafter(exp(log_delta) * (1 + ROUNDING + abs(log_delta) * 2.0**-52), inf))


def gaussian_epsilon(mu: float, delta: float) -> float:
    """Compute the exact epsilon, rounded up, of Gaussian mechanisms fixed in advance.

    `mu` is as for `gaussian_delta`.
    """
    target = log(delta) * (1 + ROUNDING)
    if mu == 0 or _log_delta(max(mu, SMALLEST_MU), 0.0) <= target:
        return 0.0
    # P(loss > epsilon) bounds delta, and the loss is normal with mean mu^2 / 2 and standard deviation mu.
    above = (mu * mu / 2 + mu * sqrt(-2 * log(delta))) * (1 + 1e-9)
    found = root(lambda epsilon: _log_delta(mu, epsilon) - target, 0.0, above, xtol=above * 1e-16, rtol=1e-15)
    step = max(found, mu) * ROUNDING
    while _log_delta(mu, found) > target:
        found += step
        step *= 2
    return found


def _log_delta(mu: float, epsilon: float) -> float:
    """Compute ln delta plus an upper bound on its rounding errors."""
    middle, half = epsilon / mu, mu / 2
    x, y = middle - half, middle + half
    # x is known to within ROUNDING of its two parts, and |d ln delta / dx| is at most |x| + 1.
    error = ROUNDING * ((middle + half) * (abs(x) + 1) + 1)
    erfcx = scipy.special.erfcx
    if mu >= DIRECT_MU and x <= 0:
        return log(float(scipy.special.ndtr(-x)) - exp(-x * x / 2) * float(erfcx(y / sqrt(2))) / 2) + error
    log_density = -x * x / 2 - log(2 * pi) / 2
    if mu >= DIRECT_MU:
        return log_density + log(sqrt(pi / 2) * float(erfcx(x / sqrt(2)) - erfcx(y / sqrt(2)))) + error
    largest = 1 / max(x, 1.0)
    v = NODES * largest
    integral = float(np.sum(WEIGHTS * np.exp(-x * v - v * v / 2) * -np.expm1(-mu * v))) * largest
    return log_density + log(integral) + error
