"""Estimates for interactive plans: costs by every method, and parameters that fit."""

from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Final

from app.accounting.events import (
    MAX_NOISE_MULTIPLIER,
    MIN_NOISE_MULTIPLIER,
    DpEvent,
    Gaussian,
    NeighboringRelation,
    PoissonSampled,
    SampledWithoutReplacement,
)
from app.accounting.pricing_effort import bounded
from app.ledger.step_events import StepEvent
from app.planning.assumptions import PlanAssumptions
from app.planning.calibration import CalibrationGoal, Solution, Steps, most_steps, smallest_noise
from app.planning.costs import PlanCost, plan_epsilon
from app.planning.trajectories import PlanPoint, trajectory_at

OTHER_NOISES: Final = (0.75, 1.0, 1.5, 2.0)
"""Factors of the draft's noise for the curves."""

POINTS: Final = 13
"""Points of a curve, at most: dense where it is steep, so that the lines between them look smooth."""

REMEMBERED: Final = 128
"""Cached estimates of some 10 KB each: sliders and polling repeat requests."""


@dataclass(frozen=True, slots=True)
class PlanDraft:
    """A DP-SGD plan and its limit: sampling probability of a record, and batch and data set size if known."""

    noise: float
    probability: float
    steps: int
    epsilon: float
    delta: float
    relation: NeighboringRelation = NeighboringRelation.ADD_OR_REMOVE_ONE
    batch: int | None = None
    size: int | None = None

    @property
    def setting(self) -> PlanAssumptions:
        """The plan's assumptions."""
        return PlanAssumptions(self.relation, self.size)

    def event(self, noise: float | None = None) -> DpEvent:
        """Build the event of one step; under `replace_one` batches have a fixed size if it is given."""
        released = Gaussian(self.noise if noise is None else noise)
        if self.probability == 1:
            return released
        is_fixed = self.relation is NeighboringRelation.REPLACE_ONE
        if not is_fixed or self.batch is None or self.size is None:
            return PoissonSampled(self.probability, released)
        return SampledWithoutReplacement(self.size, self.batch, released)


@dataclass(frozen=True, slots=True)
class Curve:
    """Epsilon by step for one noise multiplier, and of the limit that the steps so far need."""

    noise: float
    points: tuple[PlanPoint, ...]


@dataclass(frozen=True, slots=True)
class Estimate:
    """Costs of a draft, and parameters that fit its limit.

    Args:
        event: of one step.
        costs: by relation.
        noise: minimum noise with which an account admits all steps.
        most: maximum number of steps with the draft's noise.
        curves: epsilon by step for several noise multipliers, at the same steps.
    """

    sketch: PlanDraft
    event: DpEvent
    costs: dict[NeighboringRelation, PlanCost]
    noise: Solution
    most: Steps
    curves: tuple[Curve, ...]

    @property
    def cost(self) -> PlanCost:
        """Cost under the draft's own relation."""
        return self.costs[self.sketch.relation]

    @property
    def required_epsilon(self) -> float:
        """Minimum limit of an account that declares the plan."""
        assert self.cost.required is not None, "only a delta at epsilon 0 has no limit"
        return self.cost.required

    @property
    def required_without_plan(self) -> float:
        """Minimum limit of an account that declares no plan."""
        return next(each.value for each in self.cost.accountants if each.name == "renyi_filter")

    @property
    def is_planned(self) -> bool:
        """Whether the limit needed is that of an account that declares the plan; a plan cannot hold every event."""
        return any(each.name == "plan_filter" for each in self.cost.accountants)

    @property
    def fits(self) -> bool:
        """Whether an empty account with the draft's limit admits the whole plan, which it declares."""
        return self.required_epsilon <= self.sketch.epsilon


@lru_cache(maxsize=REMEMBERED)
def estimate(sketch: PlanDraft) -> Estimate:
    """Estimate a draft; the cached result depends on nothing else."""
    event = sketch.event()
    with bounded():  # each part takes what a request to the API may take
        costs = _costs(sketch)
    goal = CalibrationGoal(sketch.epsilon, sketch.delta, (), sketch.setting)
    with bounded():
        noise = smallest_noise(event, sketch.steps, goal)
    with bounded():
        most = most_steps(event, goal)
    return Estimate(sketch, event, costs, noise, most, tuple(_curves(sketch)))


def _curves(sketch: PlanDraft) -> list[Curve]:
    """Compute the curves of the draft's noise and of others, the smallest first."""
    noises = {
        min(max(float(f"{factor * sketch.noise:.4g}"), MIN_NOISE_MULTIPLIER), MAX_NOISE_MULTIPLIER)
        if factor != 1
        else sketch.noise
        for factor in OTHER_NOISES
    }
    last = POINTS - 1
    places = sorted({1 + (sketch.steps - 1) * place**2 // last**2 for place in range(POINTS)})
    found = []
    for noise in sorted(noises):
        event = sketch.event(noise)
        with bounded():
            way = trajectory_at(places, (StepEvent(event, sketch.steps),), sketch.delta, sketch.setting)
        found.append(Curve(noise, way.points))
    return found


def _costs(sketch: PlanDraft) -> dict[NeighboringRelation, PlanCost]:
    """Compute the costs by relation; without the record, or with an empty one for it, these steps lose the same."""
    found = {
        relation: _cost(replace(sketch, relation=relation))
        for relation in NeighboringRelation
        if relation is not NeighboringRelation.REPLACE_SPECIAL
    }
    return found | {NeighboringRelation.REPLACE_SPECIAL: found[NeighboringRelation.ADD_OR_REMOVE_ONE]}


def _cost(sketch: PlanDraft) -> PlanCost:
    return plan_epsilon((StepEvent(sketch.event(), sketch.steps),), sketch.delta, sketch.setting)
