"""Estimates for interactive plans: costs by every method, and parameters that fit."""

from collections.abc import Iterator
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
from app.planning.assumptions import ByPlan, PlanAssumptions
from app.planning.calibration import CalibrationGoal, Solution, Steps, most_steps, smallest_noise
from app.planning.costs import PlanCost, plan_epsilon
from app.planning.trajectories import epsilons_at, trajectory_at

OTHER_NOISES: Final = (0.75, 1.5, 2.0)
"""Factors of the draft's noise for other curves, which have half of the points."""

POINTS: Final = 13
"""Points of the draft's curves, at most: dense where they are steep, so that the lines between them look smooth."""

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
    """Numbers over steps, for a noise multiplier: pairs of a step and an epsilon."""

    noise: float
    points: tuple[tuple[int, float], ...]


@dataclass(frozen=True, slots=True)
class Estimate:
    """Costs of a draft, and parameters that fit its limit.

    Args:
        event: of one step.
        costs: by relation.
        noise: minimum noise with which an account admits all steps.
        most: maximum number of steps with the draft's noise.
        epsilons: of the draft over its steps.
        limits: needed by the steps so far, if the account declares them.
        others: epsilons over steps for other noise multipliers.
    """

    sketch: PlanDraft
    event: DpEvent
    costs: dict[NeighboringRelation, PlanCost]
    noise: Solution
    most: Steps
    epsilons: Curve
    limits: Curve
    others: tuple[Curve, ...]

    @property
    def cost(self) -> PlanCost:
        """Cost under the draft's own relation."""
        return self.costs[self.sketch.relation]

    @property
    def limit_needed(self) -> ByPlan[float]:
        """Epsilon of the minimum limit of an account for the plan."""
        assert self.cost.limit_needed is not None, "only a delta at epsilon 0 has no limit"
        return self.cost.limit_needed

    @property
    def fits(self) -> bool:
        """Whether an empty account with the draft's limit admits the whole plan, which it declares."""
        return self.limit_needed.with_plan <= self.sketch.epsilon


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
    last = POINTS - 1
    places = sorted({1 + (sketch.steps - 1) * place**2 // last**2 for place in range(POINTS)})
    with bounded():
        points = trajectory_at(places, (StepEvent(event, sketch.steps),), sketch.delta, sketch.setting).points
    epsilons = Curve(sketch.noise, tuple((point.step, point.epsilon) for point in points))
    limits = Curve(sketch.noise, tuple((point.step, point.limit_needed_with_plan) for point in points))
    return Estimate(sketch, event, costs, noise, most, epsilons, limits, tuple(_others(sketch, places)))


def _others(sketch: PlanDraft, places: list[int]) -> Iterator[Curve]:
    """Compute the curves of other noises, the smallest first."""
    half = places[::-2][::-1]
    noises = {
        min(max(float(f"{each * sketch.noise:.4g}"), MIN_NOISE_MULTIPLIER), MAX_NOISE_MULTIPLIER)
        for each in OTHER_NOISES
    }
    for noise in sorted(noises - {sketch.noise}):
        steps = (StepEvent(sketch.event(noise), sketch.steps),)
        with bounded():
            epsilons = epsilons_at(half, steps, sketch.delta, sketch.setting)
        yield Curve(noise, tuple(zip(half, epsilons, strict=True)))


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
