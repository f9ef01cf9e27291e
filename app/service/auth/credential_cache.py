"""Cache authenticated callers, so that most requests need no query."""

import hashlib
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from time import monotonic
from typing import TYPE_CHECKING, Final

from sqlalchemy import Connection

from app.ledger.errors import AuthenticationError
from app.ledger.permissions import KeyRecord
from app.persistence.database import ALL_TENANTS, Database
from app.persistence.lru_cache import LruCache
from app.persistence.repositories import api_keys
from app.persistence.repositories.api_keys import SessionRecord
from app.service.auth import sessions
from app.service.auth.authentication import (
    FailedAttemptLog,
    KeyRefusedError,
    Principal,
    authenticate,
    principal_of,
    token_in,
)
from app.service.auth.circuit_breaker import CircuitBreaker
from app.service.auth.oidc.config import OidcConfig
from app.service.auth.sessions import Credential, SessionCookie
from app.service.auth.workload.config import WorkloadIssuer
from app.service.background import repeat
from app.service.periodic_work import find_due

if TYPE_CHECKING:
    from app.service.auth.oidc.identities import OidcAuthenticator
    from app.service.auth.oidc.jwks import JwksCache
    from app.service.auth.workload.authenticator import WorkloadAuthenticator

CACHE_SECONDS: Final = 1.0
"""Lifetime of a cached caller: a revoked key can work for this long."""

BODY_SECONDS: Final = 0.02
"""Time after which a caller who was found by a request's head is looked up again when its body is complete."""

LOOK_SECONDS: Final = 0.4
"""Interval of the background refresh, which keeps active callers from waiting for a query."""

IDLE_SECONDS: Final = 5.0
"""Callers that sent no request for this long leave the cache."""

USE_WRITTEN_SECONDS = 60.0
"""Interval at which the last use of keys is written."""

MOST_CALLERS = 10_000
"""Size of the cache."""


@dataclass
class _Known:
    """A cached caller; all times are of the monotonic clock.

    Args:
        seen_at: before the query that found the caller.
        session: the row that the session's secret matched; None: a key or a token.
        thumbprint: of the provider's key that signed the token of a person or of their session; None: an API key of
            this ledger is used, directly or by a session.
        written_at: when the last use was written; never for people.
    """

    caller: Principal
    seen_at: float
    used_at: float
    session: SessionRecord | None = None
    thumbprint: str | None = None
    written_at: float = 0.0


