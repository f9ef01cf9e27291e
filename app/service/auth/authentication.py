"""Create organisations, authenticate API keys, and record failed authentications."""

import hashlib
import hmac
import logging
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from threading import Lock
from time import monotonic

from sqlalchemy import Connection
from sqlalchemy.exc import SQLAlchemyError

from app.ledger.audit import Actor, AuditAction, AuditEvent
from app.ledger.errors import AuthenticationError, LedgerError, NameTakenError
from app.ledger.names import check_name
from app.ledger.permissions import KeyRecord, Role, is_for_new_run
from app.persistence.database import ALL_TENANTS, Database, error_summary
from app.persistence.repositories import api_keys, organisations
from app.persistence.repositories.audit import record_event
from app.service.ids import new_id

CLI_ACTOR = Actor("cli")
"""The actor of commands; the operating system knows which person ran them."""


WORKLOAD_PREFIX = "workload:"
"""Of the actors of workloads, which create their own keys; the name of the issuer and the token's subject follow."""


@dataclass(frozen=True, slots=True)
class Principal:
    """An authenticated caller.

    Args:
        actor: the id of the API key, or "oidc:" and a person's subject.
        scope: the account to which the role is bound, with its descendants; None: the whole organisation.
        expires_at: end of the key or token; None: never.
        single_use: whether the key is for one run.
        registers_run: whether this is a single-use key that has not registered its run yet.
    """

    organisation_id: str
    actor: str
    role: Role
    scope: str | None = None
    expires_at: datetime | None = None
    single_use: bool = False
    registers_run: bool = False


def create_organisation(db: Database, name: str, now: datetime) -> str:
    """Create an organisation with a unique name, and return its id."""
    check_name(name)

    def create(tx: Connection) -> str:
        organisations.lock_names(tx)
        if organisations.find_organisation(tx, name) is not None:
            raise NameTakenError(f"There is an organisation named {name!r} already.")
        organisation_id = new_id("org", now)
        add_organisation(tx, organisation_id, name, now)
        return organisation_id

    return db.transact(ALL_TENANTS, create)


def add_organisation(tx: Connection, organisation_id: str, name: str, now: datetime) -> None:
    """Add an organisation whose name is free, and record it; the caller has locked the names."""
    organisations.add_organisation(tx, organisation_id, name, now)
    act = AuditEvent(AuditAction.ORGANISATION_CREATED, organisation_id, after={"name": name})
    record_event(tx, organisation_id, CLI_ACTOR, act, now)


class KeyRefusedError(AuthenticationError):
    """Refusal of a stored key: "revoked", "expired", "used" or "wrong_secret"."""

    def __init__(self, key: KeyRecord, why: str) -> None:
        words = {
            "revoked": "This API key was revoked.",
            "expired": "This API key has expired.",
            "used": "This API key was for one run, which has ended.",
        }
        super().__init__(words.get(why, "This API key is not known here."))
        self.tried = FailedAttempt(AuditAction.API_KEY_AUTHENTICATION_FAILED, key.organisation_id, key.id)
        self.why = why


def token_in(authorization: str | None) -> str | None:
    """Get the token of an Authorization header; None: an API key, or something else."""
    scheme, _, bearer = (authorization or "").partition(" ")
    bearer = bearer.strip()
    # A token has header, content and signature; an API key has one dot and begins with its type.
    if scheme.lower() != "bearer" or bearer.startswith("key_") or bearer.count(".") != 2:  # noqa: PLR2004
        return None
    return bearer


