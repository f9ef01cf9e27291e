"""Changes of limits after a refusal, which outdate the alternatives that it named."""

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime

from sqlalchemy import Connection

from app.ledger.accounts.account_records import AccountRecord
from app.ledger.filter.limits import Limit
from app.ledger.runs.decisions import Decision
from app.persistence.repositories.limit_changes import list_limit_changes


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
        last = next(list_limit_changes(tx, organisation_id, account, since=refusal.created_at), None)
        if account.limit is not None and last is not None:
            found.append(ChangedLimit(account.id, account.path, account.limit, last.at))
    return tuple(found)