class Authenticator:
    """Authenticate callers and cache them.

    Args:
        database: has the keys.
        openid: whose tokens of people are accepted; None: none are.
        workload_issuers: whose tokens are exchanged for keys.
        cache_seconds: lifetime of a cached caller.
    """

    def __init__(
        self,
        database: Database,
        openid: OidcConfig | None = None,
        workload_issuers: Sequence[WorkloadIssuer] = (),
        cache_seconds: float = CACHE_SECONDS,
    ) -> None:
        self.cache_seconds = cache_seconds
        self._db = database
        self._breaker = CircuitBreaker(database)
        self._known: dict[bytes, _Known] = {}
        self._ever: LruCache[bytes, bool] = LruCache(MOST_CALLERS)
        self._failures = FailedAttemptLog(database)
        self.oidc: Final = None if openid is None else _oidc_authenticator(openid, self._breaker, self._failures)
        self.workloads: Final = _workload_authenticator(workload_issuers, self._breaker, self._failures)

    def key_sets(self) -> "Mapping[str, JwksCache]":
        """Get the cached signing keys of all issuers of tokens, by the name of a background task."""
        found = {} if self.oidc is None else {"openid": self.oidc.jwks}
        issuers = {} if self.workloads is None else self.workloads.key_sets
        return found | {f"workload-issuer:{name}": keys for name, keys in issuers.items()}

    def find(self, credential: Credential) -> Principal | None:
        """Get the cached caller of a credential; None: not in the cache."""
        return self.find_by_fingerprint(fingerprint(credential))

    def find_by_fingerprint(self, header: bytes) -> Principal | None:
        """Get the cached caller of a header with this fingerprint; None: not in the cache."""
        known = self._known.get(header)
        now = monotonic()
        if known is None or now - known.seen_at >= self.cache_seconds:
            return None
        if known.caller.registers_run:  # any replica may have registered its run since
            return None
        ends = known.caller.expires_at
        if ends is not None and self._db.clock.now() >= ends:
            return None
        known.used_at = now
        return known.caller

    def was_known(self, credential: Credential) -> bool:
        """Whether this process has authenticated the credential before, as far as it remembers."""
        return self._ever.get(fingerprint(credential)) is not None

    def authenticate(self, credential: Credential, request_id: str | None = None) -> Principal:
        """Authenticate a caller and cache the result.

        Raises:
            AuthenticationError: the credential is missing, unknown or refused.
            LedgerUnavailableError, SQLAlchemyError: the database or the provider does not answer.
        """
        header = fingerprint(credential)
        token = None if isinstance(credential, SessionCookie) else token_in(credential)
        if token is not None:
            return self._authenticate_person(token, header, request_id)
        asked = monotonic()
        try:
            with self._breaker.guard() as db:
                known = self._look_up(db, credential, asked)
        except KeyRefusedError as error:
            self._forget(header)
            self._failures.note(error.tried, error.why, request_id)
            raise
        self._remember(header, known)
        return known.caller

    async def run_refresh(self) -> None:
        """Refresh the cached callers until cancelled."""
        await repeat("keys", "The keys could not be looked up", LOOK_SECONDS, self.refresh)

    def refresh(self) -> None:
        """Look up the cached callers again, and write the use of keys."""
        asked = monotonic()
        here = dict(self._known)
        for header, known in here.items():
            if asked - known.used_at > IDLE_SECONDS and (known.thumbprint or known.written_at >= known.used_at):
                self._known.pop(header, None)
        for header, known in list(here.items()):
            if known.thumbprint is not None and known.session is None:  # a token needs no network and no database
                ends = known.caller.expires_at
                ended = ends is not None and self._db.clock.now() >= ends
                published = self._is_key_published(known.thumbprint)
                self._renew(header, known, known.caller if published and not ended else None, asked)
                del here[header]
        self._failures.flush()
        if not here:
            return
        now = self._db.clock.now()
        with self._db.read(ALL_TENANTS) as tx:
            keys = api_keys.find_many(tx, {known.caller.actor for known in here.values() if known.session is None})
            ids = [known.session.id for known in here.values() if known.session]
            signed_in = sessions.look_up(tx, ids, now)
        run_ends = _run_ends(self._db, [key for key in keys.values() if key.single_use])
        for header, known in here.items():
            if known.session is not None:
                caller = self._caller_of_session(known, signed_in.get(known.session.id))
            else:
                record = keys.get(known.caller.actor)
                why = "unknown" if record is None else record.invalid_reason(now, run_ends.get(record.scope or ""))
                caller = None if record is None or why is not None else principal_of(record)
            self._renew(header, known, caller, asked)
        self._write_use([known for known in here.values() if known.thumbprint is None], asked, now)

    def evict(self, credential: Credential) -> None:
        """Remove a credential from the cache of this process."""
        self._forget(fingerprint(credential))

    def close(self) -> None:
        """Write the failed attempts that are not written yet."""
        self._failures.flush(all_of_them=True)

    def _authenticate_person(self, token: str, header: bytes, request_id: str | None) -> Principal:
        if self.oidc is None:
            raise AuthenticationError("This service takes no tokens of people; send an API key.")
        asked = monotonic()
        try:
            person = self.oidc.authenticate(token, request_id)
        except AuthenticationError:
            self._forget(header)
            raise
        self._remember(header, _Known(person.caller, asked, asked, thumbprint=person.thumbprint))
        return person.caller

    def _renew(self, header: bytes, known: _Known, caller: Principal | None, asked: float) -> None:
        """Keep a caller who is still valid, and forget another one."""
        if caller is None:
            self._forget(header)
        else:
            known.caller, known.seen_at = caller, asked

    def _caller_of_session(self, known: _Known, found: sessions.SignedInSession | None) -> Principal | None:
        # The secret is not at hand here, so the row must be identical to the one that it matched.
        if found is None or found.session != known.session or not self._is_key_published(known.thumbprint):
            return None
        return found.caller

    def _look_up(self, db: Database, credential: Credential, asked: float) -> _Known:
        text = credential.value if isinstance(credential, SessionCookie) else credential or ""
        if "\0" in text:
            raise AuthenticationError("No key and no session holds the character NUL.")  # PostgreSQL refuses it
        now = db.clock.now()
        if not isinstance(credential, SessionCookie):
            return _Known(authenticate(db, credential, now), asked, asked)
        found = sessions.authenticate(db, text, now)
        thumbprint = found.session.oidc_key_thumbprint
        if not self._is_key_published(thumbprint):
            raise AuthenticationError(sessions.ENDED)
        return _Known(found.caller, asked, asked, found.session, thumbprint)

    def _is_key_published(self, thumbprint: str | None) -> bool:
        """Whether the cached key set still has the key that signed a person's token."""
        return thumbprint is None or (self.oidc is not None and self.oidc.jwks.publishes(thumbprint))

    def _remember(self, header: bytes, known: _Known) -> None:
        if len(self._known) >= MOST_CALLERS:
            self._known = {}
        self._known[header] = known
        self._ever.put(header, True)  # noqa: FBT003 - a set of keys

    def _forget(self, header: bytes) -> None:
        self._known.pop(header, None)
        self._ever.forget_many([header])

    def _write_use(self, callers: list[_Known], asked: float, now: datetime) -> None:
        due = [each for each in callers if each.written_at < min(each.used_at, asked - USE_WRITTEN_SECONDS)]
        if due:
            ages = {(each.caller.organisation_id, each.caller.actor): asked - each.used_at for each in due}
            with self._db.write(ALL_TENANTS) as tx:
                api_keys.save_last_used(tx, {key: now - timedelta(seconds=age) for key, age in ages.items()})
            for each in due:
                each.written_at = asked


