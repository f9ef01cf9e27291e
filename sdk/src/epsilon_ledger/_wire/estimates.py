"""Results of planning, which touches no account."""

from dataclasses import dataclass

from epsilon_ledger._wire.events import Event


@dataclass(frozen=True, slots=True)
class AccountantEpsilon:
    """Epsilon by one accounting method, `math.inf` without a bound, with its formula and source.

    `name` is for instance `plan_filter`, `rdp`, `pld` or `basic_composition`.
    """

    name: str
    epsilon: float
    optimal_order: float | None
    note: str


@dataclass(frozen=True, slots=True)
class AccountantDelta:
    """Delta by one accounting method, 1 without a bound, with its formula and source."""

    name: str
    delta: float
    optimal_order: float | None
    note: str


@dataclass(frozen=True, slots=True)
class EpsilonEstimate:
    """Epsilon of events together; `math.inf` without a finite bound.

    `epsilon` is as in-process accountants print it. `required_epsilon` is the smallest epsilon of a limit under which
    an account admits all of them, if it declares them as `planned`. `accountants` has all methods that apply.
    """

    epsilon: float
    delta: float
    required_epsilon: float
    optimal_order: float | None
    accountants: tuple[AccountantEpsilon, ...]
    warnings: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class DeltaEstimate:
    """Delta of a plan at an epsilon; 1 without a bound.

    `delta` is that of in-process accountants. `required_delta` is the smallest delta of a limit under which an account
    admits all of the plan, if it declares it as `planned`; None at epsilon 0. `accountants` has all methods that apply.
    """

    delta: float
    epsilon: float
    required_delta: float | None
    optimal_order: float | None
    accountants: tuple[AccountantDelta, ...]
    warnings: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class EpsilonTrajectoryPoint:
    """Epsilon of a plan after `step` steps; `math.inf` without a finite bound.

    `epsilon` is as in-process accountants print it. `required_epsilon` is that of a limit under which an account admits
    these steps, if it declares them as `planned`.
    """

    step: int
    epsilon: float
    required_epsilon: float


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
    optimal_order: float | None
    warnings: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class NoiseMultiplierEstimate(_CalibrationEstimate):
    """Minimum noise multiplier with which a plan fits, and its event; None if none suffices.

    The plan is declared as `planned`, or else `noise_multiplier_without_plan` is needed. `epsilon` is that of
    the whole plan, and never above the limit.
    """

    noise_multiplier: float | None
    noise_multiplier_without_plan: float | None


@dataclass(frozen=True, slots=True)
class SamplingProbabilityEstimate(_CalibrationEstimate):
    """Maximum sampling probability with which a plan fits, and its event; None if none suffices.

    The plan is declared as `planned`, or else `sampling_probability_without_plan` is needed. `epsilon` is that of
    the whole plan, and never above the limit.
    """

    sampling_probability: float | None
    sampling_probability_without_plan: float | None


@dataclass(frozen=True, slots=True)
class MaxStepsEstimate:
    """Maximum steps and whole epochs that an account admits if it declares them as `planned`.

    An account without a plan admits `steps_without_plan`. `epsilon` is that of `steps`, and never above the limit.
    """

    steps: int
    steps_without_plan: int
    epochs: int | None
    epsilon: float | None
    epsilon_after_epochs: float | None
    delta: float
    optimal_order: float | None
    warnings: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class LaplaceCost:
    """Size and cost of Laplace noise.

    Each coordinate is below `bound` with `probability`. `epsilon` is of one release, `epsilon_basic` the sum over all,
    `epsilon_rdp` the Rényi bound at the given delta.
    """

    scale: float
    bound: float
    probability: float
    noise_multiplier: float
    epsilon: float
    epsilon_basic: float
    epsilon_rdp: float | None
    optimal_order: float | None
    warnings: tuple[str, ...]
