"""Events that contain other events: compositions, groups, samples and schedules."""

from dataclasses import dataclass, replace
from typing import Annotated, Final, TypeAlias, get_args

from app.accounting.errors import InvalidEventError, UnsupportedEventError
from app.accounting.events.base import MAX_COUNT, Choice, DpEvent, Inner, Items, Real, Whole, child_events, wire_type
from app.accounting.events.mechanisms import (
    AdaptiveClipping,
    DiscreteGaussian,
    DiscreteLaplace,
    EpsilonDelta,
    Gaussian,
    Laplace,
    MixtureOfGaussians,
    NoOp,
    RandomizedResponse,
    TreeAggregation,
)
from app.accounting.formulas.noise_schedules import EXACT_STEPS, KNOTS, DecayMode, check_noise

MAX_EVENTS: Final = 1000
MAX_CURVES: Final = 1000
MAX_GROUP: Final = 1_000_000
MAX_STEPS: Final = 10_000_000
GROUP_KNOTS: Final = 8
"""Noise multipliers of a schedule of group privacy, since the mixture of each takes long."""

MIN_SHAPE: Final = -0.9999
"""Nearer to -1 the number of runs is almost constant, and its parameter loses its digits."""

SHAPE: Final = Real(
    MIN_SHAPE, 1e6, "the shape of the distribution of the number of runs, or null for Poisson's", optional=True
)
RATE: Final = "how fast the noise shrinks from step to step"


@wire_type("composed")
@dataclass(frozen=True, slots=True)
class Composed(DpEvent):
    """Several mechanisms on the same data, each possibly chosen from earlier outputs."""

    events: Annotated[tuple[DpEvent, ...], Items(Inner("is composed with the others"), MAX_EVENTS, "events")]

    def __post_init__(self) -> None:
        """Check the events and their pricing work."""
        DpEvent.__post_init__(self)
        if self.curve_count() > MAX_CURVES:
            raise InvalidEventError(
                f"The composed event takes more than {MAX_CURVES} curves: one for each event that is no wrapper, one "
                "for each noise multiplier of a decay. Send several events; repetitions cost nothing."
            )


@wire_type("self_composed")
@dataclass(frozen=True, slots=True)
class SelfComposed(DpEvent):
    """The same mechanism, repeated on the same data."""

    event: Annotated[DpEvent, Inner("is repeated")]
    count: Annotated[int, Whole(1, MAX_COUNT, "how often the event is repeated")]


@wire_type("repeat_and_select")
@dataclass(frozen=True, slots=True)
class RepeatAndSelect(DpEvent):
    """A hyper-parameter search: the best output of a random number of runs of a mechanism.

    Each run draws its hyper-parameters from the same distribution; the number of runs is drawn in advance and is not
    released. Source: Papernot, Steinke 2022 (arXiv 2110.03620), Definition 1.

    Args:
        event: one run, a bound for all hyperparameters.
        mean: expected number of runs.
        shape: of the truncated negative binomial distribution of the number of runs; 1 is geometric, 0 logarithmic,
            None Poisson, the limit at infinity.
    """

    event: Annotated[DpEvent, Inner("is one run")]
    mean: Annotated[float, Real(1, MAX_COUNT, "the expected number of runs"), "expected number of runs"]
    shape: Annotated[
        float | None,
        SHAPE,
        "of the truncated negative binomial distribution of their number: 1 geometric, 0 logarithmic; null: Poisson",
    ]

    def curve_count(self) -> int:
        """Count the run, and for a Poisson number of runs the comparison of every order with every other one."""
        return self.event.curve_count() + (1 if self.shape is not None else 8)


@wire_type("group_privacy")
@dataclass(frozen=True, slots=True)
class GroupPrivacy(DpEvent):
    """A mechanism that protects single records, where a privacy unit owns several.

    Under `replace_one` the replacing unit has equally many.
    """

    group_size: Annotated[
        int, Whole(1, MAX_GROUP, "the most records that one privacy unit owns"), "maximum number of records of one unit"
    ]
    event: Annotated[DpEvent, Inner("protects one record")]


STEP_EXAMPLE: Final = {"type": "gaussian", "noise_multiplier": 1.1}


@wire_type("poisson_sampled", {"sampling_probability": 0.01, "event": STEP_EXAMPLE})
@dataclass(frozen=True, slots=True)
class PoissonSampled(DpEvent):
    """A mechanism on a sample that includes each privacy unit independently.

    Under `replace_special` and `replace_one` the output of any mechanism but a noisy sum may reveal the sample, which
    reduces the amplification.
    """

    sampling_probability: Annotated[
        float,
        Real(0, 1, "the probability with which each record is taken, independently of the others"),
        "0: nothing is released, at no cost",
    ]
    event: Annotated[DpEvent, Inner("happened to the sample")]

    @property
    def takes_all(self) -> bool:
        """Whether the sample is all of the data."""
        return self.sampling_probability == 1


