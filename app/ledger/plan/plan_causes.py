"""Why a plan does not cover steps."""

from collections.abc import Sequence

from app.ledger.event_differences import PlanDifference, differing_parameters
from app.ledger.plan.plans import Plan
from app.ledger.step_events import StepEvent


def find_differences(
    plan: Plan, planned: Sequence[StepEvent], steps: Sequence[StepEvent]
) -> tuple[PlanDifference, ...]:
    """Compare the first step that a plan does not cover with the most similar planned event.

    Returns:
        At least one difference; none if the plan covers each of the steps, but has too few steps left.
    """
    sent = next((step.event for step in steps if not plan.workload.covers(step.event)), None)
    if sent is None:
        return ()
    found = [tuple(differing_parameters(each.event, sent)) for each in planned]
    return min(found, key=lambda each: (any(one.parameter == "type" for one in each), len(each)))
