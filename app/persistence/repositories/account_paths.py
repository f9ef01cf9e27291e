"""What accounts are called."""

from collections.abc import Collection

from sqlalchemy import Connection, select

from app.persistence.tables import accounts


def paths_of(tx: Connection, organisation_id: str, ids: Collection[str]) -> dict[str, str]:
    """The paths of names of those of some ids that are accounts', by id."""
    found = select(accounts.c.id, accounts.c.path).where(
        accounts.c.organisation_id == organisation_id, accounts.c.id.in_(list(ids))
    )
    return {row.id: row.path for row in tx.execute(found)}
