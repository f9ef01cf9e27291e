"""What a refusal says."""

from collections.abc import Mapping
from typing import Any

from app.ledger.admission import Refusal
from app.service.acts import Act
from app.service.numbers import finite


def not_made(what: str, subject: str, count: int, binding: str, facts: Mapping[str, Any]) -> Act:
    """What the organisation's chain keeps of something that was refused, and so has no chain of its own.

    Args:
        what: "run", "plan" or "experiment".
        subject: the id of the account beneath which it would have been made.
        count: how many steps it would have had.
        binding: the id of the account that refused it.
        facts: of the refusal, as `facts_of` gives them.
    """
    return Act(f"{what}.refused", subject, after={"count": count, "binding_account": binding, **facts})


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
