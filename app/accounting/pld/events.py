"""Dominating pairs of events, in each direction of neighbours."""

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import singledispatch
from math import log1p, sqrt
from typing import Final, Self

from app.accounting.base_rdp import gaussian_noise, laplace_noise, mixture_of, sensitivity
from app.accounting.errors import UnsupportedEventError
from app.accounting.events import (
    AdaptiveClipping,
    Composed,
    Decay,
    DiscreteGaussian,
    DiscreteLaplace,
    DpEvent,
    EpsilonDelta,
    Exponential,
    Gaussian,
    GroupPrivacy,
    Laplace,
    MixtureOfGaussians,
    NeighboringRelation,
    NoOp,
    PermuteAndFlip,
    PoissonSampled,
    RandomizedResponse,
    SampledWithoutReplacement,
    SampledWithReplacement,
    SelfComposed,
    TreeAggregation,
    TruncatedPoissonSampled,
    least_noise_events,
    type_name,
    without_no_ops,
)
from app.accounting.formulas.amplification import sampled_epsilon_delta
from app.accounting.formulas.gaussian_mixture import Mixture
from app.accounting.formulas.mechanisms import most_nodes, noise_of_pure_loss
from app.accounting.formulas.random_batches import Shares
from app.accounting.group_privacy import for_group, sampled_mixture, strip_group
from app.accounting.pld.discrete_gaussian import DiscreteGaussianPair
from app.accounting.pld.discrete_laplace import DiscreteLaplacePair
from app.accounting.pld.gaussian_mixture import CasesPair, GaussianMixturePair, ReplacedMixturePair
from app.accounting.pld.merging import merged
from app.accounting.pld.pairs import BoundedRangePair, FinitePair, GaussianPair, LaplacePair, Pair, SampledPair
from app.accounting.poisson_rdp import is_amplified

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
def _(event: NoOp, relation: NeighboringRelation) -> Directions:
    del event, relation  # nothing is released
    return Directions({}, {})


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
    return Directions.both(LaplacePair(laplace_noise(event, relation)))


@dominating_pairs.register
def _(event: DiscreteGaussian, relation: NeighboringRelation) -> Directions:
    if event.sensitivity is None:
        raise UnsupportedEventError(
            f"A plan cannot hold discrete_gaussian under {relation} without `sensitivity`. Add it, the L1 norm to "
            "which each record's integers are clipped, and divide sigma by it. Or leave the event out of the plan; it "
            "is charged by its Rényi divergence."
        )
    sigma = event.noise_multiplier * event.sensitivity
    return Directions.both(DiscreteGaussianPair(sigma, event.sensitivity * int(sensitivity(relation))))


@dominating_pairs.register
def _(event: DiscreteLaplace, relation: NeighboringRelation) -> Directions:
    return Directions.both(DiscreteLaplacePair(event.noise_parameter, event.sensitivity * int(sensitivity(relation))))


@dominating_pairs.register
def _(event: MixtureOfGaussians, relation: NeighboringRelation) -> Directions:
    mixture = mixture_of(event)
    if relation is not NeighboringRelation.REPLACE_ONE:
        return _mixed(mixture)
    if len(mixture.sizes) == 1:
        return Directions.both(GaussianPair(mixture.noise_multiplier / 2))
    return Directions.both(ReplacedMixturePair(mixture))


def _mixed(mixture: Mixture) -> Directions:
    """Build the directions of a mixture of Gaussians, which is a sampled one if there is one distance besides 0."""
    pair = GaussianPair(mixture.noise_multiplier)
    if len(mixture.sizes) == 1:
        return Directions.both(pair)
    if mixture.only_share is not None:
        return _on_sample(mixture.only_share, pair)
    return Directions({GaussianMixturePair(mixture, removes=True): 1}, {GaussianMixturePair(mixture, removes=False): 1})


def _on_sample(q: float, pair: Pair) -> Directions:
    """Build the directions of a pair that is equal both ways, on a Poisson sample."""
    return Directions({SampledPair(q, pair, removes=True): 1}, {SampledPair(q, pair, removes=False): 1})


@dominating_pairs.register
def _(event: TruncatedPoissonSampled, relation: NeighboringRelation) -> Directions:
    inner, q = strip_group(event.event), event.sampling_probability
    if relation is not NeighboringRelation.ADD_OR_REMOVE_ONE or not isinstance(inner, Gaussian | AdaptiveClipping):
        raise UnsupportedEventError(
            f"A plan cannot hold truncated_poisson_sampled of {type_name(inner)} under {relation}: no pair of "
            "distributions is proven to dominate it. Leave it out of the plan; it is charged by its Rényi divergence."
        )
    added = GaussianPair(gaussian_noise(inner, relation))
    replaced = GaussianPair(gaussian_noise(inner, NeighboringRelation.REPLACE_ONE))
    shares = Shares.of(event.source_dataset_size, q, event.truncated_batch_size)
    cases = ((shares.plain, q, added), (shares.either, q, replaced), (shares.cut, shares.kept, replaced))
    removal, addition = (
        CasesPair(
            tuple(share for share, _, _ in cases if share),
            tuple(SampledPair(taken, pair, removes) if taken < 1 else pair for share, taken, pair in cases if share),
        )
        for removes in (True, False)
    )
    return Directions({removal: 1}, {addition: 1})