def authenticate(db: Database, authorization: str | None, now: datetime) -> Principal:
    """Authenticate an API key.

    Raises:
        AuthenticationError: the header has no key, or one that is not known.
        KeyRefusedError: the key is refused; only a caller with the right secret learns the reason.
    """
    scheme, _, key = (authorization or "").partition(" ")
    key_id, _, secret = key.strip().partition(".")
    if scheme.lower() != "bearer" or not secret:
        if authorization:
            raise AuthenticationError("The Authorization header holds no key of the form `Bearer key_….…`.")
        raise AuthenticationError("Send an API key: `Authorization: Bearer key_….…`.")
    with db.read(ALL_TENANTS) as tx:
        record = api_keys.find(tx, key_id)
        ended = {} if record is None else api_keys.ended_runs(tx, [record])
    stored = record.secret_hash if record else bytes(32)
    matches = hmac.compare_digest(stored, secret_hash(secret))
    if record is None:
        raise AuthenticationError("This API key is not known here.")
    why = record.invalid_reason(now, ended.get(record.scope or "")) if matches else "wrong_secret"
    if why is not None:
        raise KeyRefusedError(record, why)
    return principal_of(record)


def principal_of(record: KeyRecord) -> Principal:
    """Build the principal of an API key."""
    registers_run = is_for_new_run(record.scope, single_use=record.single_use)
    return Principal(
        *(record.organisation_id, record.id, Role(record.role), record.scope),
        *(record.expires_at, record.single_use, registers_run),
    )


def secret_hash(secret: str) -> bytes:
    """Hash a secret for storage."""
    # A fast hash is enough: the secret has 256 random bits.
    return hashlib.sha256(secret.encode()).digest()


GATHERED_SECONDS = 60.0
"""First interval over which further failures of a key or person are counted into one audit event."""

MOST_GATHERED_SECONDS = 3600.0
"""Upper bound of the interval, which doubles while failures continue. After this long without a failure, the next one
is recorded at once. The audit log is never deleted, and anyone who knows a key's id can fail without end."""

ANONYMOUS = "unauthenticated"

_logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class FailedAttempt:
    """A refused key or token; the subject is the key's id or the person's actor."""

    action: AuditAction
    organisation_id: str
    subject: str
    facts: Mapping[str, object] = field(default_factory=dict, hash=False)


@dataclass
class _Further:
    """Failures after a recorded one, counted by reason until the interval ends; times are of the monotonic clock."""

    tried: FailedAttempt
    until: float
    seconds: float
    last_at: float
    why: dict[str, int] = field(default_factory=dict)


class FailedAttemptLog:
    """Failed attempts that wait to be recorded; safe to use from any thread."""

    def __init__(self, db: Database) -> None:
        self._db = db
        self._further: dict[FailedAttempt, _Further] = {}
        self._lock = Lock()

    def note(self, tried: FailedAttempt, why: str, request_id: str | None) -> None:
        """Record the first failure of a subject at once; count later ones by reason."""
        with self._lock:
            now, further = monotonic(), self._further.get(tried)
            if further is not None:
                further.why[why] = further.why.get(why, 0) + 1
                further.last_at = now
                return
            self._further[tried] = _Further(tried, now + GATHERED_SECONDS, GATHERED_SECONDS, now)
        self._write(tried, {why: 1}, request_id)

    def flush(self, *, all_of_them: bool = False) -> None:
        """Record the counted failures whose interval is over."""
        with self._lock:
            now = monotonic()
            due = [each for each in self._further.values() if all_of_them or now >= each.until]
            for each in due:
                del self._further[each.tried]
                if now - each.last_at < MOST_GATHERED_SECONDS:
                    seconds = min(2 * each.seconds, MOST_GATHERED_SECONDS) if each.why else each.seconds
                    self._further[each.tried] = _Further(each.tried, now + seconds, seconds, each.last_at)
        for each in due:
            if each.why:
                self._write(each.tried, each.why, None)

    def _write(self, tried: FailedAttempt, why: dict[str, int], request_id: str | None) -> None:
        act = AuditEvent(tried.action, tried.subject, after={**tried.facts, "times": dict(why)})

        actor = Actor(ANONYMOUS, request_id)
        try:
            now = self._db.clock.now()
            owner = tried.organisation_id
            self._db.transact(owner, lambda tx: record_event(tx, owner, actor, act, now))
        except (SQLAlchemyError, LedgerError) as error:  # the caller is refused all the same
            _logger.warning("A %s could not be noted (%s): %s", tried.action, why, error_summary(error))
