"""Planning: what would it cost, and what would fit? Each function prepares one request; no account is touched."""

from collections.abc import Sequence
from typing import Literal, TypeAlias

from epsilon_ledger._wire.estimates import (
    DeltaEstimate,
    EpsilonEstimate,
    LaplaceEstimate,
    NoiseMultiplierEstimate,
    SamplingProbabilityEstimate,
    StepsEstimate,
    Trajectory,
)
from epsilon_ledger._wire.events import Event, EventCount
from epsilon_ledger._wire.models import NeighboringRelation, PrivacyFilter
from epsilon_ledger._wire.requests import Call, post

Batches: TypeAlias = Literal["poisson", "fixed", "shuffled"]


def epsilon(
    events: Sequence[EventCount],
    *,
    delta: float,
    neighboring_relation: NeighboringRelation | None = None,
    population_size: int | None = None,
    batches: Batches | None = None,
) -> Call[EpsilonEstimate]:
    """Compute what events would cost together.

    Args:
        events: events with their counts, fixed in advance, at most 1,000.
        delta: in [1e-30, 0.5).
        neighboring_relation: which two data sets are neighbours; the ledger's default otherwise.
        population_size: number of privacy units, if known; a delta of 1/size or more gets a warning.
        batches: how they are really drawn; other than Poisson's get a warning.

    Returns:
        The epsilon, `math.inf` if it has no finite bound, with the ledger's warnings.

    Raises:
        LedgerError: the events are not supported, or no answer came.
    """
    body = {"events": events, "delta": delta} | _setting(neighboring_relation, population_size, batches)
    return Call(post("v1/accounting/epsilon", body), EpsilonEstimate)


def delta(
    events: Sequence[EventCount],
    *,
    epsilon: float,
    neighboring_relation: NeighboringRelation | None = None,
    population_size: int | None = None,
    batches: Batches | None = None,
) -> Call[DeltaEstimate]:
    """Compute the delta of events at an epsilon.

    Args:
        events: as for `epsilon`.
        epsilon: in [0, 1e4].
        neighboring_relation: as for `epsilon`.
        population_size: as for `epsilon`.
        batches: as for `epsilon`.

    Returns:
        The delta; 1 if nothing is proven at this epsilon.

    Raises:
        LedgerError: the events are not supported, or no answer came.
    """
    body = {"events": events, "epsilon": epsilon} | _setting(neighboring_relation, population_size, batches)
    return Call(post("v1/accounting/delta", body), DeltaEstimate)


def trajectory(
    events: Sequence[EventCount],
    *,
    delta: float,
    max_points: int | None = None,
    neighboring_relation: NeighboringRelation | None = None,
    population_size: int | None = None,
    batches: Batches | None = None,
) -> Call[Trajectory]:
    """Compute what events would have cost after each of their steps.

    Args:
        events: as for `epsilon`, in order.
        delta: as for `epsilon`.
        max_points: in 1 ... 2000; the ledger's default is 200.
        neighboring_relation: as for `epsilon`.
        population_size: as for `epsilon`.
        batches: as for `epsilon`.

    Returns:
        The first step, the last, and some spread evenly between them.

    Raises:
        LedgerError: the events are not supported, or no answer came.
    """
    body = {"events": events, "delta": delta, "max_points": max_points}
    return Call(
        post("v1/accounting/trajectory", body | _setting(neighboring_relation, population_size, batches)), Trajectory
    )


def noise_multiplier(  # noqa: PLR0913 - the members of the request, by name
    event: Event,
    *,
    count: int,
    epsilon: float,
    delta: float,
    other_events: Sequence[EventCount] | None = None,
    privacy_filter: PrivacyFilter | None = None,
    neighboring_relation: NeighboringRelation | None = None,
    population_size: int | None = None,
    batches: Batches | None = None,
) -> Call[NoiseMultiplierEstimate]:
    """Find the least noise with which a number of steps fits into an epsilon.

    Args:
        event: one step; the noise multiplier that it has does not matter.
        count: how many of them, in 1 ... 1e9.
        epsilon: what must not be passed, in (0, 1e4].
        delta: at this delta, in [1e-30, 0.5).
        other_events: what else is planned.
        privacy_filter: by which filter; declared by default, which presumes that all is fixed in advance.
        neighboring_relation: as for `epsilon`.
        population_size: as for `epsilon`.
        batches: as for `epsilon`.

    Returns:
        The noise multiplier, six digits, rounded up.

    Raises:
        LedgerError: the event is not supported, or no answer came.
    """
    body = {"event": event, "count": count, "epsilon": epsilon, "delta": delta, "other_events": other_events}
    setting = _setting(neighboring_relation, population_size, batches)
    return Call(
        post("v1/accounting/noise-multiplier", body | {"filter": privacy_filter} | setting), NoiseMultiplierEstimate
    )