@dominating_pairs.register
def _(event: RandomizedResponse, relation: NeighboringRelation) -> Directions:
    p, k = event.noise_parameter, event.num_buckets
    other = p / k
    kept = 1 - p + other
    if p == 1:  # every answer is drawn evenly
        return Directions({}, {})
    if relation is NeighboringRelation.REPLACE_ONE:
        return Directions.both(FinitePair.exchanged(log1p(k * (1 - p) / p), p - 2 * other))
    if relation is NeighboringRelation.REPLACE_SPECIAL:
        answers, even = (1 - kept, kept), (1 - 1 / k, 1 / k)
        return Directions({FinitePair(answers, even): 1}, {FinitePair(even[::-1], answers[::-1]): 1})
    raise UnsupportedEventError(f"randomized_response is not supported under {relation}: every record answers.")


@dominating_pairs.register
def _(event: Exponential, relation: NeighboringRelation) -> Directions:
    del relation  # the scores' sensitivity was taken under it
    return Directions.both(BoundedRangePair(_checked(event.epsilon)))


@dominating_pairs.register
def _(event: PermuteAndFlip, relation: NeighboringRelation) -> Directions:
    del relation  # the scores' sensitivity was taken under it
    return Directions.both(LaplacePair(noise_of_pure_loss(_checked(event.epsilon))))  # proof: `permute_and_flip_rdp`


@dominating_pairs.register
def _(event: EpsilonDelta, relation: NeighboringRelation) -> Directions:
    del relation  # stated by the caller for it
    if not event.epsilon:  # but for its delta, nothing is shown
        return Directions({}, {})
    return Directions.both(FinitePair.exchanged(_checked(event.epsilon)))


@dominating_pairs.register
def _(event: GroupPrivacy | Decay | Composed | SelfComposed, relation: NeighboringRelation) -> Directions:
    return composed({event: 1}, relation)


@dominating_pairs.register
def _(event: SampledWithoutReplacement, relation: NeighboringRelation) -> Directions:
    if _is_of_all(event, relation):
        return composed({event.event: 1}, relation)
    raise UnsupportedEventError(
        f"A plan cannot hold a batch of fixed size under {relation}: no pair of distributions is proven to dominate it."
    )


@dominating_pairs.register
def _(event: SampledWithReplacement, relation: NeighboringRelation) -> Directions:
    raise UnsupportedEventError(
        f"A plan cannot hold sampled_with_replacement of {type_name(event.event)} under {relation}: no pair of "
        "distributions is proven to dominate it. Leave it out of the plan; it is charged by its Rényi divergence."
    )


@dominating_pairs.register
def _(event: PoissonSampled, relation: NeighboringRelation) -> Directions:
    if event.takes_all:
        return composed({event.event: 1}, relation)
    inner = strip_group(event.event)
    if not is_amplified(inner, relation):
        mixture = sampled_mixture(event) if relation is NeighboringRelation.REPLACE_ONE else None
        if mixture is not None:
            return dominating_pairs(mixture, relation)
        raise UnsupportedEventError(
            f"A plan cannot hold a Poisson sample of {type_name(inner)} under {relation}: no pair of distributions "
            "is proven to dominate it. Leave it out of the plan; it is charged by its Rényi divergence."
        )
    q = event.sampling_probability
    if isinstance(inner, EpsilonDelta) and inner.delta:  # the result is again a guarantee of this kind, on all data
        sampled, _ = sampled_epsilon_delta(q, inner.epsilon, inner.delta)
        return dominating_pairs(EpsilonDelta(sampled), relation)
    if isinstance(inner, MixtureOfGaussians):
        return _mixed(mixture_of(inner, q))
    if isinstance(inner, Composed | SelfComposed):
        pair: Pair = GaussianPair(gaussian_noise(inner, NeighboringRelation.ADD_OR_REMOVE_ONE))
    else:
        (pair,) = dominating_pairs(inner, NeighboringRelation.ADD_OR_REMOVE_ONE).removal
    return _on_sample(q, pair)


def composed(events: Mapping[DpEvent, int], relation: NeighboringRelation) -> Directions:
    """Find pairs that dominate the composition of events with counts; raises as `dominating_pairs` does."""
    removal, addition = Counter[Pair](), Counter[Pair]()
    for event, count in leaves(events, relation).items():
        each = dominating_pairs(event, relation)
        for total, part in ((removal, each.removal), (addition, each.addition)):
            total.update({pair: number * count for pair, number in part.items()})
    return Directions(merged(removal), merged(addition))


def leaves(events: Mapping[DpEvent, int], relation: NeighboringRelation) -> Mapping[DpEvent, int]:
    """Replace events that are compositions by what they compose, and schedules by steps of no more noise."""
    found = Counter[DpEvent]()
    for given, count in events.items():
        event = without_no_ops(given)
        inner = _composes(event, relation)
        parts = {event: 1} if inner is None else leaves(inner, relation)
        found.update({part: number * count for part, number in parts.items()})
    return found


def _composes(event: DpEvent, relation: NeighboringRelation) -> Mapping[DpEvent, int] | None:
    """Get the events with counts that an event composes; None if it is one mechanism."""
    match event:
        case Composed():
            return Counter(event.events)
        case SelfComposed():
            return {event.event: event.count}
        case Decay():
            return dict(least_noise_events(event))
        case GroupPrivacy():
            return {for_group(event.event, event.group_size): 1}
        case PoissonSampled() | SampledWithoutReplacement() if _is_of_all(event, relation):
            return {event.event: 1}
        case _:
            return None


def _is_of_all(event: PoissonSampled | SampledWithoutReplacement, relation: NeighboringRelation) -> bool:
    """Check whether a sample is all of the data, of a size that neighbours share."""
    return event.takes_all and (isinstance(event, PoissonSampled) or relation is NeighboringRelation.REPLACE_ONE)


def _checked(epsilon: float) -> float:
    if epsilon > LARGEST_EPSILON:
        raise UnsupportedEventError(f"A plan cannot hold a mechanism of epsilon above {LARGEST_EPSILON:g}.")
    return epsilon
