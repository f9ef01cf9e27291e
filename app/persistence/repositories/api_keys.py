"""API keys, browser sessions and sign-in links, without their secrets."""

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime

from sqlalchemy import Connection, bindparam, delete, not_, select, update

from app.ledger.pages import Page, PageRequest
from app.ledger.permissions import KeyRecord
from app.persistence.repositories.expressions import RecordTable, owned_by
from app.persistence.repositories.locks import within
from app.persistence.tables import api_keys, runs, sessions, sign_in_links


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


@dataclass(frozen=True, slots=True)
class SignInLinkRecord:
    """A stored one-time sign-in link of a key; an organisation has at most one.

    `secret_hash` is the sha256 of the link's secret and the row.
    """

    id: str
    organisation_id: str
    key_id: str
    secret_hash: bytes
    created_at: datetime
    expires_at: datetime


_KEYS = RecordTable(api_keys, KeyRecord, {"scope": "scope_id"})
_SESSIONS = RecordTable(sessions, SessionRecord, {"scope": "scope_id"})
_LINKS = RecordTable(sign_in_links, SignInLinkRecord)

# Built once: every request executes one of them. On Citus every node has the keys and sessions, and the worker of their
# organisation need not answer.
_MANY = select(*_KEYS.columns).where(api_keys.c.id.in_(bindparam("of_keys", expanding=True)))
_ENDED_RUNS = select(runs.c.account_id, runs.c.ended_at).where(
    runs.c.organisation_id.in_(bindparam("of_organisations", expanding=True)),
    runs.c.account_id.in_(bindparam("of_runs", expanding=True)),
    runs.c.ended_at.is_not(None),
)
_MANY_SESSIONS = select(*_SESSIONS.columns).where(sessions.c.id.in_(bindparam("of_sessions", expanding=True)))


def add(tx: Connection, key: KeyRecord) -> None:
    """Add a key."""
    _KEYS.add(tx, key.organisation_id, key)


def find(tx: Connection, key_id: str) -> KeyRecord | None:
    """Find a key of any organisation by id."""
    return find_many(tx, [key_id]).get(key_id)


def is_token_used(tx: Connection, organisation_id: str, token_hash: bytes) -> bool:
    """Check whether a token that is exchanged once only was exchanged for a key."""
    return tx.execute(_KEYS.select(organisation_id, token_hash=token_hash)).one_or_none() is not None


def find_many(tx: Connection, key_ids: Iterable[str]) -> dict[str, KeyRecord]:
    """Find keys of any organisation by id."""
    return {row.id: KeyRecord(*row) for row in tx.execute(_MANY, {"of_keys": list(key_ids)})}


def page(
    tx: Connection,
    organisation_id: str,
    scope: str | None,
    request: PageRequest,
    without: tuple[str, datetime] | None = None,
) -> Page[KeyRecord]:
    """List keys, newest first; those within a scope, unless it is None.

    `without` leaves out keys by creators whose names begin so, if they expired before a time.
    """
    conditions = [within(api_keys.c.scope_id, organisation_id, scope)]
    if without is not None:
        creators, before = without
        conditions.append(
            not_(api_keys.c.created_by.startswith(creators, autoescape=True) & (api_keys.c.expires_at < before))
        )
    return _KEYS.page(tx, organisation_id, request, *conditions)


def keys_named(tx: Connection, organisation_id: str, name: str) -> list[KeyRecord]:
    """List an organisation's keys of a name, oldest first."""
    rows = tx.execute(_KEYS.select(organisation_id, name=name).order_by(api_keys.c.id))
    return [_KEYS.read(row) for row in rows]


def valid_names(tx: Connection, organisation_id: str, now: datetime) -> list[str]:
    """List the names of an organisation's keys that are neither revoked nor expired."""
    valid = api_keys.c.revoked_at.is_(None) & (api_keys.c.expires_at.is_(None) | (api_keys.c.expires_at > now))
    mine = owned_by(api_keys, organisation_id)
    return list(
        tx.execute(select(api_keys.c.name).where(mine, valid, api_keys.c.name.is_not(None)).distinct()).scalars()
    )


