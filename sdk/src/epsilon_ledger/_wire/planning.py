"""Requests for stateless planning."""

from collections.abc import Sequence
from typing import Literal, TypeAlias

from epsilon_ledger._wire.estimates import (
    DeltaEstimate,
    EpsilonEstimate,
    EpsilonTrajectory,
    LaplaceCost,
    MaxStepsEstimate,
    NoiseMultiplierEstimate,
    SamplingProbabilityEstimate,
)
from epsilon_ledger._wire.events import Event, EventCount
from epsilon_ledger._wire.members import wire_events
from epsilon_ledger._wire.models import NeighboringRelation
from epsilon_ledger._wire.requests import Call, post

Batches: TypeAlias = Literal["poisson", "fixed", "shuffled"]


def compute_epsilon(
    events: Sequence[EventCount],
    *,
    delta: float,
    neighboring_relation: NeighboringRelation | None = None,
    population_size: int | None = None,
    batches: Batches | None = None,
) -> Call[EpsilonEstimate]:
    """Compute the epsilon of events.

    Args:
        events: with their counts, fixed in advance, at most 1,000.
        delta: in [1e-30, 0.5).
        neighboring_relation: which data sets are neighbours; by default the ledger's.
        population_size: number of privacy units, if known; a delta of 1/size or more gets a warning.
        batches: how they are drawn; others than Poisson samples get a warning.

    Returns:
        The smallest epsilon that is proven, the limit that an account needs with and without a plan, and the ledger's
        warnings.

    Raises:
        LedgerError: the events are not supported, or no response arrived.
    """
    body = {"events": wire_events(events), "delta": delta} | _assumptions(
        neighboring_relation, population_size, batches
    )
    return Call(post("v1/accounting/epsilon", body), EpsilonEstimate)


