"""Create organisations and authenticate API keys."""

import hashlib
import hmac
from collections.abc import Collection
from dataclasses import dataclass
from datetime import datetime

from sqlalchemy import Connection

from app.ledger.api_keys import KeyRecord
from app.ledger.audit import AuditAction
from app.ledger.errors import AuthenticationError, NameTakenError
from app.ledger.hash_chain import Actor
from app.ledger.names import check_name
from app.ledger.permissions import Role
from app.persistence.database import ALL_TENANTS, Database
from app.persistence.repositories import api_keys, organisations
from app.service.audit_log import AuditEvent, record_event
from app.service.ids import new_id

DEFAULT_PLACEMENT = "default"
"""The placement of the one database that every service has."""

CLI_ACTOR = Actor("cli")
"""The actor of commands; the operating system knows which person ran them."""


@dataclass(frozen=True, slots=True)
class Principal:
    """An authenticated caller.

    Args:
        actor: the id of the API key, or "oidc:" and a person's subject.
        placement: the database that has the organisation.
        scope: the account to which the role is bound, with its descendants; None: the whole organisation.
        expires_at: end of the key or token; None: never.
    """

    organisation_id: str
    actor: str
    role: Role
    placement: str = DEFAULT_PLACEMENT
    scope: str | None = None
    expires_at: datetime | None = None


def create_organisation(db: Database, name: str, now: datetime, everywhere: Collection[Database] = ()) -> str:
    """Create an organisation in a database, and return its id.

    Its name is unique on all placements: `everywhere` has their databases, the default one first, if there are several.
    """
    check_name(name)
    gate, *others = everywhere or (db,)

    def require_free(tx: Connection) -> None:
        if organisations.find_organisation(tx, name) is not None:
            raise NameTakenError(f"There is an organisation named {name!r} already.")

    def found(tx: Connection, organisation_id: str) -> None:
        organisations.add_organisation(tx, organisation_id, name, now)
        act = AuditEvent(AuditAction.ORGANISATION_CREATED, organisation_id, after={"name": name})
        record_event(tx, organisation_id, CLI_ACTOR, act, now)

    def create(tx: Connection) -> str:
        organisation_id = new_id("org", now)
        organisations.lock_names(tx)
        require_free(tx)
        for other in others:
            with other.read(ALL_TENANTS) as look:
                require_free(look)
        if db is gate:
            found(tx, organisation_id)
        else:
            with db.write(organisation_id) as there:
                found(there, organisation_id)
        return organisation_id

    # The default database's lock serializes creation on all placements, so that names stay unique.
    return gate.transact(ALL_TENANTS, create)


def credentials(authorization: str | None) -> tuple[str, str]:
    """Split an Authorization header into the id and the secret of an API key.

    Raises:
        AuthenticationError: the header has no API key.
    """
    scheme, _, key = (authorization or "").partition(" ")
    key_id, _, secret = key.strip().partition(".")
    if scheme.lower() != "bearer" or not secret:
        if authorization:
            raise AuthenticationError("The Authorization header holds no key of the form `Bearer key_….…`.")
        raise AuthenticationError("Send an API key: `Authorization: Bearer key_….…`.")
    return key_id, secret


class KeyRefusedError(AuthenticationError):
    """Refusal of a stored key: "revoked", "expired" or "wrong_secret"."""

    def __init__(self, key: KeyRecord, why: str) -> None:
        words = {"revoked": "This API key was revoked.", "expired": "This API key has expired."}
        super().__init__(words.get(why, "This API key is not known here."))
        self.key = key
        self.why = why


def authenticate(
    db: Database, authorization: str | None, now: datetime, placement: str = DEFAULT_PLACEMENT
) -> Principal:
    """Authenticate an API key.

    Raises:
        AuthenticationError: the header has no key, or one that this database does not have.
        KeyRefusedError: the key is refused; only a caller with the right secret learns the reason.
    """
    key_id, secret = credentials(authorization)
    with db.read(ALL_TENANTS) as tx:
        record = api_keys.find(tx, key_id)
    stored = record.secret_hash if record else bytes(32)
    matches = hmac.compare_digest(stored, secret_hash(secret))
    if record is None:
        raise AuthenticationError("This API key is not known here.")
    if not matches:
        raise KeyRefusedError(record, "wrong_secret")
    trouble = record.invalid_reason(now)
    if trouble is not None:
        raise KeyRefusedError(record, trouble)
    return principal_of(record, placement)


def principal_of(record: KeyRecord, placement: str) -> Principal:
    """Build the principal of an API key."""
    return Principal(record.organisation_id, record.id, Role(record.role), placement, record.scope, record.expires_at)


def secret_hash(secret: str) -> bytes:
    """Hash a secret for storage."""
    # A fast hash is enough: the secret has 256 random bits.
    return hashlib.sha256(secret.encode()).digest()
