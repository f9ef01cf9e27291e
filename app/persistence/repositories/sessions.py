"""People who are signed in with a browser: what is known of their sessions, never the cookies."""

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime

from sqlalchemy import Connection, bindparam, delete, insert, select

from app.persistence.tables import sessions


@dataclass(frozen=True, slots=True)
class SessionRecord:
    """A stored session.

    Args:
        id: with its type prefix; unique among all organisations.
        organisation_id: whose ledger it opens.
        secret_hash: sha256 of the cookie's secret.
        actor: the key by which somebody signed in, or "oidc:" and a person's subject.
        role: a person's, as the provider said; None: it is a key, which has its own.
        scope: of a person, the account on or beneath which they may; None: everywhere, or it is a key.
        oidc_key_thumbprint: of the provider's key that vouched for a person; None: it is a key of this ledger.
        created_at: in UTC.
        expires_at: from when on it opens nothing.
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
    """Append a session, and forget those of the organisation that have ended."""
    tx.execute(
        delete(sessions).where(
            sessions.c.organisation_id == session.organisation_id, sessions.c.expires_at <= session.created_at
        )
    )
    tx.execute(
        insert(sessions).values(
            organisation_id=session.organisation_id,
            id=session.id,
            secret_hash=session.secret_hash,
            actor=session.actor,
            role=session.role,
            scope_id=session.scope,
            oidc_key_thumbprint=session.oidc_key_thumbprint,
            created_at=session.created_at,
            expires_at=session.expires_at,
        )
    )


_MANY = select(sessions).where(sessions.c.id.in_(bindparam("of_sessions", expanding=True)))


def find_many(tx: Connection, session_ids: Iterable[str]) -> dict[str, SessionRecord]:
    """Those of the sessions that exist, of whichever organisation, by id."""
    return {
        row.id: SessionRecord(
            row.id,
            row.organisation_id,
            row.secret_hash,
            row.actor,
            row.role,
            row.scope_id,
            row.oidc_key_thumbprint,
            row.created_at,
            row.expires_at,
        )
        for row in tx.execute(_MANY, {"of_sessions": list(session_ids)})
    }


def remove(tx: Connection, organisation_id: str, session_id: str) -> bool:
    """Forget a session; whether there was one."""
    found = delete(sessions).where(sessions.c.organisation_id == organisation_id, sessions.c.id == session_id)
    return tx.execute(found).rowcount > 0


def of_actor(tx: Connection, organisation_id: str, actor: str) -> list[str]:
    """The ids of all sessions of a key or a person, in order."""
    mine = (sessions.c.organisation_id == organisation_id) & (sessions.c.actor == actor)
    return list(tx.execute(select(sessions.c.id).where(mine).order_by(sessions.c.id)).scalars())
