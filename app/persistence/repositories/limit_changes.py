"""Read the changes of an account's limit from the audit log."""

import json
from collections.abc import Iterator
from datetime import datetime
from itertools import chain
from typing import Final

from sqlalchemy import Connection

from app.ledger.accounts.account import Account
from app.ledger.admission.admission import LimitChange
from app.ledger.audit import AuditAction, AuditFilter, AuditOrder
from app.ledger.filter.limits import Limit
from app.ledger.pages import read_pages
from app.persistence.repositories import audit

_PAGE: Final = 200


def list_limit_changes(
    tx: Connection, organisation_id: str, account: Account, *, since: datetime | None = None, oldest_first: bool = False
) -> Iterator[LimitChange]:
    """List changes of an account's limit, the latest first unless `oldest_first`; pages are read as they are needed.

    Entries without a limit are left out: a damaged log is for verification to report.
    """
    order = AuditOrder.OLDEST if oldest_first else AuditOrder.NEWEST
    action = AuditAction(f"{account.kind}.limit_changed")
    wanted = AuditFilter(action=action, subject=account.id, since=since, order=order)
    found = read_pages(lambda page: audit.list_entries(tx, organisation_id, wanted, page), _PAGE)
    for entry in chain.from_iterable(found if account.limit_revision else ()):
        before, after = _limit(entry.before), _limit(entry.after)
        if before is not None and after is not None:
            yield LimitChange(before, after, entry.created_at, entry.actor)


def _limit(facts: str | None) -> Limit | None:
    limit = json.loads(facts or "{}").get("limit")
    return None if limit is None else Limit.of(limit)
