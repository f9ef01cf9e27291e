"""One-time links that sign a browser in as an admin of an organisation.

A link is made at the command line, or by the first start on an empty database. It works once, for some minutes, and an
organisation has at most one: a new link voids the former one. The stored hash binds the secret to the row.
"""

import hmac
import secrets
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from typing import Final

from sqlalchemy import Connection

from app.ledger.audit import AuditAction, canonical, digest
from app.ledger.errors import AuthenticationError
from app.persistence.database import ALL_TENANTS, Database
from app.persistence.repositories import api_keys
from app.persistence.repositories.api_keys import SignInLinkRecord
from app.service.auth import sessions
from app.service.auth.authentication import Principal, principal_of, secret_hash
from app.service.auth.request_context import RequestContext, service_context
from app.service.auth.use_cases import use_case
from app.service.ids import new_id

LIFETIME: Final = timedelta(minutes=15)

VOID: Final = (
    "This sign-in link was used, has expired or was replaced by a newer one. An operator creates another with "
    "`epsilon-ledger sign-in-link --org NAME`."
)


@dataclass(frozen=True, slots=True)
class SignInLink:
    """A new link's token, which is stored nowhere, and when it expires."""

    token: str
    expires_at: datetime


@dataclass(frozen=True, slots=True)
class LinkSession:
    """The session that a link has opened: its principal, and the cookie's value."""

    caller: Principal
    cookie: str


def create_link(tx: Connection, context: RequestContext, key_id: str) -> SignInLink:
    """Create a link that signs in as a key, and void the organisation's former link."""
    secret = secrets.token_urlsafe(32)
    link = SignInLinkRecord(
        id=new_id("lnk", context.now),
        organisation_id=context.organisation_id,
        key_id=key_id,
        secret_hash=b"",
        created_at=context.now,
        expires_at=context.now + LIFETIME,
    )
    link = replace(link, secret_hash=_bound_hash(secret, link))
    api_keys.replace_sign_in_link(tx, link)
    facts = {"key": key_id, "secret_sha256": digest(link.secret_hash), "expires_at": link.expires_at.isoformat()}
    context.record(tx, AuditAction.SIGN_IN_LINK_CREATED, link.id, after=facts)
    return SignInLink(f"{link.id}.{secret}", link.expires_at)


def redeem(db: Database, token: str, lasting: timedelta, request_id: str | None) -> LinkSession:
    """Exchange a link's token for a session, once.

    Args:
        db: the ledger's database.
        token: the link's secret part.
        lasting: the session's longest lifetime.
        request_id: for the audit log.

    Raises:
        AuthenticationError: the link is unknown, used, expired or void, or its key is no longer valid.
    """
    link = _find(db, token)
    if link is None:
        raise AuthenticationError(VOID)
    context = service_context(db, link.organisation_id)
    return _open_session(replace(context, request_id=request_id), link, lasting)


def _find(db: Database, token: str) -> SignInLinkRecord | None:
    """Find the link that a token opens."""
    link_id, _, secret = token.partition(".")
    if not token.isascii() or not token.isprintable():
        return None
    with db.read(ALL_TENANTS) as tx:
        link = api_keys.find_sign_in_link(tx, link_id)
    known = link is not None and hmac.compare_digest(link.secret_hash, _bound_hash(secret, link))
    return link if known else None


@use_case(locks_organisation=False)
def _open_session(tx: Connection, context: RequestContext, link: SignInLinkRecord, lasting: timedelta) -> LinkSession:
    # Of several browsers that open the link at once, one deletes the row.
    if not api_keys.remove_sign_in_link(tx, link) or context.now >= link.expires_at:
        raise AuthenticationError(VOID)
    key = api_keys.find(tx, link.key_id)
    if key is None or key.organisation_id != link.organisation_id or key.invalid_reason(context.now) is not None:
        raise AuthenticationError(VOID)
    caller = principal_of(key)
    return LinkSession(caller, sessions.open_session.write(tx, replace(context, principal=caller), lasting))


def _bound_hash(secret: str, link: SignInLinkRecord) -> bytes:
    """Hash the secret with the row, so that a changed row matches no secret."""
    row = [link.id, link.organisation_id, link.key_id, link.created_at.isoformat(), link.expires_at.isoformat()]
    return secret_hash(f"{secret} {canonical(row)}")
