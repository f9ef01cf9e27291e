"""Stateless planning on the wire: what is asked."""

from typing import Any, Literal

from pydantic import ConfigDict, Field, model_validator

from app.accounting.events import DpEvent, NeighboringRelation
from app.api.schemas.common import Body, Delta, Filter, Relation
from app.api.schemas.event_counts import EventCounts, step_events_of
from app.api.schemas.events import SentEvent, event_of
from app.api.schemas.examples import EXAMPLE_EVENT
from app.ledger.accounts import StepEvent
from app.ledger.filters import FilterKind
from app.service.planning.assumptions import Batches, PlanAssumptions
from app.service.planning.calibration import CalibrationGoal
from app.service.planning.laplace import LaplaceNoise

EXAMPLE_PLAN: dict[str, Any] = {"events": [{"event": EXAMPLE_EVENT, "count": 5000}]}
EXAMPLE_TARGET: dict[str, Any] = {"event": EXAMPLE_EVENT, "epsilon": 2.0, "delta": 1e-5}


class PlanAssumptionsBody(Body):
    """What holds for all of a plan."""

    neighboring_relation: Relation = "add_or_remove_one"
    population_size: int | None = Field(
        default=None,
        ge=1,
        le=1_000_000_000_000,
        description="Number of privacy units, if known: a delta that is not below 1/size gets a warning.",
    )
    batches: Literal["poisson", "fixed", "shuffled"] = Field(
        default="poisson",
        description="How the trainer really draws its batches. `fixed` and `shuffled` get a warning where "
        "`poisson_sampled` events are accounted as Poisson samples.",
    )

    def setting(self) -> PlanAssumptions:
        """The setting as the planner knows it."""
        return PlanAssumptions(
            NeighboringRelation(self.neighboring_relation), self.population_size, Batches(self.batches)
        )


class PlanBody(PlanAssumptionsBody):
    """A plan, fixed in advance."""

    events: EventCounts = Field(min_length=1, description="At most 1,000.")

    def steps(self) -> tuple[StepEvent, ...]:
        """The plan as the ledger knows it.

        Raises:
            PlanTooExpensiveError: to price it is more work than one request may make.
        """
        return step_events_of(self.events)


class ComputeEpsilon(PlanBody):
    """A plan and the delta at which its epsilon is asked for."""

    model_config = ConfigDict(json_schema_extra={"examples": [EXAMPLE_PLAN | {"delta": 1e-5}]})

    delta: Delta


class ComputeDelta(PlanBody):
    """A plan and the epsilon at which its delta is asked for."""

    model_config = ConfigDict(json_schema_extra={"examples": [EXAMPLE_PLAN | {"epsilon": 4.0}]})

    epsilon: float = Field(ge=0, le=10_000)


class ComputeEpsilonTrajectory(PlanBody):
    """A plan whose epsilon is asked for after each step."""

    model_config = ConfigDict(json_schema_extra={"examples": [EXAMPLE_PLAN | {"delta": 1e-5, "max_points": 3}]})

    delta: Delta
    max_points: int = Field(default=200, ge=1, le=2000)


class CalibrationTarget(PlanAssumptionsBody):
    """An event that is to be repeated, and what the plan must meet."""

    event: SentEvent
    epsilon: float = Field(gt=0, le=10_000)
    delta: Delta
    other_events: EventCounts = Field(default=[], description="What else is planned; at most 1,000.")
    filter: Filter = "declared"

    def asked(self) -> tuple[DpEvent, CalibrationGoal]:
        """The event that is repeated, and what it must meet, as the planner knows them.

        Raises:
            PlanTooExpensiveError: to price the events is more work than one request may make.
        """
        other_events = step_events_of(self.other_events)
        goal = CalibrationGoal(self.epsilon, self.delta, FilterKind(self.filter), other_events, self.setting())
        return event_of(self.event), goal


class FindNoiseMultiplier(CalibrationTarget):
    """An event whose noise is asked for; the noise multiplier that it has does not matter."""

    model_config = ConfigDict(json_schema_extra={"examples": [EXAMPLE_TARGET | {"count": 10_000}]})

    count: int = Field(ge=1, le=1_000_000_000)

    def question(self) -> tuple[DpEvent, int, CalibrationGoal]:
        """What the planner is asked; raises as `asked`."""
        event, goal = self.asked()
        return event, self.count, goal


class FindSamplingProbability(CalibrationTarget):
    """An event whose sampling is asked for; the sampling probability that it has does not matter."""

    model_config = ConfigDict(json_schema_extra={"examples": [EXAMPLE_TARGET | {"count": 10_000}]})

    count: int = Field(ge=1, le=1_000_000_000)

    def question(self) -> tuple[DpEvent, int, CalibrationGoal]:
        """What the planner is asked; raises as `asked`."""
        event, goal = self.asked()
        return event, self.count, goal


class FindMaxSteps(CalibrationTarget):
    """An event that is to be repeated as often as possible."""

    model_config = ConfigDict(json_schema_extra={"examples": [EXAMPLE_TARGET | {"steps_per_epoch": 100}]})

    steps_per_epoch: int | None = Field(default=None, ge=1, le=1_000_000_000)

    def question(self) -> tuple[DpEvent, CalibrationGoal, int | None]:
        """What the planner is asked; raises as `asked`."""
        return (*self.asked(), self.steps_per_epoch)


class ComputeLaplaceCost(Body):
    """Laplace noise in every coordinate, by its `scale` or by the `bound` that it keeps with a `probability`."""

    model_config = ConfigDict(
        json_schema_extra={
            "examples": [{"bound": 10.0, "probability": 0.9, "l1_sensitivity": 2, "releases": 100, "delta": 1e-5}]
        }
    )

    scale: float | None = Field(default=None, ge=1e-12, le=1e12, description="b; in place of `bound`")
    bound: float | None = Field(
        default=None, ge=1e-12, le=1e12, description="of the noise's absolute value in one coordinate"
    )
    probability: float = Field(default=0.9, ge=1e-12, le=1 - 1e-12, description="that the noise is below the bound")
    l1_sensitivity: float = Field(
        ge=1e-12,
        le=1e12,
        description="How far two inputs' outputs may lie apart, summed over the coordinates: 2 for vectors of "
        "probabilities, not 1.",
    )
    releases: int = Field(default=1, ge=1, le=1_000_000_000, description="about the same unit")
    delta: Delta | None = Field(default=None, description="for the Rényi bound, which may be below the sum")

    @model_validator(mode="after")
    def _scale_or_bound(self) -> "ComputeLaplaceCost":
        if (self.scale is None) == (self.bound is None):
            raise ValueError("send either `scale` or `bound`; the other follows from it and `probability`")
        return self

    def noise(self) -> LaplaceNoise:
        """The noise as the planner knows it."""
        return LaplaceNoise(self.probability, self.l1_sensitivity, self.scale, self.bound)
