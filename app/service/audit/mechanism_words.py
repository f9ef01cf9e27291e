"""Mechanisms in words for a reader who is no engineer."""

from collections.abc import Iterable
from typing import Final

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
    NoOp,
    PermuteAndFlip,
    PoissonSampled,
    RandomizedResponse,
    RepeatAndSelect,
    SampledWithoutReplacement,
    SampledWithReplacement,
    SelfComposed,
    TreeAggregation,
    TruncatedPoissonSampled,
    Zcdp,
    mechanisms_in,
    type_name,
)
from app.ledger.wording import joined

_NOISE: Final = "a result with random noise ({} distribution)"
_STATED: Final = "a release whose guarantee its author states"

_WORDS: Final[dict[type[DpEvent], str]] = {
    Gaussian: _NOISE.format("Gaussian"),
    DiscreteGaussian: _NOISE.format("discrete Gaussian"),
    Laplace: _NOISE.format("Laplace"),
    DiscreteLaplace: _NOISE.format("discrete Laplace"),
    MixtureOfGaussians: _NOISE.format("Gaussian"),
    TreeAggregation: "running totals with random noise (Gaussian distribution)",
    AdaptiveClipping: "a result with random noise (Gaussian distribution), and a noisy count that sets its bound",
    RandomizedResponse: "answers of which some were replaced at random",
    Exponential: "a choice made at random, better ones more often",
    PermuteAndFlip: "a choice made at random, better ones more often",
    Zcdp: _STATED,
    EpsilonDelta: _STATED,
    NoOp: "nothing",
}
_SAMPLED: Final = (PoissonSampled, TruncatedPoissonSampled, SampledWithoutReplacement, SampledWithReplacement)


def describe_mechanism(event: DpEvent) -> str:
    """Describe what one release of an event is."""
    match event:
        case RepeatAndSelect():
            text = f"the best of several trials, each {describe_mechanism(event.event)}"
        case Composed() | SelfComposed():
            text = f"several results together: {_together(mechanisms_in(event))}"
        case GroupPrivacy() | Decay():
            text = describe_mechanism(event.event)
        case _ if isinstance(event, _SAMPLED):
            text = f"{describe_mechanism(event.event)}, computed on a random sample of the records"
        case _:
            text = _WORDS.get(type(event), type_name(event).replace("_", " "))
    return text


def _together(events: Iterable[DpEvent]) -> str:
    return joined(dict.fromkeys(map(describe_mechanism, events)))
