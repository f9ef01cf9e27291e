"""Read the state of an audit log without recomputing it."""

from dataclasses import dataclass
from datetime import datetime

from app.ledger.permissions import Permission
from app.persistence.repositories import audit_entries, checkpoints, overview_queries, raw_rows
from app.service.auth.request_context import RequestContext


@dataclass(frozen=True, slots=True)
class ChainHealth:
    """State of an organisation's audit log.

    Args:
        signed: number of entries that the last checkpoint covers; None: no checkpoint.
        stopped: reason of the quarantine, by account id.
        paths: of these accounts, by id.
    """

    length: int
    head: str
    signed: int | None
    signed_at: datetime | None
    stopped: dict[str, str]
    paths: dict[str, str]


def read_health(context: RequestContext) -> ChainHealth:
    """Get the state of the audit log."""
    with context.read(Permission.AUDIT_READ, whole_organisation=True) as tx:
        length, head = audit_entries.head(tx, context.organisation_id)
        last = checkpoints.latest(tx, context.organisation_id)
        stopped = {
            account_id: why for (_, account_id), why in raw_rows.quarantined(tx, context.organisation_id).items()
        }
        found = overview_queries.paths_of(tx, context.organisation_id, stopped.keys())
    return ChainHealth(
        length=length,
        head=head.hex(),
        signed=None if last is None else last.audit_length,
        signed_at=None if last is None else last.created_at,
        stopped=stopped,
        paths=found,
    )
