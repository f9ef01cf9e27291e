"""Response schemas of verifications and audit events."""

import json
from datetime import datetime
from typing import Any, Self

from pydantic import ConfigDict, Field

from app.api.schemas.common import Output, Page
from app.api.schemas.examples import EXAMPLE_BUDGET_ID, EXAMPLE_KEY_ID, EXAMPLE_RUN_ID
from app.ledger.hash_chain import AuditEntry
from app.service.verification import Discrepancy as DomainDiscrepancy
from app.service.verification import VerificationReport


class Discrepancy(Output):
    """A discrepancy found by a verification."""

    account: str | None = Field(
        description="The account whose balance is not proven, and which is quarantined. Null: the cost of an event."
    )
    position: int | None = Field(description="First wrong decision of the run's chain, or null.")
    detail: str

    @classmethod
    def of(cls, fault: DomainDiscrepancy) -> Self:
        """Convert from the domain."""
        return cls(account=fault.account_id, position=fault.position, detail=fault.detail)


class Quarantine(Output):
    """A quarantined account."""

    account: str
    detail: str = Field(description="The discrepancy that caused the quarantine.")
    liftable: bool = Field(
        description="No discrepancy remains: two persons may lift the quarantine by `POST "
        "/v1/accounts/{account}/quarantine/lift` and an approval."
    )


class Verification(Output):
    """The result of a verification."""

    model_config = ConfigDict(
        json_schema_extra={
            "examples": [
                {
                    "sound": False,
                    "accounts": 3,
                    "runs": 1,
                    "decisions": 3,
                    "reservations": 0,
                    "charges": 2,
                    "steps": 420,
                    "audit_events": 9,
                    "discrepancies": [
                        {
                            "account": EXAMPLE_RUN_ID,
                            "position": 1,
                            "detail": f"mimic/icu-team/resnet ({EXAMPLE_RUN_ID}): decision 1 is not the one that was "
                            "made: its hash is that of another.",
                        }
                    ],
                    "quarantined": [
                        {
                            "account": EXAMPLE_RUN_ID,
                            "detail": f"mimic/icu-team/resnet ({EXAMPLE_RUN_ID}): decision 1 is not the one that was "
                            "made: its hash is that of another.",
                            "liftable": False,
                        }
                    ],
                }
            ]
        }
    )

    sound: bool
    accounts: int = Field(description="Number of recomputed balances.")
    runs: int = Field(description="Number of verified chains.")
    decisions: int
    reservations: int
    charges: int = Field(description="Number of charged events.")
    steps: int = Field(description="Number of steps of these events.")
    audit_events: int = Field(description="Number of verified audit events.")
    discrepancies: list[Discrepancy] = Field(description="Empty if the ledger is sound.")
    quarantined: list[Quarantine] = Field(description="Quarantined accounts, also without a remaining discrepancy.")

    @classmethod
    def of(cls, found: VerificationReport) -> Self:
        """Convert from the domain."""
        liftable = found.liftable
        return cls(
            sound=found.sound,
            accounts=found.accounts,
            runs=found.runs,
            decisions=found.decisions,
            reservations=found.reservations,
            charges=found.charges,
            steps=found.steps,
            audit_events=found.acts,
            discrepancies=[Discrepancy.of(fault) for fault in found.faults],
            quarantined=[
                Quarantine(account=key[1], detail=why, liftable=key in liftable)
                for key, why in sorted(found.quarantined.items())
            ],
        )


ACT_EXAMPLE: dict[str, Any] = {
    "position": 3,
    "actor": EXAMPLE_KEY_ID,
    "action": "budget.limit_changed",
    "subject": EXAMPLE_BUDGET_ID,
    "before": {"limit": {"epsilon": 2.0, "delta": 1e-5}},
    "after": {"limit": {"epsilon": 3.0, "delta": 1e-5}},
    "reason": "The study goes on for another year, as its board has approved.",
    "request_id": "req_6f1c2d3e4f506172",
    "created_at": "2026-11-21T09:00:00Z",
    "hash": "5f0c1d2e" * 8,
}


class AuditEvent(Output):
    """An entry of the organisation's audit log."""

    model_config = ConfigDict(json_schema_extra={"examples": [ACT_EXAMPLE]})

    position: int = Field(description="Position in the chain, from 0.")
    actor: str = Field(description="A key's id, `oidc:` and a person's subject, `cli`, `service` or `unauthenticated`.")
    action: str
    subject: str = Field(description="Id of the affected object.")
    before: dict[str, Any] | None
    after: dict[str, Any] | None
    reason: str | None
    request_id: str | None
    created_at: datetime
    hash: str = Field(description="sha256 (hex) of the hash before it and this entry: docs/reference/export-format.md.")

    @classmethod
    def of(cls, entry: AuditEntry) -> Self:
        """Convert from the domain."""
        return cls(
            position=entry.position,
            actor=entry.actor,
            action=entry.action,
            subject=entry.subject,
            before=entry.before and json.loads(entry.before),
            after=entry.after and json.loads(entry.after),
            reason=entry.reason,
            request_id=entry.request_id,
            created_at=entry.created_at,
            hash=entry.entry_hash.hex(),
        )


class AuditEventPage(Page[AuditEvent]):
    """Audit events in the requested order."""
