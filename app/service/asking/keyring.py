"""Who was authenticated a moment ago, and on which database: the way of every request, past the database."""

import asyncio
import hashlib
import logging
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from time import monotonic

from sqlalchemy.exc import SQLAlchemyError

from app.ledger.errors import AuthenticationError, LedgerError, LedgerUnavailableError
from app.persistence.engine import EVERYONE, Database, said_by
from app.persistence.recent import Recent
from app.persistence.repositories import keys
from app.service.asking.access import Caller, KeyRefusedError, authenticate, caller_of
from app.service.asking.doors import Doors
from app.service.asking.openid.people import People, Person
from app.service.asking.openid.provider import RETRIED_SECONDS
from app.service.asking.openid.terms import OpenIdTerms
from app.service.asking.openid.tokens import token_in
from app.service.asking.sign_ins import Failures, Tried

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
        person: who has a token; None: it is a key.
    """

    caller: Caller
    seen_at: float
    used_at: float
    written_at: float = 0.0
    person: Person | None = None


class KeyRing:
    """Callers who were authenticated a moment ago.

    Args:
        databases: by the name of their placement, the default one first.
        openid: what is agreed with an identity provider; None: there is none.
    """

    def __init__(self, databases: Mapping[str, Database], openid: OpenIdTerms | None = None) -> None:
        self._doors = Doors(databases)
        self._known: dict[bytes, _Known] = {}
        self._ever: Recent[bytes, bool] = Recent(MOST_CALLERS)
        self._failures = Failures()
        self._people = None if openid is None else People(openid, self._doors, self._failures)

    def find(self, authorization: str | None) -> Caller | None:
        """The caller, if this header was authenticated a moment ago."""
        known = self._known.get(_fingerprint(authorization))
        now = monotonic()
        if known is None or now - known.seen_at >= BELIEVED_SECONDS:
            return None
        ends = known.caller.expires_at
        if ends is not None and datetime.now(UTC) >= ends:
            return None
        known.used_at = now
        return known.caller

    def knew(self, authorization: str | None) -> bool:
        """Whether this header was ever authenticated here, as far as one remembers."""
        return self._ever.get(_fingerprint(authorization)) is not None

    def authenticate(self, authorization: str | None, request_id: str | None = None) -> Caller:
        """Find out who asks, and remember it for a moment.

        A key is looked up where it was found the last time, then on the default placement, then on the others; on
        those that did not answer only when the rest does not know it.

        Args:
            authorization: the header's value.
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
                    caller = authenticate(db, authorization, datetime.now(UTC), placement)
            except KeyRefusedError as error:
                self._forget(header)
                tried = Tried("key.refused", error.key.organisation_id, error.key.id)
                self._failures.note(self._doors[placement].db, tried, error.why, request_id)
                raise
            except AuthenticationError as error:
                failure = failure or error
            except (SQLAlchemyError, LedgerUnavailableError) as error:
                failure = error  # that database may know the key
            else:
                self._remember(header, _Known(caller, asked, asked))
                return caller
        assert failure is not None, "there is a default placement"
        raise failure

    async def keep_fresh(self, placement: str) -> None:
        """Look up anew whoever asks of a database, until cancelled; who is not found any more is forgotten."""
        while True:
            await asyncio.sleep(LOOK_SECONDS)
            try:
                await asyncio.to_thread(self.refresh, placement)
            except (SQLAlchemyError, LedgerError) as error:  # they are believed no longer, and look themselves up
                _logger.warning("The keys of the placement %s could not be looked up: %s", placement, said_by(error))
            except Exception:
                _logger.exception("The keys of the placement %s could not be looked up", placement)

    async def keep_provider_fresh(self) -> None:
        """Fetch the keys of the identity provider now and then, until cancelled."""
        while self._people is not None:
            try:
                await asyncio.to_thread(self._people.renew)
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
            if asked - known.used_at > IDLE_SECONDS and (known.person or known.written_at >= known.used_at):
                self._known.pop(header, None)
        here = self._refresh_people(here, asked)
        db = self._doors[placement].db
        self._failures.flush(db)
        if not here:
            return
        with db.read(EVERYONE) as tx:
            found = keys.find_many(tx, {known.caller.actor for _, known in here})
        now = datetime.now(UTC)
        for header, known in here:
            record = found.get(known.caller.actor)
            if record is None or record.trouble(now) is not None:
                self._forget(header)
            else:
                known.caller, known.seen_at = caller_of(record, placement), asked
        self._write_use(db, [known for _, known in here], asked, now)

    def close(self) -> None:
        """Note what was gathered of keys and tokens that opened nothing."""
        for door in self._doors:
            self._failures.flush(door.db, all_of_them=True)

    def _authenticate_person(self, token: str, header: bytes, request_id: str | None) -> Caller:
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
            with db.write(EVERYONE) as tx:
                keys.used(tx, when)
            for known in due:
                known.written_at = asked


def _fingerprint(authorization: str | None) -> bytes:
    return hashlib.sha256((authorization or "").encode()).digest()
