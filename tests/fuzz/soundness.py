"""What must hold of a ledger whatever was asked: verification finds nothing, and no account is past its limit."""

import subprocess
from collections.abc import Iterator

from sqlalchemy import select

from app.persistence.database import ALL_TENANTS, Database
from app.persistence.repositories import accounts
from app.persistence.tables import account_ancestors, audit_entries, decisions
from tests.servers import command_line

PATIENCE_SECONDS = 900
"""A long fuzz has much to verify, and may run beside much else."""


def problems(database_url: str) -> list[str]:
    """Everything that is wrong with a ledger; nothing, if all is well."""
    try:
        verified = command_line("verify", "--json", database=database_url, timeout=PATIENCE_SECONDS)
    except subprocess.TimeoutExpired:
        return [f"verify did not end within {PATIENCE_SECONDS} s."]
    found = [] if verified.returncode == 0 else [f"verify: {verified.stdout[-3000:]}{verified.stderr[-3000:]}"]
    database = Database(database_url)
    try:
        return [*found, *_past_limits(database)]
    finally:
        database.dispose()


def _past_limits(database: Database) -> Iterator[str]:
    """Accounts with more spent and held than their limit, but for what was reported, or lowered since."""
    with database.read(ALL_TENANTS) as tx:
        reported = select(decisions.c.run_id).where(decisions.c.outcome == "reported")
        above = select(account_ancestors.c.ancestor_id).where(account_ancestors.c.account_id.in_(reported))
        changed = select(audit_entries.c.subject).where(audit_entries.c.action.like("%.limit_changed"))
        excused = {each for rows in (reported, above, changed) for each in tx.execute(rows).scalars()}
        damaged: list[str] = []
        for kept in accounts.list_all(tx, report=lambda cell: damaged.append(str(cell))):
            account = kept.account
            if account.id not in excused and account.weights is not None and not account.fits():
                yield f"{account.id} is past its limit."
        yield from damaged
