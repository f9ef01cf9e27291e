"""What a refusal says."""

from math import inf
from typing import Any

from app.ledger.admission import Refusal


def facts_of(refusal: Refusal) -> dict[str, Any]:
    """A refusal's numbers, as they are stored and answered.

    Args:
        refusal: of steps, or of a plan.

    Returns:
        JSON members; a number that would be infinite is null, with a flag beside it.
    """
    limit = refusal.binding.limit
    assert limit is not None, "only a limit refuses"
    return {
        **finite(epsilon=refusal.epsilon, epsilon_requested=refusal.epsilon_requested),
        "epsilon_limit": limit.epsilon,
        "delta": limit.delta,
        "order": refusal.order,
        **finite(spent=refusal.spent, held=refusal.held, requested=refusal.requested),
        "limit": refusal.limit,
        "delta_requested": refusal.delta_requested,
        "delta_left": refusal.delta_left,
        "max_count_that_fits": refusal.max_count_that_fits,
        "noise_multiplier_that_fits": refusal.noise_multiplier_that_fits,
    }


def finite(**numbers: float) -> dict[str, float | bool | None]:
    """Numbers as JSON has them, which knows no infinity.

    Args:
        **numbers: by name.

    Returns:
        Each number, or null if it is infinite, and beside it whether it is.
    """
    members: dict[str, float | bool | None] = {}
    for name, number in numbers.items():
        members[name] = None if number == inf else number
        members[f"{name}_infinite"] = number == inf
    return members
