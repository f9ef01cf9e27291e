"""The dominating pair of discrete Gaussian noise on sums of integers."""

from dataclasses import dataclass
from fractions import Fraction
from functools import lru_cache
from math import floor, frexp, ldexp, pi, sqrt
from typing import Final

import numpy as np
import scipy

from app.accounting.curves import Floats
from app.accounting.pld.pairs import LOSS_ERROR, ROUNDING, TAIL_ERROR, Tails

LEAST: Final = 1e-120
"""Smaller tails are rounded up to it. Then sigma may have two rounding errors: a probability is at least LEAST only up
to x^2 / (2 sigma^2) = 276.4 (noise is subgaussian), where they change it by at most 4 * 277 * 2^-53, relative."""

REACH: Final = sqrt(2 * (276.4 + 45))
"""Standard deviations up to which masses are summed; those beyond are less than 2^-64 times LEAST."""

SUMMED: Final = 2048.0
"""From this sigma on, tails are those of the normal distribution with corrections."""

FARTHEST: Final = 30.0
"""Standard deviations from which on tails are less than LEAST."""

EXACT_BITS: Final = 24
"""Bits of a factor whose product with the square of a summed integer, of less than 32 bits, is exact."""


@dataclass(frozen=True, slots=True)
class DiscreteGaussianPair:
    """Discrete Gaussians of parameter `sigma` around the integers `shift` and 0; equal in both directions.

    Their probabilities at an integer x are proportional to exp(-(x - centre)^2 / (2 sigma^2)).

    It dominates a vector of integers with such noise in every coordinate, which moves by integers whose absolute values
    sum to at most `shift`:

    - Let S(m) be the probability of at least m around 0. The likelihood ratio for a shift by s > 0 grows with x, so the
      best tests reject from a threshold on (Neyman, Pearson). As a function of the false positives, their power g_s is
      S(m - s) at S(m), for each integer m, and linear in between.
    - So g_s maps the points S(m) and the lines between them to themselves, and g_s after g_t is g_(s + t) exactly: as a
      trade-off function, the group composition. Since g_t is at least the identity, g_s grows with s.
    - Let two coordinates move, by s and t. A test with false positives alpha has power at most g_s(alpha) once the
      first has moved, and so at most g_t(g_s(alpha)) when both have (Dong, Roth, Su 2022, arXiv 1905.02383, proof of
      Theorem 2.14). This is the power of one coordinate that moves by s + t. Likewise for more.
    - Reflection turns a move by -s into one by s, and exchanges the two distributions of the pair.

    Args:
        sigma: parameter of the noise, with a relative error of at most 2^-52.
        shift: positive.
    """

    sigma: float
    shift: int

    def tails(self, losses: Floats) -> Tails:
        """Compute the tails: the loss is at most l where x is at most l sigma^2 / shift + shift / 2.

        Each is raised to LEAST, and then by LEAST. What Q has in a cell is not raised. What P has at the largest losses
        moves to infinity. At the smallest losses it may move down by at most LEAST, but as much is added at infinity.
        """
        with np.errstate(over="ignore"):  # beyond all losses that occur
            last = np.floor(losses * (self.sigma**2 / self.shift) + self.shift / 2)
        moved = last - self.shift
        p_below, p_above, q_below, q_above = (self._at_least(x) for x in (-moved, moved + 1, -last, last + 1))
        error = LOSS_ERROR * (float(np.abs(losses).max()) + (self.shift / self.sigma) ** 2 / 2)
        u = np.minimum((np.abs(last) + self.shift + 1) / self.sigma, FARTHEST)
        # Sums err by 2^-50.5 and 34 roundings; a rounding of sigma, its square or u by at most u^2 each.
        errors = np.minimum(ROUNDING * (64 + 8 * u**2), TAIL_ERROR)
        return Tails(p_below, p_above, q_below, q_above, errors, error)

    def _at_least(self, least: Floats) -> Floats:
        """Compute the probabilities S of at least (n,) integers: S(m) = 1 - S(1 - m)."""
        positive = least > 0
        far = np.where(positive, least, 1 - least)
        found = _normal_tails(self.sigma, far) if self.sigma >= SUMMED else _summed_tails(self.sigma, far)
        found = np.maximum(found, LEAST) + LEAST
        return np.where(positive, found, 1 - found)


def _summed_tails(sigma: float, least: Floats) -> Floats:
    """Look up S at (n,) positive integers."""
    sums = _sums(sigma)
    return sums[np.minimum(least, sums.size - 1).astype(np.intp)]


@lru_cache(maxsize=16)
def _sums(sigma: float) -> Floats:
    """Compute S at the integers 0, 1 ... up to REACH, and 0 for what is beyond.

    Relative error: 2^-50.5 of a mass, and a rounding for each of at most 17 levels of sums, twice. The exponent is
    x^2 times a factor of few bits, exactly, and x^2 times what is missing of 1 / (2 sigma^2).
    """
    half = 1 / (2 * Fraction(sigma) ** 2)
    part, exponent = frexp(float(half))
    coarse = ldexp(floor(ldexp(part, EXACT_BITS)), exponent - EXACT_BITS)
    squares = np.arange(floor(REACH * sigma) + 2, dtype=np.float64) ** 2
    sums = np.append(np.exp(-squares * coarse) * np.exp(-squares * float(half - Fraction(coarse))), 0.0)
    width = 1
    while width < sums.size:  # now each is the sum of the masses at `width` integers
        sums[:-width] += sums[width:].copy()
        width *= 2
    sums /= sums[0] + sums[1]
    sums.flags.writeable = False
    return sums


def _normal_tails(sigma: float, least: Floats) -> Floats:
    """Compute S at (n,) positive integers m, for sigma of at least SUMMED: the Euler-Maclaurin formula.

    The sum of f(x) = phi(x / sigma) / sigma from m on is its integral plus f(m) / 2 - f'(m) / 12 + f'''(m) / 720. What
    is left out is at most twice the integral of |f^(6)| / 30240. Relative to S, and with u = m / sigma up to 23.6, this
    is at most (u^6 + u^4) / (15120 sigma^6), or 1 / sigma^6 below u = 3: at most 2^-52. Rounding u changes S by at most
    553 * 2^-53. The sum over all integers is 1 but for exp(-2 pi^2 sigma^2).
    """
    u, h = np.minimum(least / sigma, FARTHEST), 1 / sigma
    density = np.exp(-(u**2) / 2) / sqrt(2 * pi)
    corrections = density * (h / 2 + h**2 * u / 12 - h**4 * (u**3 - 3 * u) / 720)
    found: Floats = scipy.special.ndtr(-u) + corrections
    return found
