"""Response schemas of audit events."""

import json
from datetime import datetime
from typing import Any, Self

from pydantic import Field

from app.api.schemas.common import Output, Page
from app.api.schemas.examples import EXAMPLE_BUDGET_ID, EXAMPLE_KEY_ID, example
from app.ledger.hash_chain import AuditEntry

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

    model_config = example(ACT_EXAMPLE)

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
