"""Who was authenticated a moment ago, and on which database: the way of every request, past the database."""

import asyncio
import hashlib
import logging
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from time import monotonic

from sqlalchemy.exc import SQLAlchemyError

from app.ledger.audit_actions import AuditAction
from app.ledger.errors import AuthenticationError, LedgerError, LedgerUnavailableError
from app.persistence.database import ALL_TENANTS, Database, error_summary
from app.persistence.lru_cache import LruCache
from app.persistence.repositories import api_keys
from app.persistence.repositories.sessions import SessionRecord
from app.service.auth import sessions
from app.service.auth.authentication import KeyRefusedError, Principal, authenticate, principal_of
from app.service.auth.circuit_breaker import CircuitBreakers
from app.service.auth.failed_attempts import FailedAttempt, FailedAttemptLog
from app.service.auth.oidc.config import OidcConfig
from app.service.auth.oidc.identities import OidcAuthenticator, OidcIdentity
from app.service.auth.oidc.jwks import RETRIED_SECONDS
from app.service.auth.oidc.tokens import token_in
from app.service.background import apart
from app.service.metrics import counters

BELIEVED_SECONDS = 1.0
"""For how long a caller is believed to be who the database said: so long a withdrawn key may still open."""

LOOK_SECONDS = 0.4
"""How often those who ask are looked up anew, beside their requests, so that none of these has to wait for it."""

IDLE_SECONDS = 5.0
"""Who has not asked for so long is looked up again when they ask."""

USE_WRITTEN_SECONDS = 60.0
"""How often it is written when keys were used last."""

MOST_CALLERS = 10_000
"""How many are remembered."""

_logger = logging.getLogger(__name__)


@dataclass
class _Known:
    """A caller; all moments by the monotonic clock.

    Args:
        caller: as the database, or the identity provider, said.
        seen_at: before it was asked.
        used_at: of the last request.
        written_at: when the use was written; that of tokens is not.
        person: who has a token; None: it is a key, or a session.
        session: the row that the session's secret has opened; None: there is none.
        thumbprint: of the provider's key that vouched for whose session it is; None: it is a key's, or there is none.
    """

    caller: Principal
    seen_at: float
    used_at: float
    written_at: float = 0.0
    person: OidcIdentity | None = None
    session: SessionRecord | None = None
    thumbprint: str | None = None

    @property
    def of_key(self) -> bool:
        """Whether a key of this ledger is used, if by way of a session."""
        return self.person is None and self.thumbprint is None


