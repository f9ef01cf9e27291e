"""What planning answers, as frozen values; no account was touched."""

from dataclasses import dataclass

from epsilon_ledger._wire.events import Event


@dataclass(frozen=True, slots=True)
class EpsilonEstimate:
    """What events cost together; `epsilon` is `math.inf` where no order of the grid is finite."""

    epsilon: float
    delta: float
    optimal_order: float | None
    warnings: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class DeltaEstimate:
    """The delta of a plan at an epsilon; 1 if nothing is proven there."""

    delta: float
    epsilon: float
    optimal_order: float | None
    warnings: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class TrajectoryPoint:
    """What a plan has cost after `step` steps."""

    step: int
    epsilon: float


@dataclass(frozen=True, slots=True)
class Trajectory:
    """What a plan of `steps` steps costs on its way."""

    points: tuple[TrajectoryPoint, ...]
    steps: int
    delta: float
    warnings: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class _Solution:
    reachable: bool
    event: Event | None
    epsilon: float | None
    delta: float
    optimal_order: float | None
    warnings: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class NoiseMultiplierEstimate(_Solution):
    """The least noise multiplier with which a plan fits, and the event with it; None if none is enough."""

    noise_multiplier: float | None


@dataclass(frozen=True, slots=True)
class SamplingProbabilityEstimate(_Solution):
    """The largest sampling probability with which a plan fits, and the event with it; None if none is small enough."""

    sampling_probability: float | None


@dataclass(frozen=True, slots=True)
class StepsEstimate:
    """The most steps, and the most whole epochs, that do not pass an epsilon; `epsilon` is that of the steps."""

    steps: int
    epochs: int | None
    epsilon: float | None
    epsilon_after_epochs: float | None
    delta: float
    optimal_order: float | None
    warnings: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class LaplaceEstimate:
    """Laplace noise of a scale: how large it is, and what it costs.

    In each coordinate it is below `bound` with `probability`. `epsilon` is that of one release, `epsilon_basic` the sum
    over all, `epsilon_rdp` the Rényi bound at the delta that was given.
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
