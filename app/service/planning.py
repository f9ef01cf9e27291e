"""Stateless answers: what a plan would cost."""

from dataclasses import dataclass

from app.accounting.conversion import epsilon_from_rdp
from app.accounting.events import NeighboringRelation
from app.accounting.orders import GRID_VERSION, orders
from app.accounting.rdp import event_curve
from app.ledger.accounts import StepEvent, zero_curve

VACUOUS_EPSILON = 20.0
"""Above this, e^epsilon is over 4.8e8: the guarantee says next to nothing."""


@dataclass(frozen=True, slots=True)
class PlanCost:
    """What a plan costs if it is fixed in advance.

    Args:
        epsilon: in nats; infinite if every order is exhausted.
        delta: as asked.
        optimal_order: where the bound is smallest; None where nothing or everything is lost.
        warnings: what a careful reader would want to know.
    """

    epsilon: float
    delta: float
    optimal_order: float | None
    warnings: tuple[str, ...]


def plan_epsilon(steps: tuple[StepEvent, ...], delta: float, relation: NeighboringRelation) -> PlanCost:
    """The epsilon of a plan.

    Args:
        steps: the plan, at least one event.
        delta: in [1e-30, 0.5).
        relation: the neighboring relation.

    Returns:
        Epsilon at the full delta of the best order: valid for a plan that is fixed in advance.

    Raises:
        UnsupportedEventError: an event has no sound bound under the relation.
    """
    total = zero_curve()
    for step in steps:
        total = total + event_curve(step.event, relation, GRID_VERSION).times(step.count)
    grid = orders(GRID_VERSION)
    best = epsilon_from_rdp(grid, total.nats(), delta)
    if best.epsilon == float("inf"):
        return PlanCost(best.epsilon, delta, None, ("Every order is exhausted: this plan protects nobody.",))
    warnings = []
    if best.epsilon > VACUOUS_EPSILON:
        warnings.append(f"An epsilon above {VACUOUS_EPSILON:g} is vacuous: it protects next to nobody.")
    if best.order in {grid[0], grid[-1]}:
        warnings.append(
            f"The optimal order {best.order:g} is at the edge of the grid ({grid[0]:g} to {grid[-1]:g}): "
            "the true epsilon may be smaller."
        )
    return PlanCost(best.epsilon, delta, best.order, tuple(warnings))