def sampling_probability(  # noqa: PLR0913 - the members of the request, by name
    event: Event,
    *,
    count: int,
    epsilon: float,
    delta: float,
    other_events: Sequence[EventCount] | None = None,
    privacy_filter: PrivacyFilter | None = None,
    neighboring_relation: NeighboringRelation | None = None,
    population_size: int | None = None,
    batches: Batches | None = None,
) -> Call[SamplingProbabilityEstimate]:
    """Find the largest sampling probability with which a number of steps fits into an epsilon.

    Args:
        event: one step; the sampling probability that it has does not matter.
        count: as for `noise_multiplier`.
        epsilon: as for `noise_multiplier`.
        delta: as for `noise_multiplier`.
        other_events: as for `noise_multiplier`.
        privacy_filter: as for `noise_multiplier`.
        neighboring_relation: as for `epsilon`.
        population_size: as for `epsilon`.
        batches: as for `epsilon`.

    Returns:
        The sampling probability, six digits, rounded down.

    Raises:
        LedgerError: the event is not supported, or no answer came.
    """
    body = {"event": event, "count": count, "epsilon": epsilon, "delta": delta, "other_events": other_events}
    setting = _setting(neighboring_relation, population_size, batches)
    return Call(
        post("v1/accounting/sampling-probability", body | {"filter": privacy_filter} | setting),
        SamplingProbabilityEstimate,
    )


def steps(  # noqa: PLR0913 - the members of the request, by name
    event: Event,
    *,
    epsilon: float,
    delta: float,
    steps_per_epoch: int | None = None,
    other_events: Sequence[EventCount] | None = None,
    privacy_filter: PrivacyFilter | None = None,
    neighboring_relation: NeighboringRelation | None = None,
    population_size: int | None = None,
    batches: Batches | None = None,
) -> Call[StepsEstimate]:
    """Find the most steps, and the most whole epochs, that fit into an epsilon.

    Args:
        event: one step.
        epsilon: as for `noise_multiplier`.
        delta: as for `noise_multiplier`.
        steps_per_epoch: how many steps an epoch has, if epochs are asked for.
        other_events: as for `noise_multiplier`.
        privacy_filter: as for `noise_multiplier`.
        neighboring_relation: as for `epsilon`.
        population_size: as for `epsilon`.
        batches: as for `epsilon`.

    Returns:
        The most that do not pass it; one more would.

    Raises:
        LedgerError: the event is not supported, or no answer came.
    """
    body = {
        "event": event,
        "epsilon": epsilon,
        "delta": delta,
        "steps_per_epoch": steps_per_epoch,
        "other_events": other_events,
    }
    setting = _setting(neighboring_relation, population_size, batches)
    return Call(post("v1/accounting/steps", body | {"filter": privacy_filter} | setting), StepsEstimate)


def laplace(
    *,
    l1_sensitivity: float,
    scale: float | None = None,
    bound: float | None = None,
    probability: float | None = None,
    releases: int | None = None,
    delta: float | None = None,
) -> Call[LaplaceEstimate]:
    """Compute how large Laplace noise is and what it costs, from its scale or from a bound that it keeps.

    Args:
        l1_sensitivity: how far two inputs' outputs may lie apart, summed over the coordinates: 2 for vectors of
            probabilities, not 1.
        scale: b, where the density falls like exp(-|x| / b); in place of `bound`.
        bound: of the noise's absolute value in one coordinate, to be kept with `probability`.
        probability: in (0, 1); the ledger's default is 0.9.
        releases: about the same unit; 1 by default.
        delta: for the Rényi bound over all releases.

    Returns:
        Scale, bound and epsilons.

    Raises:
        LedgerError: scale and bound are both given or both missing, or no answer came.
    """
    body = {
        "l1_sensitivity": l1_sensitivity,
        "scale": scale,
        "bound": bound,
        "probability": probability,
        "releases": releases,
        "delta": delta,
    }
    return Call(post("v1/accounting/laplace", body), LaplaceEstimate)


def _setting(
    relation: NeighboringRelation | None, population_size: int | None, batches: Batches | None
) -> dict[str, object]:
    return {"neighboring_relation": relation, "population_size": population_size, "batches": batches}
