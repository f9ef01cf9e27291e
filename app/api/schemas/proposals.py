"""Schemas of limits and proposals."""

from datetime import datetime
from typing import Any

from pydantic import Field

from app.api.schemas.common import (
    EXAMPLE_BUDGET_ID,
    EXAMPLE_KEY_ID,
    EXAMPLE_PROPOSAL_ID,
    Body,
    Limit,
    LimitInput,
    Output,
    Page,
    Reason,
    Reference,
    example,
)
from app.ledger.governance.proposals import ProposalKind, ProposalStatus

_WHY = "The study goes on for another year, as its board has approved."
PROPOSAL_EXAMPLE: dict[str, Any] = {
    "id": EXAMPLE_PROPOSAL_ID,
    "kind": "limit",
    "account": EXAMPLE_BUDGET_ID,
    "proposed": {"limit": {"epsilon": 3.0, "delta": 1e-5}, "revision": 0},
    "status": "approved",
    "reason": _WHY,
    "proposed_by": EXAMPLE_KEY_ID,
    "proposed_at": "2026-11-21T09:00:00Z",
    "decided_by": "oidc:dana@hospital.example",
    "decided_at": "2026-11-21T10:00:00Z",
    "decision_reason": "The protocol of the board's meeting is at hand.",
}


class ChangeLimit(Body):
    """A new limit and its reason."""

    model_config = example({"limit": {"epsilon": 3.0, "delta": 1e-5}, "reason": _WHY})

    limit: LimitInput
    reason: Reason


class LiftQuarantine(Body):
    """The reason for lifting a quarantine."""

    model_config = example({"reason": "The rows were restored from the backup."})

    reason: Reason


class RequestLimit(Body):
    """A request for a higher limit, so that a run can go on."""

    model_config = example({"limit": {"epsilon": 3.42, "delta": 1e-5}, "reason": "All epochs as planned."})

    account: Reference | None = Field(
        default=None, description="An account that the run charges (id or path); by default the one that refused last."
    )
    limit: LimitInput
    reason: Reason


class ProposalReview(Body):
    """The reason for approving or rejecting a proposal."""

    model_config = example({"reason": "The board's protocol is at hand."})

    reason: Reason | None = None


class AccountLimit(Output):
    """The limit of an account; its ETag does not depend on the spending."""

    model_config = example(
        {
            "account": EXAMPLE_BUDGET_ID,
            "path": "mimic/icu-team",
            "limit": {"epsilon": 3.0, "delta": 1e-5},
            "revision": 1,
            "weights_frozen": True,
        }
    )

    account: str = Field(validation_alias="id")
    path: str
    limit: Limit
    revision: int = Field(validation_alias="limit_revision", description="Number of changes of this limit.")
    weights_frozen: bool


class Proposal(Output):
    """A proposal by one person, for approval by another."""

    model_config = example(PROPOSAL_EXAMPLE)

    id: str
    kind: ProposalKind
    account: str | None = Field(validation_alias="account_id", description="Null: the organisation itself.")
    proposed: dict[str, Any] = Field(
        description="By kind: a new limit or policy and the revision that it replaces, of a limit also the run that "
        "requested it; the limit of a run; a new "
        "population; the quarantined accounts and reasons; a new allocation and its revision; or the path of an "
        "archived account."
    )
    status: ProposalStatus
    reason: str
    proposed_by: str
    proposed_at: datetime
    decided_by: str | None
    decided_at: datetime | None
    decision_reason: str | None


class ProposalPage(Page[Proposal]):
    """Proposals, newest first."""
