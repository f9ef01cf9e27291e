"""Browser sessions, without their cookies' secrets."""

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime

from sqlalchemy import Connection, bindparam, delete, insert, select

from app.persistence.repositories.expressions import columns_of, owned_by, values_of
from app.persistence.tables import sessions


@dataclass(frozen=True, slots=True)
class SessionRecord:
    """A stored session of a key, or of a person as "oidc:" and the subject.

    Role, scope and the thumbprint of the provider's signing key are a person's; a key has its own. The id is unique
    across organisations, and `secret_hash` is the sha256 of the cookie's secret.
    """

    id: str
    organisation_id: str
    secret_hash: bytes
    actor: str
    role: str | None
    scope: str | None
    oidc_key_thumbprint: str | None
    created_at: datetime
    expires_at: datetime


def add(tx: Connection, session: SessionRecord) -> None:
    """Add a session, and delete the organisation's expired ones."""
    tx.execute(
        delete(sessions).where(
            sessions.c.organisation_id == session.organisation_id, sessions.c.expires_at <= session.created_at
        )
    )
    values = values_of(session)
    tx.execute(insert(sessions).values(scope_id=values.pop("scope"), **values))


_MANY = select(*columns_of(sessions, SessionRecord, scope="scope_id")).where(
    sessions.c.id.in_(bindparam("of_sessions", expanding=True))
)


def find_many(tx: Connection, session_ids: Iterable[str]) -> dict[str, SessionRecord]:
    """Find sessions of any organisation by id."""
    return {row.id: SessionRecord(*row) for row in tx.execute(_MANY, {"of_sessions": list(session_ids)})}


def remove(tx: Connection, organisation_id: str, session_id: str) -> bool:
    """Delete a session; return whether it existed."""
    found = delete(sessions).where(owned_by(sessions, organisation_id, id=session_id))
    return tx.execute(found).rowcount > 0


def of_actor(tx: Connection, organisation_id: str, actor: str) -> list[str]:
    """List the ids of an actor's sessions."""
    mine = owned_by(sessions, organisation_id, actor=actor)
    return list(tx.execute(select(sessions.c.id).where(mine).order_by(sessions.c.id)).scalars())
