"""What accounts are called."""

from collections.abc import Sequence

from sqlalchemy import Connection, select

from app.persistence.tables import accounts


def paths_of(tx: Connection, organisation_id: str, account_ids: Sequence[str]) -> dict[str, str]:
    """The paths of names of those of some accounts that exist, by id."""
    found = select(accounts.c.id, accounts.c.path).where(
        accounts.c.organisation_id == organisation_id, accounts.c.id.in_(list(account_ids))
    )
    return {row.id: row.path for row in tx.execute(found)}
