"""Dominating pairs of events, in each direction of neighbours."""

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import singledispatch
from math import fsum, log, log1p, sqrt
from typing import Final, Self

from app.accounting.base_rdp import gaussian_noise, sensitivity
from app.accounting.errors import UnsupportedEventError
from app.accounting.events import (
    AdaptiveClipping,
    Composed,
    Decay,
    DpEvent,
    EpsilonDelta,
    Exponential,
    Gaussian,
    GroupPrivacy,
    Laplace,
    NeighboringRelation,
    PoissonSampled,
    RandomizedResponse,
    SampledWithoutReplacement,
    SelfComposed,
    TreeAggregation,
    type_name,
)
from app.accounting.events.parameters import noise_multiplier, with_noise_multiplier
from app.accounting.formulas.amplification import sampled_epsilon_delta
from app.accounting.formulas.mechanisms import most_nodes
from app.accounting.formulas.noise_schedules import least_noise_segments
from app.accounting.group_privacy import for_group
from app.accounting.pld.pairs import BoundedRangePair, FinitePair, GaussianPair, LaplacePair, Pair, SampledPair
from app.accounting.poisson_rdp import is_amplified, strip_group

MAX_PAIRS: Final = 64
"""Different pairs of a plan, before many on samples are replaced by fewer."""

LARGEST_EPSILON: Final = 500.0
"""Pure epsilon above which the smaller probabilities would not be numbers."""


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
    if relation is NeighboringRelation.ADD_OR_REMOVE_ONE:
        raise UnsupportedEventError(f"tree_aggregation is not supported under {relation}.")
    nodes = most_nodes(event.step_counts)
    return Directions.both(GaussianPair(event.noise_multiplier / sensitivity(relation) / sqrt(nodes)))


@dominating_pairs.register
def _(event: Laplace, relation: NeighboringRelation) -> Directions:
    return Directions.both(LaplacePair(event.noise_multiplier / sensitivity(relation)))


@dominating_pairs.register
def _(event: RandomizedResponse, relation: NeighboringRelation) -> Directions:
    p, k = event.noise_parameter, event.num_buckets
    other = p / k
    kept = 1 - p + other
    if p == 1:  # every answer is drawn evenly
        return Directions({}, {})
    if relation is NeighboringRelation.REPLACE_ONE:
        return Directions.both(FinitePair.exchanged(log1p(k * (1 - p) / p), 1 - kept - other))
    if relation is NeighboringRelation.REPLACE_SPECIAL:
        answers, even = (1 - kept, kept), (1 - 1 / k, 1 / k)
        return Directions({FinitePair(answers, even): 1}, {FinitePair(even[::-1], answers[::-1]): 1})
    raise UnsupportedEventError(f"randomized_response is not supported under {relation}: every record answers.")


@dominating_pairs.register
def _(event: Exponential, relation: NeighboringRelation) -> Directions:
    del relation  # the scores' sensitivity was taken under it
    return Directions.both(BoundedRangePair(_checked(event.epsilon)))


@dominating_pairs.register
def _(event: EpsilonDelta, relation: NeighboringRelation) -> Directions:
    del relation  # stated by the caller for it
    return Directions.both(FinitePair.exchanged(_checked(event.epsilon)))


@dominating_pairs.register
def _(event: GroupPrivacy, relation: NeighboringRelation) -> Directions:
    return dominating_pairs(for_group(event.event, event.group_size), relation)


@dominating_pairs.register
def _(event: Decay, relation: NeighboringRelation) -> Directions:
    segments = least_noise_segments(
        event.mode, noise_multiplier(event.event), event.decay_rate, event.first_step, event.steps
    )
    return composed({with_noise_multiplier(event.event, z): count for z, count in segments}, relation)


@dominating_pairs.register
def _(event: Composed, relation: NeighboringRelation) -> Directions:
    return composed(Counter(event.events), relation)


