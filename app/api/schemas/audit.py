"""Response schemas of audit events and recorded decisions."""

import json
from datetime import datetime
from typing import Annotated, Any, Self

from pydantic import BeforeValidator, Field

from app.api.schemas.common import (
    EXAMPLE_BUDGET_ID,
    EXAMPLE_KEY_ID,
    EXAMPLE_REQUEST_ID,
    ExtendedNumber,
    Output,
    example,
)
from app.api.schemas.refusals import decision_text, refusal_facts
from app.api.schemas.steps import EndedPlan, ended_plans_of, warnings_of
from app.ledger.runs.decisions import Decision as DomainDecision
from app.ledger.runs.decisions import DecisionOutcome, DecisionWithPath

ACT_EXAMPLE: dict[str, Any] = {
    "position": 3,
    "actor": EXAMPLE_KEY_ID,
    "action": "budget.limit_changed",
    "subject": EXAMPLE_BUDGET_ID,
    "before": {"limit": {"epsilon": 2.0, "delta": 1e-5}},
    "after": {"limit": {"epsilon": 3.0, "delta": 1e-5}},
    "reason": "The study goes on for another year, as its board has approved.",
    "request_id": EXAMPLE_REQUEST_ID,
    "created_at": "2026-11-21T09:00:00Z",
    "hash": "5f0c1d2e" * 8,
}


StoredJson = Annotated[dict[str, Any], BeforeValidator(json.loads)]


class AuditEvent(Output):
    """An entry of the organisation's audit log."""

    model_config = example(ACT_EXAMPLE)

    position: int = Field(description="Position in the chain, from 0.")
    actor: str = Field(description="A key's id, `oidc:` and a person's subject, `cli`, `service` or `unauthenticated`.")
    action: str
    subject: str = Field(description="Id of the affected object.")
    before: StoredJson | None
    after: StoredJson | None
    reason: str | None
    request_id: str | None
    created_at: datetime
    hash: Annotated[str, BeforeValidator(bytes.hex)] = Field(
        validation_alias="entry_hash",
        description="sha256 (hex) of the hash before it and this entry: docs/reference/export-format.md.",
    )


class Decision(Output):
    """A decision on requested or reported steps."""

    run: str
    run_path: str
    run_number: int = Field(description="Tells apart the runs at one path.")
    position: int = Field(description="Position among the run's decisions, from 0.")
    decision: DecisionOutcome
    attempt: int
    first_step: int
    count: int
    requested_count: int = Field(description="More than `count` if the request was truncated.")
    epsilon: ExtendedNumber = Field(description="Of the run afterwards.")
    delta: float
    used: float = Field(description="Share of the capacity of `binding_account` that was spent.")
    binding_account: str = Field(description="The account with the least room, or that refused.")
    binding_account_path: str
    refusal: dict[str, Any] | None = Field(description="Of a refusal: its `detail` and numbers; else null.")
    reservation: str | None = Field(default=None, description="The reservation that the steps were taken from.")
    ended_plans: list[EndedPlan] = Field(description="Plans of accounts that the steps have ended.")
    warnings: list[str] = Field(description="Accounts that lose registered steps, as the answer to the steps said.")
    actor: str = Field(description="Actor of the request.")
    request_id: str | None
    hash: str = Field(description="sha256 (hex) of the decision and of the hash before it: the run's chain.")
    created_at: datetime

    @classmethod
    def of(cls, decided: DecisionWithPath) -> Self:
        """Convert from the domain."""
        decision = decided.decision
        run = {"run_path": decided.run_path, "run_number": decided.run_number}
        return cls(**decision_members(decision), **run, refusal=_refusal(decision))


def decision_members(decision: DomainDecision) -> dict[str, Any]:
    """Convert the fields of a recorded decision, of which a schema takes those that it has."""
    return {
        "run": decision.run_id,
        "position": decision.position,
        "decision": decision.outcome,
        "attempt": decision.attempt,
        "first_step": decision.first_step,
        "count": decision.step_count,
        "requested_count": decision.requested_count,
        "next_step": decision.next_step,
        "epsilon": decision.reading.epsilon,
        "delta": decision.reading.delta,
        "used": decision.reading.used,
        "binding_account": decision.binding_account_id,
        "binding_account_path": decision.binding_account_path,
        "reservation": decision.reservation_id,
        "ended_plans": ended_plans_of(decision),
        "warnings": warnings_of(decision),
        "actor": decision.actor.id,
        "request_id": decision.actor.request_id,
        "hash": decision.entry_hash.hex(),
        "created_at": decision.created_at,
    }


def _refusal(decision: DomainDecision) -> dict[str, Any] | None:
    if decision.refusal_details is None:
        return None
    facts = refusal_facts(decision)
    return {"detail": decision_text(decision), **facts}
