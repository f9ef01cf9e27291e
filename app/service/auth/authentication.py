"""Organisations, and who asks."""

import hashlib
import hmac
from collections.abc import Collection
from dataclasses import dataclass
from datetime import datetime

from sqlalchemy import Connection

from app.ledger.audit_actions import AuditAction
from app.ledger.errors import AuthenticationError, NameTakenError
from app.ledger.hash_chain import Actor
from app.ledger.names import check_name
from app.ledger.permissions import Role
from app.persistence.database import ALL_TENANTS, Database
from app.persistence.repositories import api_keys, organisations
from app.persistence.repositories.api_keys import KeyRecord
from app.service.audit_log import AuditEvent, record_event
from app.service.ids import new_id

DEFAULT_PLACEMENT = "default"
"""The name of the one database that every service has."""

CLI_ACTOR = Actor("cli")
"""Whoever may run commands on the machine; which person that was, the machine knows."""


@dataclass(frozen=True, slots=True)
class Principal:
    """Who asks.

    Args:
        organisation_id: whose ledger.
        actor: the key's id, or "oidc:" and a person's subject.
        role: what they may do.
        placement: on which database the organisation is.
        scope: the account on or beneath which they may; None: everywhere in the organisation.
        expires_at: from when on they may nothing; None: never.
    """

    organisation_id: str
    actor: str
    role: Role
    placement: str = DEFAULT_PLACEMENT
    scope: str | None = None
    expires_at: datetime | None = None


def create_organisation(db: Database, name: str, now: datetime, everywhere: Collection[Database] = ()) -> str:
    """Found an organisation.

    Args:
        db: the database on which it will live.
        name: unique, 1 to 100 characters.
        now: in UTC.
        everywhere: the databases of all placements, if there are several, the default one first.

    Returns:
        Its id.

    Raises:
        InvalidInputError: the name cannot be read.
        NameTakenError: another organisation has this name.
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

    def create() -> str:
        organisation_id = new_id("org", now)
        # Whoever founds an organisation, wherever it will live, holds the gate: two cannot take one name at once.
        with gate.write(ALL_TENANTS) as tx:
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

    return gate.retried(create)


def credentials(authorization: str | None) -> tuple[str, str]:
    """The id and the secret that a header holds.

    Args:
        authorization: the header's value.

    Returns:
        Both, as they were sent.

    Raises:
        AuthenticationError: it holds no key.
    """
    scheme, _, key = (authorization or "").partition(" ")
    key_id, _, secret = key.strip().partition(".")
    if scheme.lower() != "bearer" or not secret:
        if authorization:
            raise AuthenticationError("The Authorization header holds no key of the form `Bearer key_….…`.")
        raise AuthenticationError("Send an API key: `Authorization: Bearer key_….…`.")
    return key_id, secret


class KeyRefusedError(AuthenticationError):
    """A key of this ledger, or something that pretends to be it, opens nothing.

    Args:
        key: as it is stored.
        why: "revoked", "expired" or "wrong_secret".
    """

    def __init__(self, key: KeyRecord, why: str) -> None:
        words = {"revoked": "This API key was withdrawn.", "expired": "This API key has expired."}
        super().__init__(words.get(why, "This API key is not known here."))
        self.key = key
        self.why = why


def authenticate(
    db: Database, authorization: str | None, now: datetime, placement: str = DEFAULT_PLACEMENT
) -> Principal:
    """Find out who asks.

    Args:
        db: a ledger's database.
        authorization: the header's value.
        now: in UTC.
        placement: the database's name.

    Returns:
        The caller.

    Raises:
        AuthenticationError: no key, or none that this database knows.
        KeyRefusedError: a key that it knows, and that opens nothing; only who has the secret is told why.
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
    trouble = record.trouble(now)
    if trouble is not None:
        raise KeyRefusedError(record, trouble)
    return principal_of(record, placement)


def principal_of(record: KeyRecord, placement: str) -> Principal:
    """Who asks with a key."""
    return Principal(record.organisation_id, record.id, Role(record.role), placement, record.scope, record.expires_at)


def secret_hash(secret: str) -> bytes:
    """What is stored of a secret."""
    # A fast hash is right here: the secret has 256 random bits, so there is nothing to guess.
    return hashlib.sha256(secret.encode()).digest()
