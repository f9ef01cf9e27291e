"""What a refusal says."""

from typing import Any

from app.ledger.admission import Refusal
from app.service.numbers import finite


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