def issued_by(tx: Connection, organisation_id: str, actors: Collection[str]) -> list[KeyRecord]:
    """List the keys that some keys or persons have issued."""
    theirs = api_keys.c.created_by.in_(bindparam("issuers", expanding=True))
    rows = tx.execute(_KEYS.select(organisation_id).where(theirs), {"issuers": sorted(actors)})
    return [_KEYS.read(row) for row in rows]


def change(tx: Connection, key: KeyRecord, **values: datetime) -> None:
    """Write when a key expires or was revoked."""
    tx.execute(_KEYS.update(key.organisation_id, key.id).values(**values))


def set_scope(tx: Connection, key: KeyRecord, scope: str) -> None:
    """Write the account to which a key is limited."""
    tx.execute(_KEYS.update(key.organisation_id, key.id).values(scope_id=scope))


def ended_runs(tx: Connection, keys: Iterable[KeyRecord]) -> dict[str, datetime]:
    """Get when the runs of single-use keys ended, by the id of the run; nothing of other runs."""
    bound = [(key.organisation_id, key.scope) for key in keys if key.single_use and key.scope is not None]
    if not bound:
        return {}
    asked = {"of_organisations": sorted({owner for owner, _ in bound}), "of_runs": [run_id for _, run_id in bound]}
    return {row.account_id: row.ended_at for row in tx.execute(_ENDED_RUNS, asked)}


def save_last_used(tx: Connection, when: Mapping[tuple[str, str], datetime]) -> None:
    """Write when keys were last used, by organisation and id."""
    tx.execute(
        update(api_keys)
        .where(api_keys.c.organisation_id == bindparam("of_organisation"), api_keys.c.id == bindparam("of_key"))
        .values(last_used_at=bindparam("at")),
        [{"of_organisation": owner, "of_key": key_id, "at": at} for (owner, key_id), at in sorted(when.items())],
    )


def add_session(tx: Connection, session: SessionRecord) -> None:
    """Add a session, and delete the organisation's expired ones."""
    mine = owned_by(sessions, session.organisation_id)
    tx.execute(delete(sessions).where(mine, sessions.c.expires_at <= session.created_at))
    _SESSIONS.add(tx, session.organisation_id, session)


def find_sessions(tx: Connection, session_ids: Iterable[str]) -> dict[str, SessionRecord]:
    """Find sessions of any organisation by id."""
    return {row.id: SessionRecord(*row) for row in tx.execute(_MANY_SESSIONS, {"of_sessions": list(session_ids)})}


def remove_session(tx: Connection, organisation_id: str, session_id: str) -> bool:
    """Delete a session; return whether it existed."""
    found = delete(sessions).where(owned_by(sessions, organisation_id, id=session_id))
    return tx.execute(found).rowcount > 0


def sessions_of(tx: Connection, organisation_id: str, actor: str) -> list[str]:
    """List the ids of an actor's sessions, the oldest first."""
    mine = owned_by(sessions, organisation_id, actor=actor)
    by_age = select(sessions.c.id).where(mine).order_by(sessions.c.created_at, sessions.c.id)
    return list(tx.execute(by_age).scalars())


def replace_sign_in_link(tx: Connection, link: SignInLinkRecord) -> None:
    """Add a link instead of the organisation's former one."""
    tx.execute(delete(sign_in_links).where(owned_by(sign_in_links, link.organisation_id)))
    _LINKS.add(tx, link.organisation_id, link)


def find_sign_in_link(tx: Connection, link_id: str) -> SignInLinkRecord | None:
    """Find a link of any organisation by id."""
    row = tx.execute(_LINKS.select(None, id=link_id)).one_or_none()
    return None if row is None else _LINKS.read(row)


def sign_in_link_of(tx: Connection, organisation_id: str) -> SignInLinkRecord | None:
    """Get an organisation's unused link, which may have expired."""
    row = tx.execute(_LINKS.select(organisation_id)).one_or_none()
    return None if row is None else _LINKS.read(row)


def remove_sign_in_link(tx: Connection, link: SignInLinkRecord) -> bool:
    """Delete a link; return whether it existed, which is true for one caller only."""
    found = delete(sign_in_links).where(owned_by(sign_in_links, link.organisation_id, id=link.id))
    return tx.execute(found).rowcount > 0
