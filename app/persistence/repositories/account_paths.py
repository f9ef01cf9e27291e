"""Look up the paths of accounts."""

from collections.abc import Collection

from sqlalchemy import Connection, select

from app.persistence.tables import accounts


def paths_of(tx: Connection, organisation_id: str, ids: Collection[str]) -> dict[str, str]:
    """Get the path of names by id; ids of other objects are ignored."""
    found = select(accounts.c.id, accounts.c.path).where(
        accounts.c.organisation_id == organisation_id, accounts.c.id.in_(list(ids))
    )
    return {row.id: row.path for row in tx.execute(found)}
