"""Results of planning, which touches no account."""

from dataclasses import dataclass

from epsilon_ledger._wire.events import Event


@dataclass(frozen=True, slots=True)
class EpsilonEstimate:
    """Epsilon of events together; `math.inf` without a finite bound."""

    epsilon: float
    delta: float
    optimal_order: float | None
    warnings: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class DeltaEstimate:
    """Delta of a plan at an epsilon; 1 without a bound."""

    delta: float
    epsilon: float
    optimal_order: float | None
    warnings: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class EpsilonTrajectoryPoint:
    """Epsilon of a plan after `step` steps."""

    step: int
    epsilon: float


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
    """Minimum noise multiplier with which a plan fits, and its event; None if none suffices."""

    noise_multiplier: float | None


@dataclass(frozen=True, slots=True)
class SamplingProbabilityEstimate(_CalibrationEstimate):
    """Maximum sampling probability with which a plan fits, and its event; None if none suffices."""

    sampling_probability: float | None


@dataclass(frozen=True, slots=True)
class MaxStepsEstimate:
    """Maximum steps and whole epochs within an epsilon; `epsilon` is that of the steps."""

    steps: int
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
