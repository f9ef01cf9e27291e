"""What stands for planned mechanisms: with a margin for parameters that differ in the last place, and few of many.

`0.1 * 3`, a float32 and `nextafter(1.7, 0)` are the number that somebody meant. Charges count as sent; what is
planned counts as a little more, so that it covers them.
"""

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import replace
from math import expm1, inf, isinf, log, log1p
from typing import Final

import numpy as np

from app.accounting.formulas.gaussian_mixture import Mixture
from app.accounting.formulas.numerics import log1p_u
from app.accounting.pld.discrete_laplace import DiscreteLaplacePair
from app.accounting.pld.domination import Mechanism, common, dominates, is_exchanged
from app.accounting.pld.gaussian_mixture import CasesPair, GaussianMixturePair, ReplacedMixturePair
from app.accounting.pld.merging import dominating_classes
from app.accounting.pld.pairs import BoundedRangePair, FinitePair, GaussianPair, LaplacePair, Pair, SampledPair

MARGIN: Final = 2.0**-22
"""Relative difference of parameters up to which a planned mechanism covers another: twice that of float32."""

LARGEST_PROBABILITY: Final = 1 - 2.0**-53

LOGARITHM: Final = 2.0**-50
"""Error allowed for the logarithm of a quotient of probabilities."""


def stand_ins(planned: Iterable[tuple[Mapping[Mechanism, int], int]]) -> dict[Mechanism, Mechanism]:
    """Find for each planned mechanism the one that stands for it: with its margin and, of many, that of its class.

    Args:
        planned: mechanisms with counts, and the number of their repetitions.

    Raises:
        UnsupportedEventError: there are too many different mechanisms.
    """
    widened = dict[Mechanism, Mechanism]()
    sides = Counter[Pair](), Counter[Pair]()
    for found, count in planned:
        for mechanism, number in found.items():
            wide = widened.setdefault(mechanism, with_margin(mechanism))
            for side, pair in zip(sides, wide, strict=True):
                side[pair] += number * count
    removal, addition = (dominating_classes(side, planned=True) for side in sides)
    return {
        each: Mechanism(removal.get(wide.removal, wide.removal), addition.get(wide.addition, wide.addition))
        for each, wide in widened.items()
    }


def with_margin(mechanism: Mechanism) -> Mechanism:
    """Take a mechanism that dominates all whose parameters differ by at most MARGIN, where a rule of domination does.

    Noise is smaller by MARGIN, samples and pure epsilons are larger. Sigma of a discrete Gaussian stays, as no rule
    compares two of them, and so do the probabilities of cases.
    """
    wide = Mechanism(*map(_with_margin, mechanism))
    return wide if dominates(wide, mechanism) else mechanism  # rounding may be more than the margin of a tiny epsilon


def is_near(planned: Mechanism, other: Mechanism) -> bool:
    """Check whether a planned mechanism, which has its margin, was meant to be another one."""
    return dominates(planned, other) and dominates(with_margin(with_margin(other)), planned)


def _with_margin(pair: Pair) -> Pair:
    wide = pair
    match pair:
        case GaussianPair(z) | LaplacePair(z):
            wide = replace(pair, noise_multiplier=z * (1 - MARGIN))
        case DiscreteLaplacePair(c):
            wide = replace(pair, noise_parameter=c * (1 + MARGIN))
        case BoundedRangePair(epsilon):
            wide = BoundedRangePair(epsilon * (1 + MARGIN))
        case FinitePair() if is_exchanged(pair) and 0 < pair.p[0] < pair.p[-1]:
            wide = FinitePair.exchanged(log(pair.p[-1] / pair.p[0]) * (1 + MARGIN), common(pair) * (1 - MARGIN))
        case SampledPair(q, inner, removes):
            wide = SampledPair(min(q * (1 + MARGIN), LARGEST_PROBABILITY), _with_margin(inner), removes)
        case GaussianMixturePair(mixture, removes):
            wide = GaussianMixturePair(_wider(mixture), removes)
        case ReplacedMixturePair(mixture):
            wide = ReplacedMixturePair(_wider(mixture))
        case CasesPair(shares, pairs):
            wide = CasesPair(shares, tuple(map(_with_margin, pairs)))
        case _:
            pass
    return wide


def _wider(mixture: Mixture) -> Mixture:
    """Take less noise, and let every size be reached with a larger probability, as by a sample of more of the data.

    Of n records of a group, k are on the sample with a probability that grows at most as its k-th power.
    """
    less = replace(mixture, noise_multiplier=mixture.noise_multiplier * (1 - MARGIN))
    more = [each * (1 + MARGIN) ** place for place, each in enumerate(mixture.reached, 1)]
    shares = less.with_reached(more)
    return shares if min(shares.shares) > 0 else less


def largest_loss(mechanism: Mechanism) -> float:
    """Compute the largest privacy loss of a mechanism in both directions, in nats; infinite where it has no bound."""
    return max(map(_largest_loss, mechanism))


def _largest_loss(pair: Pair) -> float:
    found = inf
    match pair:
        case LaplacePair(z):
            found = 1 / z
        case DiscreteLaplacePair(c, shift):
            found = c * shift
        case BoundedRangePair(epsilon):
            found = epsilon
        case FinitePair(p, q):
            found = max(log(one / other) if other else inf for one, other in zip(p, q, strict=True) if one) + LOGARITHM
        case SampledPair(q, inner, removes):
            loss = _largest_loss(inner)
            if not removes:
                found = -log1p(q * expm1(-loss))
            elif not isinf(loss):
                found = float(log1p_u(q, np.array([loss]))[0])
        case _:
            pass
    return found
