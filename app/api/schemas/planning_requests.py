"""Request schemas of stateless planning."""

from typing import Annotated

from pydantic import Field, model_validator

from app.accounting.events import DpEvent, NeighboringRelation
from app.api.schemas.common import Body, Count, Delta, Relation
from app.api.schemas.events import EventCounts, SentEvent, step_events_of
from app.ledger.step_events import StepEvent
from app.planning.assumptions import Batches, PlanAssumptions
from app.planning.calibration import CalibrationGoal
from app.planning.costs import LaplaceNoise


class PlanAssumptionsBody(Body):
    """Common assumptions of a plan."""

    neighboring_relation: Relation = NeighboringRelation.ADD_OR_REMOVE_ONE
    population_size: int | None = Field(
        default=None,
        ge=1,
        le=1_000_000_000_000,
        description="Number of privacy units, if known: a delta that is not below 1/size gets a warning.",
    )
    batches: Annotated[Batches, Field(strict=False)] = Field(
        default=Batches.POISSON,
        description="How the trainer draws its batches. `fixed` and `shuffled` get a warning with `poisson_sampled` "
        "events.",
    )

    def setting(self) -> PlanAssumptions:
        """Convert to the domain."""
        return PlanAssumptions(self.neighboring_relation, self.population_size, self.batches)


class PlanBody(PlanAssumptionsBody):
    """A plan, fixed in advance."""

    events: EventCounts = Field(min_length=1, description="At most 1,000.")

    def steps(self) -> tuple[StepEvent, ...]:
        """Convert to the domain.

        Raises:
            PlanTooExpensiveError: pricing it exceeds the work limit of a request.
        """
        return step_events_of(self.events)


class ComputeEpsilon(PlanBody):
    """A plan and a delta."""

    delta: Delta


class ComputeDelta(PlanBody):
    """A plan and an epsilon."""

    epsilon: float = Field(ge=0, le=10_000)


class ComputeEpsilonTrajectory(PlanBody):
    """A plan, its delta and a number of points."""

    delta: Delta
    max_points: int = Field(default=32, ge=1, le=2000)


class CalibrationTarget(PlanAssumptionsBody):
    """A repeated event and its target: the limit of an account for all of it."""

    event: SentEvent
    epsilon: float = Field(gt=0, le=10_000, description="Of the limit.")
    delta: Delta = Field(description="Of the limit.")
    other_events: EventCounts = Field(default=[], description="Other planned events; at most 1,000.")

    def asked(self) -> tuple[DpEvent, CalibrationGoal]:
        """Convert to the event and the goal.

        Raises:
            PlanTooExpensiveError: pricing the events exceeds the work limit of a request.
        """
        other_events = step_events_of(self.other_events)
        goal = CalibrationGoal(self.epsilon, self.delta, other_events, self.setting())
        return self.event.domain, goal


class RepeatedEventTarget(CalibrationTarget):
    """An event, the number of its repetitions, and its target."""

    count: Count

    def question(self) -> tuple[DpEvent, int, CalibrationGoal]:
        """Build the planner's arguments; raises as `asked`."""
        event, goal = self.asked()
        return event, self.count, goal


class FindNoiseMultiplier(RepeatedEventTarget):
    """An event and its target; its own noise multiplier is ignored."""


class FindSamplingProbability(RepeatedEventTarget):
    """An event and its target; its own sampling probability is ignored."""


class FindMaxSteps(CalibrationTarget):
    """An event and its target."""

    steps_per_epoch: Count | None = None

    def question(self) -> tuple[DpEvent, CalibrationGoal, int | None]:
        """Build the planner's arguments; raises as `asked`."""
        return (*self.asked(), self.steps_per_epoch)


class ComputeLaplaceCost(Body):
    """Laplace noise in every coordinate, by its `scale`, or by a `bound` kept with a `probability`."""

    scale: float | None = Field(default=None, ge=1e-12, le=1e12, description="b; instead of `bound`")
    bound: float | None = Field(
        default=None, ge=1e-12, le=1e12, description="of the noise's absolute value in one coordinate"
    )
    probability: float = Field(default=0.9, ge=1e-12, le=1 - 1e-12, description="that the noise is below the bound")
    l1_sensitivity: float = Field(
        ge=1e-12,
        le=1e12,
        description="Maximum L1 distance between the outputs of two inputs: 2 for vectors of probabilities, not 1.",
    )
    releases: Count = Field(default=1, description="about the same unit")
    delta: Delta | None = Field(default=None, description="at which the epsilon of all releases may be below their sum")

    @model_validator(mode="after")
    def _scale_or_bound(self) -> "ComputeLaplaceCost":
        if (self.scale is None) == (self.bound is None):
            raise ValueError("send either `scale` or `bound`; the other follows from it and `probability`")
        return self

    def noise(self) -> LaplaceNoise:
        """Convert to the domain."""
        return LaplaceNoise(self.probability, self.l1_sensitivity, self.scale, self.bound)
