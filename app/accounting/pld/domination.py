"""Which mechanisms are post-processings of which others, and so are dominated by them.

A pair (P, Q) dominates (P', Q') if a randomized function that does not depend on the data turns P into P' and Q into
Q'. Every rule here names that function.
"""

from collections import Counter
from typing import Final, NamedTuple

from app.accounting.events import DpEvent, NeighboringRelation
from app.accounting.formulas.gaussian_mixture import Mixture
from app.accounting.pld.discrete_gaussian import DiscreteGaussianPair
from app.accounting.pld.discrete_laplace import DiscreteLaplacePair
from app.accounting.pld.events import dominating_pairs, leaves
from app.accounting.pld.gaussian_mixture import CasesPair, GaussianMixturePair, ReplacedMixturePair
from app.accounting.pld.pairs import BoundedRangePair, FinitePair, GaussianPair, LaplacePair, Pair, SampledPair

SUMMED: Final = 2.0**-50
"""Relative error allowed for a sum of probabilities."""


class Mechanism(NamedTuple):
    """The dominating pair of one mechanism in each direction of neighbours."""

    removal: Pair
    addition: Pair


def mechanisms(event: DpEvent, relation: NeighboringRelation) -> Counter[Mechanism]:
    """Find the mechanisms, with counts, that compose an event; none if it shows nothing.

    Raises:
        UnsupportedEventError: no pair is proven for this event under this relation.
    """
    found = Counter[Mechanism]()
    for leaf, count in leaves({event: 1}, relation).items():
        both = dominating_pairs(leaf, relation)
        if both.removal:
            [removal], [addition] = both.removal, both.addition
            found[Mechanism(removal, addition)] += count
    return found


def dominates(stronger: Mechanism, weaker: Mechanism) -> bool:
    """Check whether one mechanism is known to dominate another in both directions."""
    return _dominates(stronger.removal, weaker.removal) and _dominates(stronger.addition, weaker.addition)


def _dominates(pair: Pair, other: Pair) -> bool:
    """Check whether a pair is known to dominate another.

    - Normal distributions with less noise, mixed or not: add noise. Mixed ones whose means are at least as likely to be
      large: each draw moves as far or farther (`app.accounting.formulas.gaussian_mixture`).
    - Laplace distributions with less noise: likewise, for with a < b, Laplace noise of scale b is that of scale a plus
      an independent variable that is 0 with probability a^2 / b^2, and else Laplace noise of scale b (the ratio of the
      characteristic functions).
    - Discrete Gaussians of one sigma, or discrete Laplace distributions of one parameter, that move less: their
      trade-off function is larger (`DiscreteGaussianPair`), so there is a function that makes them of the other two
      (Blackwell's theorem; Dong, Roth, Su 2022, section 2).
    - Discrete Laplace noise with a smaller parameter: add independent noise. With p = e^-c < r = e^-d, the quotient of
      the generating functions has the factors (1 - p x) / (1 - r x) and that of 1 / x, whose coefficients are positive.
    - A smaller range of losses: mechanisms of the smaller range are some of those of the larger one.
    - Two exchanged outputs with more likely ones: flip the output with some probability. Where a further output says
      nothing, and is rarer: also replace the others by it with some probability.
    - Cases with the same probabilities, each of which dominates the other's: the case is shown.
    - A pair on samples with more of the data: with probability q' / q keep the output, else draw one from Q, so that
      (1 - q) Q + q P becomes (1 - q') Q + q' P, and Q stays. What is done to P and Q is done to their mixtures. If a
      record is replaced, draw from the output without either.
    """
    match pair, other:
        case (GaussianPair(z), GaussianPair(w)) | (LaplacePair(z), LaplacePair(w)):
            found = z <= w
        case DiscreteGaussianPair(), DiscreteGaussianPair():
            found = pair.sigma == other.sigma and pair.shift >= other.shift
        case DiscreteLaplacePair(), DiscreteLaplacePair():
            found = pair.noise_parameter >= other.noise_parameter and pair.shift >= other.shift
        case BoundedRangePair(), BoundedRangePair():
            found = pair.epsilon >= other.epsilon
        case FinitePair(), FinitePair() if pair != other:
            found = is_exchanged(pair) and is_exchanged(other) and common(pair) <= common(other)
            found = found and pair.p[-1] / pair.p[0] >= other.p[-1] / other.p[0]
        case SampledPair(), SampledPair():
            less = pair.removes == other.removes and pair.sampling_probability >= other.sampling_probability
            found = less and _dominates(pair.pair, other.pair)
        case GaussianMixturePair(one, first), GaussianMixturePair(two, second):
            found = first == second and _is_farther(one, two)
        case CasesPair(), CasesPair():
            found = pair.shares == other.shares and all(map(_dominates, pair.pairs, other.pairs))
        case ReplacedMixturePair(one), ReplacedMixturePair(two):
            found = _is_farther(one, two)
        case _:
            found = pair == other
    return found


def _is_farther(one: Mixture, other: Mixture) -> bool:
    """Check whether a mixture of the same sizes has less noise, and at least the other's probability to reach each."""
    if one.sizes != other.sizes or one.noise_multiplier > other.noise_multiplier:
        return False
    if one.shares == other.shares:
        return True
    pairs = zip(one.reached, other.reached, strict=True)
    return all(reached * (1 - SUMMED) >= less for reached, less in pairs)


def is_exchanged(pair: FinitePair) -> bool:
    """Check for two outputs whose probabilities are exchanged, and at most one that says nothing."""
    return len(pair.p) <= 3 and pair.p == pair.q[::-1]  # noqa: PLR2004 - as `FinitePair.exchanged` makes them


def common(pair: FinitePair) -> float:
    """Get the probability of the output that says nothing."""
    return sum(pair.p[1:-1])
