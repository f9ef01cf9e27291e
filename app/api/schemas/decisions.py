"""Response schemas of decisions."""

from datetime import datetime
from typing import Any, Self

from pydantic import Field

from app.api.schemas.common import ExtendedNumber, Output, Page
from app.api.schemas.examples import EXAMPLE_BUDGET_ID, EXAMPLE_KEY_ID, EXAMPLE_RUN_ID, example
from app.api.schemas.steps import REFUSED_EXAMPLE, refusal_facts, refusal_text
from app.ledger.decisions import DecisionOutcome, DecisionWithPath
from app.service.json_values import json_finite

_FACTS = (
    *("detail", "epsilon", "epsilon_requested", "epsilon_limit", "delta", "rdp", "delta_requested", "delta_left"),
    *("max_count_that_fits", "noise_multiplier_that_fits", "limit_change"),
)
DECISION_EXAMPLE: dict[str, Any] = {
    "run": EXAMPLE_RUN_ID,
    "run_path": "mimic/icu-team/mortality",
    "position": 3118,
    "decision": "refused",
    "attempt": 1,
    "first_step": 3118,
    "count": 1,
    "requested_count": 1,
    "epsilon": 2.9996,
    "delta": 1e-5,
    "epsilon_limit": 3.0,
    "binding_account": EXAMPLE_BUDGET_ID,
    "binding_account_path": "mimic/icu-team",
    "refusal": {name: REFUSED_EXAMPLE[name] for name in _FACTS},
    "actor": EXAMPLE_KEY_ID,
    "request_id": "req_6f1c2d3e4f506172",
    "hash": "9f2c" * 16,
    "created_at": "2026-11-21T09:00:01Z",
}


class Decision(Output):
    """A decision on requested or reported steps."""

    model_config = example(DECISION_EXAMPLE)

    run: str
    run_path: str
    position: int = Field(description="Position among the run's decisions, from 0.")
    decision: DecisionOutcome
    attempt: int
    first_step: int
    count: int
    requested_count: int = Field(description="More than `count` if the request was truncated.")
    epsilon: ExtendedNumber = Field(description="Of the run afterwards.")
    delta: float
    epsilon_limit: float = Field(description="Of the run's limit.")
    binding_account: str = Field(description="The account with the least room, or that refused.")
    binding_account_path: str
    refusal: dict[str, Any] | None = Field(description="Of a refusal: its `detail` and numbers; else null.")
    reservation: str | None = Field(default=None, description="The reservation that the steps were taken from.")
    actor: str = Field(description="Actor of the request.")
    request_id: str | None
    hash: str = Field(description="sha256 (hex) of the decision and of the hash before it: the run's chain.")
    created_at: datetime

    @classmethod
    def of(cls, decided: DecisionWithPath) -> Self:
        """Convert from the domain."""
        decision = decided.decision
        return cls(
            run=decision.run_id,
            run_path=decided.run_path,
            position=decision.position,
            decision=decision.outcome,
            attempt=decision.attempt,
            first_step=decision.first_step,
            count=decision.step_count,
            requested_count=decision.requested_count,
            **json_finite(epsilon=decision.reading.epsilon),
            delta=decision.reading.delta,
            epsilon_limit=decision.reading.epsilon_limit,
            binding_account=decision.binding_account_id,
            binding_account_path=decision.binding_account_path,
            refusal=_refusal(decided),
            reservation=decision.reservation_id,
            actor=decision.actor.id,
            request_id=decision.actor.request_id,
            hash=decision.entry_hash.hex(),
            created_at=decision.created_at,
        )


class DecisionPage(Page[Decision]):
    """Decisions, newest first."""


def _refusal(decided: DecisionWithPath) -> dict[str, Any] | None:
    decision = decided.decision
    if decision.refusal_details is None:
        return None
    facts = refusal_facts(decision)
    return {"detail": refusal_text(facts, decision.binding_account_path, decision.step_count), **facts}