def compute_delta(
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
        The smallest delta that is proven, and that of the limit that an account needs; 1 without a bound.

    Raises:
        LedgerError: the events are not supported, or no response arrived.
    """
    body = {"events": wire_events(events), "epsilon": epsilon} | _assumptions(
        neighboring_relation, population_size, batches
    )
    return Call(post("v1/accounting/delta", body), DeltaEstimate)


def compute_epsilon_trajectory(
    events: Sequence[EventCount],
    *,
    delta: float,
    max_points: int | None = None,
    neighboring_relation: NeighboringRelation | None = None,
    population_size: int | None = None,
    batches: Batches | None = None,
) -> Call[EpsilonTrajectory]:
    """Compute the epsilon of events after their steps.

    Args:
        events: as for `epsilon`, in order.
        delta: as for `epsilon`.
        max_points: in 1 ... 2000; by default 32, up to which each point is computed by itself.
        neighboring_relation: as for `epsilon`.
        population_size: as for `epsilon`.
        batches: as for `epsilon`.

    Returns:
        The epsilon, and the limit that an account with a plan needs, at the first step, the last, and evenly spread
        ones between them.

    Raises:
        LedgerError: the events are not supported, or no response arrived.
    """
    body = {"events": wire_events(events), "delta": delta, "max_points": max_points}
    return Call(
        post("v1/accounting/trajectory", body | _assumptions(neighboring_relation, population_size, batches)),
        EpsilonTrajectory,
    )


def find_noise_multiplier(  # noqa: PLR0913 - the members of the request, by name
    event: Event,
    *,
    count: int,
    epsilon: float,
    delta: float,
    other_events: Sequence[EventCount] | None = None,
    neighboring_relation: NeighboringRelation | None = None,
    population_size: int | None = None,
    batches: Batches | None = None,
) -> Call[NoiseMultiplierEstimate]:
    """Find the minimum noise with which an account admits steps, with and without a plan.

    Args:
        event: of one step; its noise multiplier is ignored.
        count: number of steps, in 1 ... 1e9.
        epsilon: of the account's limit, in (0, 1e4].
        delta: of the limit, in [1e-30, 0.5).
        other_events: other planned events, which come first.
        neighboring_relation: as for `epsilon`.
        population_size: as for `epsilon`.
        batches: as for `epsilon`.

    Returns:
        The noise multipliers, six digits, rounded up.

    Raises:
        LedgerError: the event is not supported, or no response arrived.
    """
    body = {
        "event": event,
        "count": count,
        "epsilon": epsilon,
        "delta": delta,
        "other_events": _wire_other(other_events),
    }
    assumptions = _assumptions(neighboring_relation, population_size, batches)
    return Call(post("v1/accounting/noise-multiplier", body | assumptions), NoiseMultiplierEstimate)


def find_sampling_probability(  # noqa: PLR0913 - the members of the request, by name
    event: Event,
    *,
    count: int,
    epsilon: float,
    delta: float,
    other_events: Sequence[EventCount] | None = None,
    neighboring_relation: NeighboringRelation | None = None,
    population_size: int | None = None,
    batches: Batches | None = None,
) -> Call[SamplingProbabilityEstimate]:
    """Find the maximum sampling probability with which an account admits steps, with and without a plan.

    Args:
        event: of one step; its sampling probability is ignored.
        count: as for `noise_multiplier`.
        epsilon: as for `noise_multiplier`.
        delta: as for `noise_multiplier`.
        other_events: as for `noise_multiplier`.
        neighboring_relation: as for `epsilon`.
        population_size: as for `epsilon`.
        batches: as for `epsilon`.

    Returns:
        The sampling probabilities, six digits, rounded down.

    Raises:
        LedgerError: the event is not supported, or no response arrived.
    """
    body = {
        "event": event,
        "count": count,
        "epsilon": epsilon,
        "delta": delta,
        "other_events": _wire_other(other_events),
    }
    assumptions = _assumptions(neighboring_relation, population_size, batches)
    return Call(
        post("v1/accounting/sampling-probability", body | assumptions),
        SamplingProbabilityEstimate,
    )


def find_max_steps(  # noqa: PLR0913 - the members of the request, by name
    event: Event,
    *,
    epsilon: float,
    delta: float,
    steps_per_epoch: int | None = None,
    other_events: Sequence[EventCount] | None = None,
    neighboring_relation: NeighboringRelation | None = None,
    population_size: int | None = None,
    batches: Batches | None = None,
) -> Call[MaxStepsEstimate]:
    """Find the maximum number of steps that an account admits, with and without a plan, and of whole epochs.

    Args:
        event: of one step.
        epsilon: as for `noise_multiplier`.
        delta: as for `noise_multiplier`.
        steps_per_epoch: steps of an epoch, to get epochs.
        other_events: as for `noise_multiplier`.
        neighboring_relation: as for `epsilon`.
        population_size: as for `epsilon`.
        batches: as for `epsilon`.

    Returns:
        The maximum; an account with this limit refuses one step more.

    Raises:
        LedgerError: the event is not supported, or no response arrived.
    """
    body = {
        "event": event,
        "epsilon": epsilon,
        "delta": delta,
        "steps_per_epoch": steps_per_epoch,
        "other_events": _wire_other(other_events),
    }
    assumptions = _assumptions(neighboring_relation, population_size, batches)
    return Call(post("v1/accounting/steps", body | assumptions), MaxStepsEstimate)


def compute_laplace_cost(
    *,
    l1_sensitivity: float,
    scale: float | None = None,
    bound: float | None = None,
    probability: float | None = None,
    releases: int | None = None,
    delta: float | None = None,
) -> Call[LaplaceCost]:
    """Compute the size and cost of Laplace noise from its scale or a bound.

    Args:
        l1_sensitivity: maximum L1 distance between the outputs of two inputs: 2 for vectors of probabilities, not 1.
        scale: b of the density exp(-|x| / b), instead of `bound`.
        bound: of the absolute noise in one coordinate, kept with `probability`.
        probability: in (0, 1); by default 0.9.
        releases: about the same unit; by default 1.
        delta: at which the epsilon of all releases may be below their sum.

    Returns:
        Scale, bound and epsilons.

    Raises:
        LedgerError: both or neither of scale and bound are given, or no response arrived.
    """
    body = {
        "l1_sensitivity": l1_sensitivity,
        "scale": scale,
        "bound": bound,
        "probability": probability,
        "releases": releases,
        "delta": delta,
    }
    return Call(post("v1/accounting/laplace", body), LaplaceCost)


def _wire_other(events: Sequence[EventCount] | None) -> list[EventCount] | None:
    return None if events is None else wire_events(events, "other_events")


def _assumptions(
    relation: NeighboringRelation | None, population_size: int | None, batches: Batches | None
) -> dict[str, object]:
    return {"neighboring_relation": relation, "population_size": population_size, "batches": batches}
