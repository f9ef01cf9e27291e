"""Fewer pairs that dominate many."""

from collections import Counter
from collections.abc import Hashable, Mapping
from dataclasses import dataclass, replace
from math import fsum, log, sqrt
from operator import attrgetter
from typing import Final, NamedTuple

import numpy as np

from app.accounting.curves import Floats
from app.accounting.errors import UnsupportedEventError
from app.accounting.pld.gaussian_mixture import ReplacedMixturePair
from app.accounting.pld.pairs import BoundedRangePair, FinitePair, GaussianPair, LaplacePair, Pair, SampledPair

MAX_PAIRS: Final = 160
"""Different pairs whose delta or epsilon is computed once, before many are replaced by fewer: within 1 % of epsilon."""

MAX_PLANNED: Final = 64
"""The same of an account's plan, of which deltas are computed a hundred times: within 2.2 % of epsilon."""

SQUARINGS: Final = 4
"""e^x is taken for (1 + x / 16)^16: unlike `exp` it is the same on every machine, as the classes of a plan must be."""


def merged(pairs: Mapping[Pair, int]) -> Mapping[Pair, int]:
    """Replace all Gaussians by the one that they are together, and many other pairs by fewer that dominate them."""
    squares = fsum(count / pair.noise_multiplier**2 for pair, count in pairs.items() if isinstance(pair, GaussianPair))
    merged = Counter[Pair]({GaussianPair(1 / sqrt(squares)): 1} if squares else {})
    others = {pair: count for pair, count in pairs.items() if not isinstance(pair, GaussianPair)}
    fewer = dominating_classes(others)
    for pair, count in others.items():
        merged[fewer.get(pair, pair)] += count
    return merged


def dominating_classes(pairs: Mapping[Pair, int], *, planned: bool = False) -> dict[Pair, Pair]:
    """Choose, if there are many pairs, for each that has a family the pair that stands for its class.

    It takes the largest sample of its class, and loses the most of it on that sample: both dominate. Classes are cut
    where that saves the most of what their members lose more than they would (`_loss`), until there are enough.

    Args:
        pairs: with counts, which weigh what is lost; none of 0.
        planned: whether they are of an account's plan, and fewer.

    Returns:
        Pairs that are replaced, and by which.

    Raises:
        UnsupportedEventError: there are too many pairs of too many families.
    """
    most = MAX_PLANNED if planned else MAX_PAIRS
    if len(pairs) <= most:
        return {}
    families: dict[Hashable, dict[Pair, _Place]] = {}
    for pair in pairs:
        found = _family(pair)
        if found is not None:
            families.setdefault(found[0], {})[pair] = found[1]
    alone = len(pairs) - sum(map(len, families.values()))
    classes = [_cut(tuple(each), each, pairs) for each in families.values()]
    allowed = min(most, 2 * most - alone)
    if len(classes) > allowed:
        raise UnsupportedEventError(f"A plan cannot hold more than {most} different mechanisms.")
    while len(classes) < allowed and max((each.saved for each in classes), default=0.0) > 0:
        worst = max(classes, key=lambda each: each.saved)
        classes.remove(worst)
        classes += [_cut(half, worst.places, pairs) for half in (worst.first, worst.second)]
    return {pair: each.pair for each in classes for pair in (*each.first, *each.second)}


class _Place(NamedTuple):
    """Where a pair stands in its family: one with no smaller numbers dominates it.

    Args:
        sampled: probability of a record to be in the sample.
        strength: grows with what the mechanism loses without sampling.
        variance: of its loss, about; grows with the strength.
    """

    sampled: float
    strength: float
    variance: float


def _family(pair: Pair) -> tuple[Hashable, _Place] | None:
    """Find the family of a pair, and its place there; None: it has none."""
    match pair:
        case SampledPair(q, inner, removes):
            found = _family(inner)
            return found and ((found[0], removes), found[1]._replace(sampled=q))
        case GaussianPair(z) | LaplacePair(z):
            return type(pair).__name__, _Place(1.0, -z, 1 / z**2)
        case ReplacedMixturePair(mixture) if mixture.only_share is not None:
            z = mixture.noise_multiplier / 2  # twice the distance of one that is added
            return type(pair).__name__, _Place(mixture.only_share, -z, 1 / z**2)
        case BoundedRangePair(epsilon):
            return type(pair).__name__, _Place(1.0, epsilon, epsilon**2)
        case FinitePair((_, likely), q) if pair.p == q[::-1]:
            return type(pair).__name__, _Place(1.0, likely, log(likely / q[1]) ** 2)
        case _:
            return None


@dataclass(frozen=True, slots=True, eq=False)
class _Class:
    """Pairs of one family, and where they are best cut in two.

    Args:
        pair: what stands for all of them.
        places: of all pairs of the family.
        saved: what the halves lose less than the whole, in `_loss`.
    """

    pair: Pair
    places: Mapping[Pair, _Place]
    first: tuple[Pair, ...]
    second: tuple[Pair, ...]
    saved: float


def _cut(members: tuple[Pair, ...], places: Mapping[Pair, _Place], counts: Mapping[Pair, int]) -> _Class:
    """Build the class of some pairs."""
    strongest = max(members, key=lambda each: places[each].strength)
    most = max(places[each].sampled for each in members)
    stands = strongest
    if isinstance(strongest, SampledPair):
        stands = replace(strongest, sampling_probability=most)
    elif isinstance(strongest, ReplacedMixturePair):
        stands = ReplacedMixturePair(strongest.mixture.with_reached([most]))
    best = members, members[:0], 0.0
    for by in (attrgetter("sampled", "strength"), attrgetter("strength", "sampled")):
        row = sorted(members, key=lambda each, by=by: by(places[each]))  # type: ignore[misc]
        sampled, _, variance = np.array([places[each] for each in row]).T
        weights = np.array([counts[each] for each in row], dtype=np.float64)
        below, above = (
            _totals(sampled[way], variance[way], weights[way]) for way in (slice(None), slice(None, None, -1))
        )
        halves = below[:-1] + above[-2::-1]
        if halves.size and below[-1] - halves.min() > best[2]:
            at = int(halves.argmin()) + 1
            best = tuple(row[:at]), tuple(row[at:]), float(below[-1] - halves[at - 1])
    return _Class(stands, places, *best)


def _totals(sampled: Floats, variance: Floats, weights: Floats) -> Floats:
    """Compute what each beginning of some pairs loses as one class; (n,) of (n,)."""
    most = np.maximum.accumulate
    total: Floats = np.cumsum(weights) * _loss(most(sampled), most(variance))
    return total


def _loss(sampled: Floats, variance: Floats) -> Floats:
    """Estimate what pairs lose, to compare classes: it grows with both.

    Without sampling it is the variance x of the loss. With it, about ln(1 + q^2 (e^x - 1)), the Rényi divergence of
    order 2 of Gaussian noise, in rational numbers.
    """
    grown = 1 + variance / 2**SQUARINGS
    for _ in range(SQUARINGS):
        grown = grown * grown
    chi = sampled**2 * (grown - 1)
    return np.where(sampled < 1, variance * chi / (variance + chi), variance)