class Authenticator:
    """Callers who were authenticated a moment ago.

    Args:
        databases: by the name of their placement, the default one first.
        openid: what is agreed with an identity provider; None: there is none.
    """

    def __init__(self, databases: Mapping[str, Database], openid: OidcConfig | None = None) -> None:
        self._doors = CircuitBreakers(databases)
        self._known: dict[bytes, _Known] = {}
        self._ever: LruCache[bytes, bool] = LruCache(MOST_CALLERS)
        self._failures = FailedAttemptLog()
        self._people = None if openid is None else OidcAuthenticator(openid, self._doors, self._failures)

    def find(self, authorization: str | None) -> Principal | None:
        """The caller, if this header was authenticated a moment ago."""
        known = self._known.get(_fingerprint(authorization))
        now = monotonic()
        if known is None or now - known.seen_at >= BELIEVED_SECONDS:
            return None
        ends = known.caller.expires_at
        if ends is not None and self._doors[known.caller.placement].db.clock.now() >= ends:
            return None
        known.used_at = now
        return known.caller

    def was_known(self, authorization: str | None) -> bool:
        """Whether this header was ever authenticated here, as far as one remembers."""
        return self._ever.get(_fingerprint(authorization)) is not None

    def authenticate(self, authorization: str | None, request_id: str | None = None) -> Principal:
        """Find out who asks, and remember it for a moment.

        A key or a session is looked up where it was found the last time, then on the default placement, then on the
        others; on those that did not answer only when the rest does not know it.

        Args:
            authorization: the header's value, or a session's cookie behind its scheme.
            request_id: of the HTTP request, for the record of a key that opens nothing.

        Returns:
            The caller.

        Raises:
            AuthenticationError: no key or token, or one that opens nothing.
            LedgerUnavailableError: a database does not answer, and no other one knows the key; or the identity provider
                does not.
            SQLAlchemyError: as before.
        """
        header = _fingerprint(authorization)
        token = token_in(authorization)
        if token is not None:
            return self._authenticate_person(token, header, request_id)
        last = self._known.get(header)
        failure: Exception | None = None
        for placement in self._doors.in_order(last.caller.placement if last else None):
            asked = monotonic()
            try:
                with self._doors[placement].passed() as db:
                    known = self._look_up(db, authorization, placement, asked)
            except KeyRefusedError as error:
                self._forget(header)
                tried = FailedAttempt(
                    AuditAction.API_KEY_AUTHENTICATION_FAILED, error.key.organisation_id, error.key.id
                )
                self._failures.note(self._doors[placement].db, tried, error.why, request_id)
                raise
            except AuthenticationError as error:
                failure = failure or error
            except (SQLAlchemyError, LedgerUnavailableError) as error:
                failure = error  # that database may know the key
            else:
                self._remember(header, known)
                return known.caller
        assert failure is not None, "there is a default placement"
        raise failure

    def sign_in(self, token: str, client_id: str, nonce: str, request_id: str | None = None) -> OidcIdentity:
        """Find out who has signed in at the identity provider.

        Args:
            token: the ID token that it answered with.
            client_id: as it knows this service.
            nonce: that this sign-in sent.
            request_id: of the HTTP request.

        Raises:
            AuthenticationError: the token opens nothing.
            LedgerUnavailableError: the provider, or a database, does not answer.
            SQLAlchemyError: as before.
        """
        assert self._people is not None, "nobody is sent to a provider that is not configured"
        return self._people.signed_in(token, client_id, nonce, request_id)

    async def keep_fresh(self, placement: str) -> None:
        """Look up anew whoever asks of a database, until cancelled; who is not found any more is forgotten."""
        while True:
            await asyncio.sleep(LOOK_SECONDS)
            try:
                await asyncio.to_thread(self.refresh, placement)
                counters.background_done("keys")
            except (SQLAlchemyError, LedgerError) as error:  # they are believed no longer, and look themselves up
                _logger.warning(
                    "The keys of the placement %s could not be looked up: %s", placement, error_summary(error)
                )
            except Exception:
                _logger.exception("The keys of the placement %s could not be looked up", placement)

    async def keep_provider_fresh(self) -> None:
        """Fetch the keys of the identity provider now and then, until cancelled."""
        while self._people is not None:
            try:
                await apart(self._people.renew)
            except LedgerUnavailableError:  # a request does so already
                pass
            except Exception:
                _logger.exception("The keys of the identity provider could not be fetched")
            await asyncio.sleep(RETRIED_SECONDS)

    def refresh(self, placement: str) -> None:
        """Look up anew whoever has asked of a database lately, and write when their keys were used."""
        asked = monotonic()
        here = [(header, known) for header, known in list(self._known.items()) if known.caller.placement == placement]
        for header, known in here:
            if asked - known.used_at > IDLE_SECONDS and (not known.of_key or known.written_at >= known.used_at):
                self._known.pop(header, None)
        here = self._refresh_people(here, asked)
        db = self._doors[placement].db
        self._failures.flush(db)
        if not here:
            return
        now = db.clock.now()
        with db.read(ALL_TENANTS) as tx:
            found = api_keys.find_many(tx, {known.caller.actor for _, known in here if known.session is None})
            signed_in = sessions.look_up(tx, [known.session.id for _, known in here if known.session], placement, now)
        for header, known in self._refresh_sessions(here, signed_in, asked):
            record = found.get(known.caller.actor)
            if record is None or record.trouble(now) is not None:
                self._forget(header)
            else:
                known.caller, known.seen_at = principal_of(record, placement), asked
        self._write_use(db, [known for _, known in here if known.of_key], asked, now)

    def evict(self, authorization: str) -> None:
        """Believe a credential no longer, from now on, in this process."""
        self._forget(_fingerprint(authorization))

    def close(self) -> None:
        """Note what was gathered of keys and tokens that opened nothing."""
        for door in self._doors:
            self._failures.flush(door.db, all_of_them=True)

    def _authenticate_person(self, token: str, header: bytes, request_id: str | None) -> Principal:
        if self._people is None:
            raise AuthenticationError("This service takes no tokens of people; send an API key.")
        asked = monotonic()
        try:
            person = self._people.authenticate(token, request_id)
        except AuthenticationError:
            self._forget(header)
            raise
        self._remember(header, _Known(person.caller, asked, asked, person=person))
        return person.caller

    def _refresh_people(self, here: list[tuple[bytes, _Known]], asked: float) -> list[tuple[bytes, _Known]]:
        """Look whether tokens still hold, without asking anybody; the rest, which are keys."""
        for header, known in here:
            if known.person is not None and self._people is not None:
                if self._people.still_known(known.person):
                    known.seen_at = asked
                else:
                    self._forget(header)
        return [(header, known) for header, known in here if known.person is None]

    def _refresh_sessions(
        self, here: list[tuple[bytes, _Known]], signed_in: Mapping[str, sessions.SignedInSession], asked: float
    ) -> list[tuple[bytes, _Known]]:
        """Note which sessions still hold; the rest, which are keys."""
        for header, known in here:
            if known.session is not None:
                found = signed_in.get(known.session.id)
                # Nobody shows the secret now: only the very row that it opened is believed further.
                if found is None or found.session != known.session or not self._vouched_for(known.thumbprint):
                    self._forget(header)
                else:
                    known.caller, known.seen_at = found.caller, asked
        return [(header, known) for header, known in here if known.session is None]

    def _look_up(self, db: Database, credential: str | None, placement: str, asked: float) -> _Known:
        """Who asks, as a database says.

        Raises:
            AuthenticationError: it does not know the key or the session, or that opens nothing.
        """
        if "\0" in (credential or ""):
            raise AuthenticationError("No key and no session holds the character NUL.")  # PostgreSQL would not take it
        now = db.clock.now()
        cookie = sessions.cookie_in(credential)
        if cookie is None:
            return _Known(authenticate(db, credential, now, placement), asked, asked)
        found = sessions.authenticate(db, cookie, now, placement)
        if not self._vouched_for(found.session.oidc_key_thumbprint):
            raise AuthenticationError(sessions.ENDED)
        known = _Known(found.caller, asked, asked)
        known.session, known.thumbprint = found.session, found.session.oidc_key_thumbprint
        return known

    def _vouched_for(self, thumbprint: str | None) -> bool:
        """Whether the provider still publishes the key by which it vouched for somebody; asks nobody."""
        return thumbprint is None or (self._people is not None and self._people.publishes(thumbprint))

    def _remember(self, header: bytes, known: _Known) -> None:
        if len(self._known) >= MOST_CALLERS:
            self._known = {}
        self._known[header] = known
        self._ever.put(header, True)  # noqa: FBT003 - that it is there says it

    def _forget(self, header: bytes) -> None:
        self._known.pop(header, None)
        self._ever.forget(header)

    def _write_use(self, db: Database, callers: list[_Known], asked: float, now: datetime) -> None:
        due = [
            known
            for known in callers
            if known.used_at > known.written_at and asked - known.written_at > USE_WRITTEN_SECONDS
        ]
        if due:
            when = {
                (known.caller.organisation_id, known.caller.actor): now - timedelta(seconds=asked - known.used_at)
                for known in due
            }
            with db.write(ALL_TENANTS) as tx:
                api_keys.used(tx, when)
            for known in due:
                known.written_at = asked


def _fingerprint(authorization: str | None) -> bytes:
    return hashlib.sha256((authorization or "").encode()).digest()
