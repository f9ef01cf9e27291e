"""Estimate the time of computing the masses of a pair on a lattice."""

from typing import Final

from app.accounting.pld.discrete_gaussian import REACH, SUMMED, DiscreteGaussianPair
from app.accounting.pld.gaussian_mixture import CasesPair, GaussianMixturePair, ReplacedMixturePair
from app.accounting.pld.pairs import Pair, SampledPair

ROW, ROW_PLACE = 80, 0.15
"""Microseconds for a row, and for each of its places."""

NESTED: Final = 0.07
"""Microseconds for a place and a pair within another one."""

MIXED: Final = 0.35
"""Microseconds for a place and a distance of a mixture: up to 18 rounds of Newton's method were counted."""

MIRRORED: Final = 0.45
"""The same of a mixture and its mirror image."""

SUMMED_MASS: Final = 0.02
"""Microseconds for a mass of a discrete Gaussian."""


def row_work(pair: Pair, places: int) -> float:
    """Estimate an upper bound, in microseconds, on the work of a pair's masses on a lattice of so many places."""
    return ROW + ROW_PLACE * places + _tails_work(pair, places)


def _tails_work(pair: Pair, places: int) -> float:
    """Estimate what the tails of a pair take beyond those of a Gaussian."""
    match pair:
        case SampledPair():
            return NESTED * places + _tails_work(pair.pair, places)
        case CasesPair():
            return sum(NESTED * places + _tails_work(each, places) for each in pair.pairs)
        case GaussianMixturePair():
            return MIXED * places * len(pair.mixture.sizes)
        case ReplacedMixturePair():
            return MIRRORED * places * len(pair.mixture.sizes)
        case DiscreteGaussianPair() if pair.sigma < SUMMED:
            return SUMMED_MASS * REACH * pair.sigma
        case _:
            return 0.0