@wire_type("sampled_without_replacement")
@dataclass(frozen=True, slots=True)
class SampledWithoutReplacement(DpEvent):
    """A mechanism on a uniformly random batch of fixed size; for `replace_one`.

    The number of records to draw from is public, since neighbours replace a record.
    """

    source_dataset_size: Annotated[int, Whole(1, MAX_COUNT, "the number of records")]
    sample_size: Annotated[int, Whole(1, MAX_COUNT, "the records of one batch"), "At most the data set's size."]
    event: Annotated[DpEvent, Inner("happened to the batch")]

    def __post_init__(self) -> None:
        """Check the bounds; a batch is at most all of the data."""
        DpEvent.__post_init__(self)
        Whole(1, self.source_dataset_size, "the records of one batch").checked("sample_size", self.sample_size)

    @property
    def takes_all(self) -> bool:
        """Whether the batch is all of the data."""
        return self.sample_size == self.source_dataset_size


@wire_type(
    "truncated_poisson_sampled",
    {"source_dataset_size": 60000, "sampling_probability": 0.004, "truncated_batch_size": 320, "event": STEP_EXAMPLE},
)
@dataclass(frozen=True, slots=True)
class TruncatedPoissonSampled(DpEvent):
    """A mechanism on a Poisson sample that is cut to a largest size by an even choice.

    Args:
        source_dataset_size: number of records, of which each is taken independently.
        sampling_probability: with which each is taken.
        truncated_batch_size: the most records that are kept.
        event: what happened to the batch.
    """

    source_dataset_size: Annotated[int, Whole(1, MAX_COUNT, "the number of records")]
    sampling_probability: Annotated[
        float,
        Real(0, 1, "the probability with which each record is taken, before the batch is cut"),
        "before the batch is cut",
    ]
    truncated_batch_size: Annotated[
        int, Whole(1, MAX_COUNT, "the most records of one batch"), "The most records that are kept."
    ]
    event: Annotated[DpEvent, Inner("happened to the batch")]


@wire_type("sampled_with_replacement")
@dataclass(frozen=True, slots=True)
class SampledWithReplacement(DpEvent):
    """A mechanism on a batch, each place of which holds any of the records; for `replace_one`.

    A record that is in several places contributes several times. The number of records is public, since neighbours
    replace a record.
    """

    source_dataset_size: Annotated[int, Whole(1, MAX_COUNT, "the number of records")]
    sample_size: Annotated[int, Whole(1, MAX_COUNT, "the places of one batch"), "The places of the batch."]
    event: Annotated[DpEvent, Inner("happened to the batch")]


@wire_type(
    "decay",
    {
        "mode": "time",
        "decay_rate": 6e-4,
        "steps": 2344,
        "event": {
            "type": "poisson_sampled",
            "sampling_probability": 0.0042667,
            "event": {"type": "gaussian", "noise_multiplier": 1.5},
        },
    },
)
@dataclass(frozen=True, slots=True)
class Decay(DpEvent):
    """A mechanism at each step of a decaying noise schedule.

    With z the noise multiplier of `event` and k the decay rate, step t = 0, 1, 2, ... has z / (1 + k t) in mode "time",
    z (1 - k)^t in mode "step" and z exp(-k t) in mode "exp" (MindArmour's names).

    Args:
        mode: "time", "step" or "exp".
        decay_rate: k, at least 0, below 1 in mode "step".
        steps: number of steps.
        event: the mechanism with the noise multiplier of step 0: a gaussian event, an adaptive_clipping event with one
            noise multiplier, one of these on a Poisson sample, or the group privacy of one.
        first_step: number t of the first step.

    Raises:
        InvalidEventError: a field is out of bounds, or the noise multiplier falls below 1e-3 during the schedule.
        UnsupportedEventError: no sound bound is known for such an `event` along a schedule.
    """

    mode: Annotated[
        DecayMode,
        Choice(get_args(DecayMode), "how the noise shrinks from step to step"),
        "noise at step t: z / (1 + k t), z (1 - k)^t or z exp(-k t), with z of `event` and k `decay_rate`",
    ]
    decay_rate: Annotated[float, Real(0, 1e6, RATE), "below 1 in mode `step`"]
    steps: Annotated[int, Whole(1, MAX_STEPS, "how many steps the event covers")]
    event: Annotated[DpEvent, Inner("happens at each step")]
    first_step: Annotated[int, Whole(0, MAX_COUNT, "the number of the first of the steps")] = 0

    def __post_init__(self) -> None:
        """Check the bounds, and the noise of every step."""
        DpEvent.__post_init__(self)
        if self.mode == "step":
            Real(0, 1, RATE, below=True).checked("decay_rate", self.decay_rate)
        step = self.event.event if isinstance(self.event, GroupPrivacy) else self.event
        inner = step.event if isinstance(step, PoissonSampled) else step
        z = inner.noise_multiplier if isinstance(inner, Gaussian | AdaptiveClipping) else None
        if z is None:
            raise UnsupportedEventError(
                "A decay event may hold a gaussian event, an adaptive_clipping event with one noise_multiplier, a "
                "poisson_sampled event of one of these, or the group_privacy of one: for others no bound along a "
                "schedule is proven here."
            )
        check_noise(self.mode, z, self.decay_rate, self.first_step, self.first_step + self.steps - 1)

    def curve_count(self) -> int:
        """Count the noise multipliers that the schedule is reduced to."""
        if isinstance(self.event, GroupPrivacy):
            return min(self.steps, GROUP_KNOTS)
        return self.steps if self.steps <= EXACT_STEPS else KNOTS


