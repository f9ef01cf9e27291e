"""Statuses of accounts for tests."""

from datetime import UTC, datetime
from typing import Any

from app.ledger.accounts.account import AccountKind
from app.ledger.scheduling.account_status import AccountStatus


def status_at(path: str, *, parallel: bool = False, **numbers: Any) -> AccountStatus:  # noqa: ANN401 - its fields
    """The status of an account whose id is its path."""
    above, _, _ = path.rpartition("/")
    kind, now = AccountKind.BUDGET if above else AccountKind.POPULATION, datetime.now(UTC)
    root, parts = path.split("/", maxsplit=1)[0], 1 if parallel else None
    own = (path, kind, above or None, root, path, path.count("/"), now, 0, None, parts, None)
    return AccountStatus("org_1", *own)._replace(**numbers)
