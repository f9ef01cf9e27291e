"""Results of planning, which touches no account."""

from dataclasses import dataclass

from epsilon_ledger._wire.events import Event


@dataclass(frozen=True, slots=True)
class LimitNeeded:
    """The smallest epsilon, or delta, of the limit of an account that admits all events; `math.inf` if none does.

    `with_plan`: the account declares them as `planned`. `without_plan`: it declares nothing.
    """

    with_plan: float
    without_plan: float


@dataclass(frozen=True, slots=True)
class NumberThatFits:
    """A parameter with which an account admits all events; None if none suffices.

    `with_plan`: the account declares them as `planned`. `without_plan`: it declares nothing.
    """

    with_plan: float | None
    without_plan: float | None


@dataclass(frozen=True, slots=True)
class StepsThatFit:
    """The maximum number of steps that an account admits.

    `with_plan`: the account declares them as `planned`. `without_plan`: it declares nothing.
    """

    with_plan: int
    without_plan: int


@dataclass(frozen=True, slots=True)
class ComparedEpsilon:
    """Epsilon of another accountant, `math.inf` without a bound, with its formula and source.

    `name` is for instance `rdp`, `pld` or `basic_composition`.
    """

    name: str
    epsilon: float
    note: str


@dataclass(frozen=True, slots=True)
class ComparedDelta:
    """Delta of another accountant, 1 without a bound, with its formula and source."""

    name: str
    delta: float
    note: str


@dataclass(frozen=True, slots=True)
class EpsilonEstimate:
    """Epsilon of events that are fixed in advance; `math.inf` without a finite bound.

    `epsilon` is the smallest that is proven, by Rényi orders or the privacy loss distribution. `limit_needed` is what
    an account's limit must be for these events. `comparisons` are what other accountants print.
    """

    epsilon: float
    delta: float
    limit_needed: LimitNeeded
    comparisons: tuple[ComparedEpsilon, ...]
    warnings: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class DeltaEstimate:
    """Delta of events that are fixed in advance, at an epsilon; 1 without a bound.

    `delta` is the smallest that is proven. `limit_needed` is what the delta of an account's limit with this epsilon
    must be; None at epsilon 0. `comparisons` are what other accountants print.
    """

    delta: float
    epsilon: float
    limit_needed: LimitNeeded | None
    comparisons: tuple[ComparedDelta, ...]
    warnings: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class EpsilonTrajectoryPoint:
    """Epsilon of a plan after `step` steps; `math.inf` without a finite bound.

    `limit_needed_with_plan` is what the limit of an account must be that declares these steps as `planned`.
    """

    step: int
    epsilon: float
    limit_needed_with_plan: float


@dataclass(frozen=True, slots=True)
class EpsilonTrajectory:
    """Epsilon of a plan of `steps` steps by step."""

    points: tuple[EpsilonTrajectoryPoint, ...]
    steps: int
    delta: float
    warnings: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class _CalibrationEstimate:
    reachable: bool
    event: Event | None
    epsilon: float | None
    delta: float
    warnings: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class NoiseMultiplierEstimate(_CalibrationEstimate):
    """Minimum noise multiplier with which a plan fits.

    `event` has that of an account with a plan, and `epsilon` is that of the whole plan with it: never above the limit.
    """

    noise_multiplier: NumberThatFits


@dataclass(frozen=True, slots=True)
class SamplingProbabilityEstimate(_CalibrationEstimate):
    """Maximum sampling probability with which a plan fits.

    `event` has that of an account with a plan, and `epsilon` is that of the whole plan with it: never above the limit.
    """

    sampling_probability: NumberThatFits


@dataclass(frozen=True, slots=True)
class MaxStepsEstimate:
    """Maximum steps that an account admits, and whole epochs in those of an account with a plan.

    `epsilon` is that of the steps of an account with a plan, and never above the limit.
    """

    steps: StepsThatFit
    epochs: int | None
    epsilon: float | None
    epsilon_after_epochs: float | None
    delta: float
    warnings: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class LaplaceCost:
    """Size and cost of Laplace noise.

    Each coordinate is below `bound` with `probability`. `epsilon` is of all releases, at the given delta or
    else pure; `epsilon_per_release` is pure.
    """

    scale: float
    bound: float
    probability: float
    noise_multiplier: float
    epsilon: float
    epsilon_per_release: float
    warnings: tuple[str, ...]