@dominating_pairs.register
def _(event: SelfComposed, relation: NeighboringRelation) -> Directions:
    return composed({event.event: event.count}, relation)


@dominating_pairs.register
def _(event: SampledWithoutReplacement, relation: NeighboringRelation) -> Directions:
    if event.takes_all and relation is NeighboringRelation.REPLACE_ONE:
        return dominating_pairs(event.event, relation)
    raise UnsupportedEventError(
        f"A plan cannot hold a batch of fixed size under {relation}: no pair of distributions is proven to dominate it."
    )


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
    q = event.sampling_probability
    if isinstance(inner, EpsilonDelta) and inner.delta:  # the result is again a guarantee of this kind, on all data
        sampled, _ = sampled_epsilon_delta(q, inner.epsilon, inner.delta)
        return Directions.both(FinitePair.exchanged(_checked(sampled)))
    if isinstance(inner, Composed | SelfComposed):
        pair: Pair = GaussianPair(gaussian_noise(inner, NeighboringRelation.ADD_OR_REMOVE_ONE))
    else:
        (pair,) = dominating_pairs(inner, NeighboringRelation.ADD_OR_REMOVE_ONE).removal
    return Directions({SampledPair(q, pair, removes=True): 1}, {SampledPair(q, pair, removes=False): 1})


def composed(events: Mapping[DpEvent, int], relation: NeighboringRelation) -> Directions:
    """Find pairs that dominate the composition of events with counts; raises as `dominating_pairs` does."""
    removal, addition = Counter[Pair](), Counter[Pair]()
    for event, count in events.items():
        each = dominating_pairs(event, relation)
        for total, part in ((removal, each.removal), (addition, each.addition)):
            total.update({pair: number * count for pair, number in part.items()})
    return Directions(_merged(removal), _merged(addition))


def _merged(pairs: Mapping[Pair, int]) -> Mapping[Pair, int]:
    """Replace all Gaussians by the one that they are together, and many on samples by fewer with less noise."""
    squares = fsum(count / pair.noise_multiplier**2 for pair, count in pairs.items() if isinstance(pair, GaussianPair))
    merged = Counter[Pair]({GaussianPair(1 / sqrt(squares)): 1} if squares else {})
    for pair, count in pairs.items():
        if not isinstance(pair, GaussianPair):
            merged[pair] += count
    return merged if len(merged) <= MAX_PAIRS else _with_less_noise(merged)


def _with_less_noise(pairs: Mapping[Pair, int]) -> Mapping[Pair, int]:
    """Give each Gaussian on a sample the least noise of its class, of MAX_PAIRS classes of about equal noise.

    Adding noise is a post-processing: less noise dominates.
    """
    others = Counter[Pair]()
    sampled = dict[tuple[SampledPair, float], int]()
    for pair, count in pairs.items():
        if isinstance(pair, SampledPair) and isinstance(pair.pair, GaussianPair):
            sampled[pair, pair.pair.noise_multiplier] = count
        else:
            others[pair] += count
    noises = [noise for _, noise in sampled]
    width = log(max(noises) / min(noises)) / MAX_PAIRS if noises else 0.0
    least = dict[tuple[float, int], SampledPair]()
    classes = Counter[tuple[float, int]]()
    for (pair, noise), count in sorted(sampled.items(), key=lambda item: item[0][1]):
        key = pair.sampling_probability, min(int(log(noise / min(noises)) / width), MAX_PAIRS - 1) if width else 0
        least.setdefault(key, pair)
        classes[key] += count
    for key, count in classes.items():
        others[least[key]] += count
    if len(others) > 2 * MAX_PAIRS:
        raise UnsupportedEventError(f"A plan cannot hold more than {MAX_PAIRS} different mechanisms.")
    return others


def _checked(epsilon: float) -> float:
    if epsilon > LARGEST_EPSILON:
        raise UnsupportedEventError(f"A plan cannot hold a mechanism of epsilon above {LARGEST_EPSILON:g}.")
    return epsilon
