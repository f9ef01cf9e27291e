"""What a limit in rho or mu means as a risk: the best attack on whether one unit's records are in the data."""

from math import log, sqrt
from typing import Final

import numpy as np
import scipy

from app.accounting.conversion import delta_from_rdp
from app.accounting.risk import FALSE_POSITIVE_RATE, AttackRisk, Guarantee, attack_risk

SMALLEST_RHO: Final = 1e-100
"""Smaller ones are bounded as this one, so that nothing overflows."""

_ROUNDING: Final = 1 + 1e-12
"""Covers the errors of the normal distribution function."""


def gaussian_risk(mu: float) -> AttackRisk:
    """Compute the success of the best attack on N(0, 1) against N(mu, 1), which bounds every mu-Gaussian DP release.

    Source: Dong, Roth, Su 2022 (arXiv 1905.02383), equation 5: its trade-off is Phi(Phi^-1(1 - a) - mu).
    """
    normal = scipy.special.ndtr
    found = normal(mu + scipy.special.ndtri(FALSE_POSITIVE_RATE))
    return AttackRisk(min(1.0, float(scipy.special.erf(mu / sqrt(8))) * _ROUNDING), min(1.0, float(found) * _ROUNDING))


def zcdp_risk(rho: float, own_delta: float = 0.0) -> AttackRisk:
    """Bound every attack on a rho-zCDP release that fails with a probability of at most `own_delta`.

    Each epsilon has a delta by the best of many Rényi orders (Bun, Steinke 2016, arXiv 1605.02065, Lemma 3.5; Canonne,
    Kamath, Steinke 2020, arXiv 2004.00010, Proposition 12), and the attack obeys the bounds of all.
    """
    rho = max(rho, SMALLEST_RHO)
    orders = 1 + np.geomspace(1e-4, 1e4, 2001) * max(1.0, 1 / sqrt(rho))
    most = rho + 2 * sqrt(rho * log(1e6))
    epsilons = [0.0, *map(float, np.geomspace(most / 256, most, 128))]
    deltas = [delta_from_rdp(orders, rho * orders, each).delta for each in epsilons]
    pairs = zip(epsilons, deltas, strict=True)
    return attack_risk(Guarantee(epsilon, min(1.0, delta + own_delta)) for epsilon, delta in pairs)
