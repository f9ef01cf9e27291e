"""A plan as somebody sketches it, with a slider for each number: what it costs by every reading, and what would fit."""

from dataclasses import dataclass, replace
from functools import lru_cache
from math import isfinite
from typing import Final

from app.accounting.calibration.trajectory import TrajectoryPoint
from app.accounting.events import (
    MAX_NOISE_MULTIPLIER,
    MIN_NOISE_MULTIPLIER,
    DpEvent,
    Gaussian,
    NeighboringRelation,
    PoissonSampled,
    SampledWithoutReplacement,
)
from app.ledger.accounts import StepEvent
from app.ledger.filters import FilterKind
from app.service.planning.assumptions import PlanAssumptions
from app.service.planning.calibration import CalibrationGoal, Solution, Steps, most_steps, smallest_noise
from app.service.planning.costs import PlanCost, plan_epsilon, plan_trajectory

OTHER_NOISES: Final = (0.75, 1.0, 1.5, 2.0)
"""Times the noise of the sketch: the curves that are drawn beside each other."""

POINTS: Final = 60
"""Of a curve: as many as can be told apart on a small screen, and a few milliseconds."""

REMEMBERED: Final = 128
"""Sketches; each takes some ten kilobytes. Who slides back and forth, or polls, asks the same again."""


@dataclass(frozen=True, slots=True)
class PlanDraft:
    """DP-SGD in five numbers, and the limit that it should keep.

    Args:
        noise: noise multiplier.
        probability: of each record to be in a batch.
        steps: how many.
        epsilon: of the limit.
        delta: of the limit.
        relation: which data sets are neighbours.
        batch: size of a batch, if that is known.
        size: of the data set, if that is known.
    """

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
        """What holds for all of it."""
        return PlanAssumptions(self.relation, self.size)

    def event(self, noise: float | None = None) -> DpEvent | None:
        """One step of it, or the same with another noise; None: nothing is proven of such a step under its relation.

        Under `replace_one` a batch has a fixed size, since no bound for Poisson samples holds there.
        """
        released = Gaussian(self.noise if noise is None else noise)
        if self.probability == 1:
            return released
        if self.relation is not NeighboringRelation.REPLACE_ONE:
            return PoissonSampled(self.probability, released)
        if self.batch is None or self.size is None:
            return None
        return SampledWithoutReplacement(self.size, self.batch, released)


@dataclass(frozen=True, slots=True)
class Curve:
    """How a plan's epsilon grows with one noise multiplier."""

    noise: float
    points: tuple[TrajectoryPoint, ...]


@dataclass(frozen=True, slots=True)
class Estimate:
    """What a sketch costs, and what would fit.

    Args:
        sketch: as asked.
        event: one step of it; None: nothing is proven of it, and the answers below are empty.
        costs: by relation; None where nothing is proven.
        noise: the least with which an adaptive account of that limit admits all steps.
        most: the most steps that it admits with the sketch's noise.
        curves: epsilon over steps, for several noises; declared in advance.
    """

    sketch: PlanDraft
    event: DpEvent | None
    costs: dict[NeighboringRelation, PlanCost | None]
    noise: Solution | None = None
    most: Steps | None = None
    curves: tuple[Curve, ...] = ()

    @property
    def cost(self) -> PlanCost | None:
        """By the sketch's own relation."""
        return self.costs[self.sketch.relation]

    @property
    def limit_needed(self) -> float | None:
        """The smallest limit of an adaptive account that admits all of it; None: nothing is proven."""
        if self.cost is None:
            return None
        return next(each.value for each in self.cost.accountants if each.name == "adaptive")

    @property
    def fits(self) -> bool:
        """Whether an empty adaptive account of that limit admits all of it."""
        return self.limit_needed is not None and self.limit_needed <= self.sketch.epsilon


@lru_cache(maxsize=REMEMBERED)
def estimate(sketch: PlanDraft) -> Estimate:
    """Compute what a sketch costs, and what would fit.

    Args:
        sketch: within the bounds of its events.

    Returns:
        The estimate; it holds whoever asks, and whenever.
    """
    event = sketch.event()
    costs = {relation: _cost(replace(sketch, relation=relation)) for relation in NeighboringRelation}
    if event is None:
        return Estimate(sketch, None, costs)
    goal = CalibrationGoal(sketch.epsilon, sketch.delta, FilterKind.ADAPTIVE, (), sketch.setting)
    noise = smallest_noise(event, sketch.steps, goal)
    return Estimate(sketch, event, costs, noise, most_steps(event, goal), tuple(_curves(sketch)))


def _curves(sketch: PlanDraft) -> list[Curve]:
    """Epsilon over the steps of a sketch, for its own noise and some others, the least first."""
    noises = {
        min(max(float(f"{factor * sketch.noise:.4g}"), MIN_NOISE_MULTIPLIER), MAX_NOISE_MULTIPLIER)
        if factor != 1
        else sketch.noise
        for factor in OTHER_NOISES
    }
    found = []
    for noise in sorted(noises):
        event = sketch.event(noise)
        assert event is not None, "its step has a bound with any noise"
        way = plan_trajectory((StepEvent(event, sketch.steps),), sketch.delta, POINTS, sketch.setting)
        found.append(Curve(noise, tuple(point for point in way.points if isfinite(point.epsilon))))
    return found


def _cost(sketch: PlanDraft) -> PlanCost | None:
    event = sketch.event()
    if event is None:
        return None
    return plan_epsilon((StepEvent(event, sketch.steps),), sketch.delta, sketch.setting)