def _run_ends(db: Database, keys: Sequence[KeyRecord]) -> dict[str, datetime]:
    """Get when the runs of single-use keys ended; nothing of a worker that does not answer, whose runs get 503."""

    def query(tx: Connection, among: Collection[str] | None) -> list[tuple[str, datetime]]:
        asked = [key for key in keys if among is None or key.organisation_id in among]
        return list(api_keys.ended_runs(tx, asked).items())

    return dict(find_due(db, query)) if keys else {}


def _oidc_authenticator(terms: OidcConfig, breaker: CircuitBreaker, failures: FailedAttemptLog) -> "OidcAuthenticator":
    # joserfc takes 0.04 s to import, and most services take no tokens.
    from app.service.auth.oidc.identities import OidcAuthenticator  # noqa: PLC0415 - as said

    return OidcAuthenticator(terms, breaker, failures)


def _workload_authenticator(
    issuers: Sequence[WorkloadIssuer], breaker: CircuitBreaker, failures: FailedAttemptLog
) -> "WorkloadAuthenticator | None":
    if not issuers:
        return None
    from app.service.auth.workload.authenticator import WorkloadAuthenticator  # noqa: PLC0415 - as above

    return WorkloadAuthenticator(issuers, breaker, failures)


def fingerprint(credential: Credential) -> bytes:
    """Compute the name of a credential in the cache, which does not hold it itself; a session's is longer."""
    if isinstance(credential, SessionCookie):
        return b"session" + hashlib.sha256(credential.value.encode()).digest()
    return hashlib.sha256((credential or "").encode()).digest()
