"""Schemas of limits and proposals."""

from datetime import datetime
from typing import Any

from pydantic import Field

from app.api.schemas.common import (
    Body,
    ExtendedNumber,
    Limit,
    LimitInput,
    Output,
    Reason,
    Reference,
    example,
)
from app.ledger.governance.proposals import ProposalKind, ProposalStatus


class ChangeLimit(Body):
    """A new limit and its reason."""

    limit: LimitInput
    reason: Reason


class LiftQuarantine(Body):
    """The reason for lifting a quarantine."""

    model_config = example({"reason": "The rows were restored from the backup."})

    reason: Reason


class RequestLimit(Body):
    """A request for a higher limit, so that a run can go on."""

    account: Reference | None = Field(
        default=None, description="An account that the run charges (id or path); by default the one that refused last."
    )
    limit: LimitInput
    reason: Reason


class ProposalReview(Body):
    """The reason for approving or rejecting a proposal."""

    reason: Reason | None = None


class AccountLimit(Output):
    """The limit of an account; its ETag does not depend on the spending."""

    account: str = Field(validation_alias="id")
    path: str
    limit: Limit
    revision: int = Field(validation_alias="limit_revision", description="Number of changes of this limit.")
    weights_frozen: bool


class Proposal(Output):
    """A proposal by one person, for approval by another."""

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


class AttackRisk(Output):
    """Upper bounds on every attack that tests whether the records of one privacy unit are in the data."""

    advantage: float = Field(description="Largest difference of true and false positive rate, 0 to 1.")
    true_positive_rate: float = Field(description="At one false alarm in a hundred; guessing has 0.01.")
    singled_out: int = Field(description="How many of 1,000 people the best attack finds at that rate of false alarms.")


class LimitEquivalents(Output):
    """What the limit of an account implies in other units, and as a risk."""

    account: str = Field(validation_alias="account_id")
    path: str
    limit: Limit
    delta: float = Field(description="At which `epsilon` holds: as asked for, or that at which epsilon is shown.")
    epsilon: ExtendedNumber = Field(description="That follows from the limit at `delta`.")
    rho: float | None = Field(description="Of zero-concentrated differential privacy; null: none follows.")
    mu: float | None = Field(description="Of Gaussian differential privacy; null: none follows.")
    risk: AttackRisk
