"""The latest expiry of the keys that a caller issues: a credential that ends makes none that outlives it."""

from datetime import datetime, timedelta
from typing import Final

from sqlalchemy import Connection

from app.ledger.errors import InvalidInputError
from app.persistence.repositories import api_keys
from app.service.auth.oidc.config import ACTOR_PREFIX
from app.service.auth.request_context import RequestContext

PERSON_KEY_LIFETIME: Final = timedelta(days=90)
"""Maximum lifetime of a key that a person issues. Their tokens live minutes, and a key is for a machine that goes on;
but whoever removes the person at the provider does not see the key."""


def latest_expiry(tx: Connection, context: RequestContext) -> datetime | None:
    """Get the latest expiry of a key that the caller issues; None: it need not expire."""
    if _is_person(context):
        return context.now + PERSON_KEY_LIFETIME
    own = api_keys.find(tx, context.principal.actor)
    return None if own is None else own.expires_at


def read_latest_expiry(context: RequestContext) -> datetime | None:
    """Get the latest expiry as `latest_expiry`, in a transaction of its own."""
    with context.db.read(context.organisation_id) as tx:
        return latest_expiry(tx, context)


def bounded_expiry(tx: Connection, context: RequestContext, expires_at: datetime | None) -> datetime | None:
    """Get the expiry of a new key: the wanted one, or the latest one of a person who names none.

    Raises:
        InvalidInputError: the key would outlive what its issuer may give.
    """
    latest = latest_expiry(tx, context)
    if latest is None or (expires_at is not None and expires_at <= latest):
        return expires_at
    if not _is_person(context):
        raise InvalidInputError(
            f"Your own key ends at {latest.isoformat()}, and issues none that outlives it: send an `expires_at` that "
            "is not later.",
            field="expires_at",
        )
    if expires_at is None:
        return latest
    raise InvalidInputError(
        f"A key that a person issues ends within {PERSON_KEY_LIFETIME.days} days: send an `expires_at` until "
        f"{latest.isoformat()}.",
        field="expires_at",
    )


def successor_expiry(tx: Connection, context: RequestContext, expires_at: datetime | None) -> datetime | None:
    """Get the expiry of a rotated key's successor: that of the key, or the latest that the caller may give."""
    ends = [each for each in (expires_at, latest_expiry(tx, context)) if each is not None]
    return min(ends, default=None)


def _is_person(context: RequestContext) -> bool:
    return context.principal.actor.startswith(ACTOR_PREFIX)