Batch: TypeAlias = SampledWithoutReplacement | TruncatedPoissonSampled | SampledWithReplacement
"""Samples out of a known number of records."""

Wrapper: TypeAlias = PoissonSampled | Batch | SelfComposed | RepeatAndSelect | GroupPrivacy | Decay
"""The events that contain one other event, as their field `event`."""


NOTHING: Final = NoOp()


def without_no_ops(event: DpEvent) -> DpEvent:
    """Leave out the parts of an event that release nothing; a no_op if all of it does.

    Nothing is released by a no_op event, from an empty sample, and with a guarantee of (0, 0).
    """
    if isinstance(event, PoissonSampled | TruncatedPoissonSampled) and not event.sampling_probability:
        return NOTHING
    if isinstance(event, EpsilonDelta) and not event.epsilon and not event.delta:
        return NOTHING
    if isinstance(event, Composed):
        parts = tuple(map(without_no_ops, event.events))
        kept = tuple(part for part in parts if part != NOTHING)
        return event if kept == event.events else Composed(kept) if kept else NOTHING
    if isinstance(event, Wrapper):
        inner = without_no_ops(event.event)
        return NOTHING if inner == NOTHING else event if inner is event.event else replace(event, event=inner)
    return event


def is_noisy_sum(event: DpEvent) -> bool:
    """Check whether an event releases one noisy sum, or several Gaussian ones composed."""
    if isinstance(event, GroupPrivacy):
        return is_noisy_sum(event.event)
    return isinstance(event, Laplace | DiscreteGaussian | DiscreteLaplace | MixtureOfGaussians) or is_gaussian_sum(
        event
    )


def is_gaussian_sum(event: DpEvent) -> bool:
    """Check whether an event releases one sum with Gaussian noise, or several composed."""
    if isinstance(event, Composed | SelfComposed | GroupPrivacy):
        return all(map(is_gaussian_sum, child_events(event)))
    return isinstance(event, Gaussian | AdaptiveClipping)


def batch_in(event: DpEvent) -> Batch | None:
    """Find a sample out of a known number of records in an event, if any."""
    if isinstance(event, Batch):
        return event
    return next((found for part in child_events(event) if (found := batch_in(part)) is not None), None)


SHOWS_REMOVAL: Final = (
    *(RandomizedResponse, TreeAggregation),
    *(SampledWithoutReplacement, TruncatedPoissonSampled, SampledWithReplacement),
)
"""A missing record is visible in their output: it does not answer, shifts the steps of later records, or changes the
number of records that batches are drawn from."""


def unbounded_on_removal(event: DpEvent) -> DpEvent | None:
    """Find the first part of an event whose replace_one cost misses adding or removing a record, if any.

    A sum of clipped vectors moves by one clipping norm if a record is removed, and by up to two if it is replaced. A
    stated guarantee is trusted: the attestation of bounded removal covers it. All other events are bounded by
    monotone functions of their parts; for a Poisson sample that is the joint convexity of `replace_sampled_rdp`, with
    the output without the record on one side of the pair.
    """
    if isinstance(event, SHOWS_REMOVAL):
        return event
    return next((found for part in child_events(event) if (found := unbounded_on_removal(part)) is not None), None)
