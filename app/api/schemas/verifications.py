"""Response schemas of verifications."""

from datetime import datetime
from typing import Self

from pydantic import Field

from app.api.schemas.common import Output
from app.ledger.verification import Verification as DomainVerification


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
