"""Dominating pairs of events, in each direction of neighbours."""

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import singledispatch
from math import log1p, sqrt
from typing import Self

from app.accounting.base_rdp import gaussian_noise, sensitivity
from app.accounting.errors import UnsupportedEventError
from app.accounting.events import (
    AdaptiveClipping,
    Composed,
    DpEvent,
    EpsilonDelta,
    Exponential,
    Gaussian,
    Laplace,
    NeighboringRelation,
    PoissonSampled,
    RandomizedResponse,
    SelfComposed,
    TreeAggregation,
    type_name,
)
from app.accounting.pld.pairs import FinitePair, GaussianPair, LaplacePair, Pair, SampledPair
from app.accounting.poisson_rdp import is_amplified, strip_group


@dataclass(frozen=True, slots=True)
class Directions:
    """Pairs with counts whose product dominates an event.

    Args:
        removal: of the outputs with the record from those without it; under replacement, of any two neighbours.
        addition: the other way round.
    """

    removal: Mapping[Pair, int]
    addition: Mapping[Pair, int]

    @classmethod
    def both(cls, pair: Pair) -> Self:
        """Build the directions of a pair that is equal both ways."""
        return cls({pair: 1}, {pair: 1})

    def __iter__(self) -> Iterator[Mapping[Pair, int]]:
        """Iterate over the directions that differ."""
        yield self.removal
        if self.addition != self.removal:
            yield self.addition


@singledispatch
def dominating_pairs(event: DpEvent, relation: NeighboringRelation) -> Directions:
    """Find pairs that dominate an event, without a delta of its own, which is subtracted from the account's.

    Raises:
        UnsupportedEventError: no pair is proven for this event under this relation.
    """
    raise UnsupportedEventError(
        f"A plan cannot hold {type_name(event)} under {relation}: no pair of distributions is proven to dominate it. "
        "Leave it out of the plan; it is charged by its Rényi divergence."
    )


@dominating_pairs.register
def _(event: Gaussian | AdaptiveClipping, relation: NeighboringRelation) -> Directions:
    return Directions.both(GaussianPair(gaussian_noise(event, relation)))


@dominating_pairs.register
def _(event: TreeAggregation, relation: NeighboringRelation) -> Directions:
    # Each record is in one step of one tree, and in as many of its nodes as the number of steps has binary digits.
    if relation is NeighboringRelation.ADD_OR_REMOVE_ONE:
        raise UnsupportedEventError(f"tree_aggregation is not supported under {relation}.")
    depth = max(event.step_counts).bit_length()
    return Directions.both(GaussianPair(event.noise_multiplier / sensitivity(relation) / sqrt(depth)))


@dominating_pairs.register
def _(event: Laplace, relation: NeighboringRelation) -> Directions:
    return Directions.both(LaplacePair(event.noise_multiplier / sensitivity(relation)))


@dominating_pairs.register
def _(event: RandomizedResponse, relation: NeighboringRelation) -> Directions:
    p, k = event.noise_parameter, event.num_buckets
    other = p / k
    kept = 1 - p + other
    if relation is NeighboringRelation.REPLACE_ONE:
        return Directions.both(FinitePair.exchanged(log1p(k * (1 - p) / p), 1 - kept - other))
    if relation is NeighboringRelation.REPLACE_SPECIAL:
        answers, even = (1 - kept, kept), (1 - 1 / k, 1 / k)
        return Directions({FinitePair(answers, even): 1}, {FinitePair(even[::-1], answers[::-1]): 1})
    raise UnsupportedEventError(f"randomized_response is not supported under {relation}: every record answers.")


@dominating_pairs.register
def _(event: Exponential | EpsilonDelta, relation: NeighboringRelation) -> Directions:
    del relation  # stated by the caller for it
    return Directions.both(FinitePair.exchanged(event.epsilon))


@dominating_pairs.register
def _(event: Composed, relation: NeighboringRelation) -> Directions:
    parts = [dominating_pairs(part, relation) for part in event.events]
    removal, addition = Counter[Pair](), Counter[Pair]()
    for part in parts:
        removal.update(part.removal)
        addition.update(part.addition)
    return Directions(removal, addition)


@dominating_pairs.register
def _(event: SelfComposed, relation: NeighboringRelation) -> Directions:
    once = dominating_pairs(event.event, relation)
    removal, addition = (
        {pair: count * event.count for pair, count in way.items()} for way in (once.removal, once.addition)
    )
    return Directions(removal, addition)


@dominating_pairs.register
def _(event: PoissonSampled, relation: NeighboringRelation) -> Directions:
    if event.takes_all:
        return dominating_pairs(event.event, relation)
    inner = strip_group(event.event)
    if not is_amplified(inner, relation):
        raise UnsupportedEventError(
            f"A plan cannot hold a Poisson sample of {type_name(inner)} under {relation}: its output may show who was "
            "sampled, and no pair of distributions is proven to dominate it."
        )
    if isinstance(inner, Composed | SelfComposed):
        pair: Pair = GaussianPair(gaussian_noise(inner, NeighboringRelation.ADD_OR_REMOVE_ONE))
    else:
        (pair,) = dominating_pairs(inner, NeighboringRelation.ADD_OR_REMOVE_ONE).removal
    q = event.sampling_probability
    return Directions({SampledPair(q, pair, removes=True): 1}, {SampledPair(q, pair, removes=False): 1})
