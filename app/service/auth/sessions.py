"""Browser sessions.

A session cookie is a credential like a key: an id and a random secret. The permissions of a key's session are looked up
with the key each time, so revoking the key ends its sessions. A person's session keeps the role and scope of the ID
token until it ends. The stored hash binds the secret to the row: a row that was changed authenticates no one.
"""

import hashlib
import hmac
import secrets
from collections.abc import Mapping
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from typing import Final

from sqlalchemy import Connection

from app.ledger.audit import AuditAction, canonical, digest
from app.ledger.errors import AuthenticationError
from app.ledger.ids import TIME_DIGITS
from app.ledger.permissions import KeyRecord, Role
from app.persistence.database import ALL_TENANTS, Database
from app.persistence.repositories import api_keys, audit, organisations
from app.persistence.repositories.api_keys import SessionRecord
from app.service.auth.authentication import Principal, principal_of, secret_hash
from app.service.auth.request_context import RequestContext
from app.service.auth.use_cases import use_case
from app.service.ids import RANDOM_DIGITS, new_id

MOST_SESSIONS: Final = 200
"""Sessions of one key or person; one more ends the oldest."""

ENDED: Final = "You are not signed in any more; sign in again."


@dataclass(frozen=True, slots=True)
class SessionCookie:
    """A session as a credential. No header is one: it is sent as a cookie only, with its cross-site protection."""

    value: str


Credential = str | SessionCookie | None
"""What a request is authenticated by: the value of its Authorization header, its session or nothing."""


@dataclass(frozen=True, slots=True)
class SignedInSession:
    """A valid session; the caller is valid until the session or the key ends."""

    session: SessionRecord
    caller: Principal


@use_case(locks_organisation=False)
def open_session(
    tx: Connection,
    context: RequestContext,
    lasting: timedelta,
    thumbprint: str | None = None,
    name: str | None = None,
    nonce: str | None = None,
) -> str:
    """Create a session for an authenticated caller; return the cookie's value, which is stored nowhere else.

    It lasts for `lasting`, and no longer than the key. People have the `thumbprint` of the provider's key, and the
    `name` that it told, which pages show. The `nonce` of their login opens one session, ever.

    Raises:
        AuthenticationError: the login has opened a session already.
    """
    caller, ends = context.principal, context.now + lasting
    secret = secrets.token_urlsafe(32)
    person = thumbprint is not None
    # A person's token is for the moment of the sign-in, and lives minutes: the session has an end of its own.
    if not person and caller.expires_at is not None:
        ends = min(ends, caller.expires_at)
    session = SessionRecord(
        id=new_id("ses", context.now) if nonce is None else _unused_id(tx, caller.organisation_id, nonce),
        organisation_id=caller.organisation_id,
        secret_hash=b"",
        actor=caller.actor,
        role=str(caller.role) if person else None,
        scope=caller.scope if person else None,
        oidc_key_thumbprint=thumbprint,
        created_at=context.now,
        expires_at=ends,
    )
    session = replace(session, secret_hash=_bound_hash(secret, session))
    there = api_keys.sessions_of(tx, caller.organisation_id, caller.actor)
    for first in there[: max(0, len(there) + 1 - MOST_SESSIONS)]:
        _end(tx, context, first)
    api_keys.add_session(tx, session)
    told = _facts(session) | ({} if name is None else {"name": name})
    context.record(tx, AuditAction.SESSION_CREATED, session.id, after=told)
    return f"{session.id}.{secret}"


@use_case(locks_organisation=False)
def end_sessions(tx: Connection, context: RequestContext, cookie: str | None = None) -> None:
    """End the session of a cookie, or all of a key or person; other replicas notice within a second."""
    if cookie is None:
        end_all(tx, context, context.principal.actor)
    else:
        _end(tx, context, cookie.partition(".")[0])


def end_all(tx: Connection, context: RequestContext, actor: str, reason: str | None = None) -> int:
    """End all sessions of a key or person within a transaction; return their number."""
    found = api_keys.sessions_of(tx, context.organisation_id, actor)
    for each in found:
        _end(tx, context, each, reason)
    return len(found)


def csrf_token(cookie: str) -> str:
    """Derive the CSRF token of a session; requests that change something must send it."""
    return hashlib.sha256(f"csrf {cookie}".encode()).hexdigest()


def authenticate(db: Database, cookie: str, now: datetime) -> SignedInSession:
    """Authenticate a session cookie.

    Raises:
        AuthenticationError: the session is unknown or has ended, or its key is no longer valid.
    """
    session_id, _, secret = cookie.partition(".")
    with db.read(ALL_TENANTS) as tx:
        found = look_up(tx, [session_id], now).get(session_id)
    if found is None or not hmac.compare_digest(found.session.secret_hash, _bound_hash(secret, found.session)):
        raise AuthenticationError(ENDED)
    return found


def look_up(tx: Connection, session_ids: list[str], now: datetime) -> Mapping[str, SignedInSession]:
    """Get the valid sessions by id, in a transaction that sees all organisations."""
    if not session_ids:
        return {}
    stored = api_keys.find_sessions(tx, session_ids)
    opened_by = {each.actor for each in stored.values() if each.role is None}
    known = api_keys.find_many(tx, opened_by) if opened_by else {}
    found = {}
    for session in stored.values():
        caller = _caller(session, known.get(session.actor), now)
        if caller is not None:
            found[session.id] = SignedInSession(session, caller)
    return found


def _unused_id(tx: Connection, organisation_id: str, nonce: str) -> str:
    """Derive a session's id from its login, so that the audit log says whether there was one."""
    organisations.lock(tx, organisation_id)  # of two answers at once, one waits for the other's entry
    made = f"ses_{digest(canonical([nonce, organisation_id]))[: TIME_DIGITS + RANDOM_DIGITS]}"
    if audit.has_entry(tx, organisation_id, AuditAction.SESSION_CREATED, made):
        raise AuthenticationError("This sign-in has been used already; begin again.")
    return made


def _bound_hash(secret: str, session: SessionRecord) -> bytes:
    """Hash the secret with the row, so that a changed row matches no secret."""
    caller = (session.id, session.organisation_id, session.actor, session.role, session.scope)
    times = (session.created_at.isoformat(), session.expires_at.isoformat())
    return secret_hash(f"{secret} {canonical([*caller, session.oidc_key_thumbprint, *times])}")


def _facts(session: SessionRecord) -> dict[str, object]:
    """Describe a session for the audit event; its actor is the caller."""
    return {
        "role": session.role,
        "scope": session.scope,
        "thumbprint": session.oidc_key_thumbprint,
        "secret_sha256": digest(session.secret_hash),
        "expires_at": session.expires_at.isoformat(),
    }


def _end(tx: Connection, context: RequestContext, session_id: str, reason: str | None = None) -> None:
    if api_keys.remove_session(tx, context.organisation_id, session_id):
        context.record(tx, AuditAction.SESSION_ENDED, session_id, reason=reason)


def _caller(session: SessionRecord, key: KeyRecord | None, now: datetime) -> Principal | None:
    if now >= session.expires_at:
        return None
    if session.role is not None:
        if session.role not in set(map(str, Role)):
            return None
        role, ends = Role(session.role), session.expires_at
        return Principal(session.organisation_id, session.actor, role, session.scope, ends)
    if key is None or key.organisation_id != session.organisation_id or key.invalid_reason(now) is not None:
        return None
    ends = session.expires_at if key.expires_at is None else min(key.expires_at, session.expires_at)
    return replace(principal_of(key), expires_at=ends)
