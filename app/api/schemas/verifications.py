"""Response schemas of verifications."""

from datetime import datetime
from typing import Any, Self

from pydantic import Field

from app.api.schemas.common import EXAMPLE_KEY_ID, EXAMPLE_RUN_ID, Output, Page, example
from app.ledger.verification import Verification as DomainVerification

_DETAIL = (
    f"mimic/icu-team/resnet ({EXAMPLE_RUN_ID}): decision 1 is not the one that was made: its hash is that of another."
)
_EXAMPLE: dict[str, Any] = {
    "id": "ver_19aa55f8c2e5d0c1f2e3a4b5c6d",
    "actor": EXAMPLE_KEY_ID,
    "created_at": "2026-11-21T09:00:00Z",
    "sound": False,
    "accounts": 3,
    "runs": 1,
    "decisions": 3,
    "reservations": 0,
    "charges": 2,
    "steps": 420,
    "audit_events": 9,
    "discrepancy_count": 1,
    "discrepancies": [{"account": EXAMPLE_RUN_ID, "position": 1, "detail": _DETAIL}],
    "quarantined_count": 1,
    "quarantined": [{"account": EXAMPLE_RUN_ID, "detail": _DETAIL, "liftable": False}],
}


class Discrepancy(Output):
    """A discrepancy found by a verification."""

    account: str | None = Field(
        validation_alias="account_id",
        description="The account whose balance is not proven, and which is quarantined. Null: the cost of an event.",
    )
    position: int | None = Field(description="First wrong decision of the run's chain, or null.")
    detail: str


class Quarantine(Output):
    """A quarantined account."""

    account: str = Field(validation_alias="account_id")
    detail: str = Field(description="The discrepancy that caused the quarantine.")
    liftable: bool = Field(
        description="No discrepancy remains: two persons may lift the quarantine by `POST "
        "/v1/accounts/{account}/quarantine/lift` and an approval."
    )


class Verification(Output):
    """The result of a verification, as of its time."""

    model_config = example(_EXAMPLE)

    id: str
    actor: str
    created_at: datetime
    sound: bool
    accounts: int = Field(description="Number of recomputed balances.")
    runs: int = Field(description="Number of verified chains.")
    decisions: int
    reservations: int
    charges: int = Field(description="Number of charged events.")
    steps: int = Field(description="Number of steps of these events.")
    audit_events: int = Field(description="Number of verified audit events.")
    discrepancy_count: int = Field(description="Number of all discrepancies; 0 if the ledger is sound.")
    discrepancies: list[Discrepancy] = Field(description="The first 100.")
    quarantined_count: int = Field(description="Number of all quarantined accounts.")
    quarantined: list[Quarantine] = Field(description="The first 100, also without a remaining discrepancy.")

    @classmethod
    def of(cls, verification: DomainVerification) -> Self:
        """Convert from the domain."""
        return cls(
            id=verification.id,
            actor=verification.actor,
            created_at=verification.created_at,
            sound=verification.sound,
            **verification.checked,
            discrepancy_count=verification.discrepancy_count,
            discrepancies=verification.discrepancies,
            quarantined_count=verification.quarantined_count,
            quarantined=verification.quarantined,
        )


class VerificationPage(Page[Verification]):
    """Verifications, newest first."""
