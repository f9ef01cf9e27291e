"""Changes of limits after a refusal, which outdate the alternatives that it named."""

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime

from sqlalchemy import Connection

from app.ledger.account_records import AccountRecord
from app.ledger.audit import AuditAction, AuditFilter
from app.ledger.decisions import Decision
from app.ledger.filters import Limit
from app.ledger.pages import PageRequest
from app.persistence.repositories import audit


@dataclass(frozen=True, slots=True)
class ChangedLimit:
    """The last change of a limit since a refusal; `limit` is the present one."""

    account_id: str
    path: str
    limit: Limit
    changed_at: datetime


def limits_changed_since(
    tx: Connection, organisation_id: str, path: Iterable[AccountRecord], refusal: Decision
) -> tuple[ChangedLimit, ...]:
    """List the accounts of a run's path whose limit was changed after a refusal."""
    found: list[ChangedLimit] = []
    for record in path:
        account = record.account
        if account.limit is None or not account.limit_revision:
            continue
        action = AuditAction(f"{account.kind}.limit_changed")
        wanted = AuditFilter(action=action, subject=account.id, since=refusal.created_at)
        found += [
            ChangedLimit(account.id, account.path, account.limit, entry.created_at)
            for entry in audit.list_entries(tx, organisation_id, wanted, PageRequest(1)).items
        ]
    return tuple(found)
