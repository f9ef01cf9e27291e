"""Organisations, API keys, and who may do what."""

import hashlib
import hmac
import secrets
from collections.abc import Collection
from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum

from sqlalchemy import Connection

from app.ledger.errors import (
    AuthenticationError,
    InsufficientScopeError,
    NameTakenError,
    NotFoundError,
)
from app.ledger.names import check_name
from app.persistence.engine import Database
from app.persistence.repositories import tenants
from app.service.ids import new_id

SECRET_BYTES = 32

DEFAULT_PLACEMENT = "default"
"""The name of the one database that every service has."""


class Role(StrEnum):
    """What a key may do; each role may do what the ones before it may."""

    VIEWER = "viewer"
    TRAINER = "trainer"
    ADMIN = "admin"

    def covers(self, needed: "Role") -> bool:
        """Whether this role may do what `needed` may."""
        return _RANKS[self] >= _RANKS[needed]


_RANKS = {role: rank for rank, role in enumerate(Role)}


@dataclass(frozen=True, slots=True)
class Caller:
    """Who asks: a key of an organisation, and on which database that organisation is."""

    organisation_id: str
    key_id: str
    role: Role
    placement: str = DEFAULT_PLACEMENT


@dataclass(frozen=True, slots=True)
class IssuedKey:
    """A new key; `key` is shown this once and stored nowhere."""

    id: str
    key: str
    role: Role


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
        if tenants.find_organisation(tx, name) is not None:
            raise NameTakenError(f"There is an organisation named {name!r} already.")

    def create() -> str:
        organisation_id = new_id("org", now)
        # Whoever founds an organisation, wherever it will live, holds the gate: two cannot take one name at once.
        with gate.write() as tx:
            tenants.lock_names(tx)
            require_free(tx)
            for other in others:
                with other.read() as look:
                    require_free(look)
            if db is gate:
                tenants.add_organisation(tx, organisation_id, name, now)
            else:
                with db.write() as there:
                    tenants.add_organisation(there, organisation_id, name, now)
        return organisation_id

    return gate.retried(create)


def create_key(
    db: Database, organisation: str, role: Role, now: datetime, everywhere: Collection[Database] = ()
) -> IssuedKey:
    """Issue a key.

    Args:
        db: the database on which the organisation lives.
        organisation: its id or its name.
        role: what the key may do.
        now: in UTC.
        everywhere: the databases of all placements, if there are several.

    Returns:
        The key, `<key id>.<secret of 256 random bits>`; only the secret's hash is stored.

    Raises:
        NotFoundError: there is no such organisation.
    """
    secret = secrets.token_urlsafe(SECRET_BYTES)
    others = [other for other in everywhere if other is not db]

    def is_taken(key_id: str) -> bool:
        for other in others:
            with other.read() as look:
                if tenants.find_key(look, key_id) is not None:
                    return True
        return False

    def create() -> IssuedKey:
        with db.write() as tx:
            organisation_id = tenants.find_organisation(tx, organisation)
            if organisation_id is None:
                raise NotFoundError(
                    f"There is no organisation {organisation!r}; make it with `epsilon-ledger org create`."
                )
            key_id = new_id("key", now)
            while is_taken(key_id):
                key_id = new_id("key", now)
            tenants.add_key(tx, tenants.KeyRecord(key_id, organisation_id, str(role), _hash(secret)), now)
        return IssuedKey(key_id, f"{key_id}.{secret}", role)

    return db.retried(create)


def authenticate(db: Database, authorization: str | None, placement: str = DEFAULT_PLACEMENT) -> Caller:
    """Find out who asks.

    Args:
        db: a ledger's database.
        authorization: the header's value.
        placement: the database's name.

    Returns:
        The caller.

    Raises:
        AuthenticationError: no key, or none that this database knows.
    """
    scheme, _, key = (authorization or "").partition(" ")
    key_id, _, secret = key.strip().partition(".")
    if scheme.lower() != "bearer" or not secret:
        if authorization:
            raise AuthenticationError("The Authorization header holds no key of the form `Bearer key_….…`.")
        raise AuthenticationError("Send an API key: `Authorization: Bearer key_….…`.")
    with db.read() as tx:
        record = tenants.find_key(tx, key_id)
    stored = record.secret_hash if record else bytes(32)
    if not hmac.compare_digest(stored, _hash(secret)) or record is None:
        raise AuthenticationError("This API key is not known here.")
    return Caller(record.organisation_id, record.id, Role(record.role), placement)


def require(caller: Caller, needed: Role) -> None:
    """Let only a role pass, or one above it.

    Args:
        caller: who asks.
        needed: the least role.

    Raises:
        InsufficientScopeError: the caller's role is below it.
    """
    if not caller.role.covers(needed):
        raise InsufficientScopeError(
            f"This needs the role {needed}; the key has the role {caller.role}.", required_role=str(needed)
        )


def _hash(secret: str) -> bytes:
    # A fast hash is right here: the secret has 256 random bits, so there is nothing to guess.
    return hashlib.sha256(secret.encode()).digest()
