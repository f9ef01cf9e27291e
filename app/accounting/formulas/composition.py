"""Composition theorems for equal releases that are each (epsilon, delta)-DP: basic, advanced and optimal.

They know of a release only its epsilon and delta, and so prove less than Rényi curves or privacy loss distributions.
They are what textbooks teach, and stand here to be compared.

Everywhere `epsilons` and `slacks` are (n,), for n ways to divide the total delta: epsilon of one release, in nats, and
the delta that is left for the composition; `count` is the number of releases.
"""

from math import inf, log, sqrt
from typing import Final

import numpy as np
import scipy

from app.accounting.curves import Floats

TAIL_ERROR: Final = 1e-9
"""Relative error allowed for a binomial tail, by which deltas are rounded up."""

MAX_STEP: Final = 600.0
"""Epsilon of a release above which advanced composition proves nothing that a number could hold."""

HALVINGS: Final = 64
"""The last interval of the bisection is below the spacing of numbers."""


def textbook_gaussian_epsilon(mu: float, delta: float) -> float:
    """Compute the textbook's epsilon of one Gaussian release: mu sqrt(2 ln(1.25 / delta)).

    It is proven for epsilon below 1 only, and infinite elsewhere. `mu` is sensitivity over standard deviation.

    Source: Dwork & Roth 2014, Theorem A.1.
    """
    epsilon = mu * sqrt(max(0.0, 2 * log(1.25 / delta)))
    return epsilon if epsilon < 1 else inf


def advanced_epsilons(epsilons: Floats, count: int, slacks: Floats) -> Floats:
    """Compute epsilon sqrt(2 k ln(1 / slack)) + k epsilon (exp(epsilon) - 1).

    Source: Dwork, Rothblum, Vadhan 2010; Dwork & Roth 2014, Theorem 3.20.
    """
    gain = np.where(epsilons <= MAX_STEP, count * epsilons * np.expm1(np.minimum(epsilons, MAX_STEP)), inf)
    totals: Floats = epsilons * np.sqrt(-2 * count * np.log(slacks)) + gain
    return totals


def optimal_epsilons(epsilons: Floats, count: int, slacks: Floats) -> Floats:
    """Compute the smallest epsilons that k releases are proven to have, whatever else they are.

    The worst releases are randomized responses. The loss of k of them is (2 B - k) epsilon for a binomial B, so that
    delta at e is P(B > b) - exp(e) P'(B > b), b = (e / epsilon + k) / 2, with the probability of a 1 exchanged in P'.

    Source: Kairouz, Oh, Viswanath 2015 (arXiv 1311.0776), Theorem 3.3.
    """
    low, high = np.zeros_like(epsilons), count * epsilons
    for _ in range(HALVINGS):
        middle = (low + high) / 2
        fits = _optimal_deltas(middle, epsilons, count) <= slacks
        low, high = np.where(fits, low, middle), np.where(fits, middle, high)
    return high


def _optimal_deltas(totals: Floats, epsilons: Floats, count: int) -> Floats:
    """Compute the deltas at `totals`, rounded up."""
    ratio = np.divide(totals, epsilons, out=np.zeros_like(totals), where=epsilons > 0)
    most = np.clip(np.floor((ratio + count) / 2), 0, count)
    one = scipy.special.bdtrc(most, count, scipy.special.expit(epsilons))
    other = scipy.special.bdtrc(most, count, scipy.special.expit(-epsilons))
    log_other = np.log(other, out=np.full_like(other, -np.inf), where=other > 0)
    return one * (1 + TAIL_ERROR) - np.exp(np.minimum(totals + log_other, 0.0)) * (1 - TAIL_ERROR)
