"""Who was authenticated a moment ago, and on which database: the way of every request, past the database."""

import hashlib
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from threading import Lock
from time import monotonic

from sqlalchemy.exc import SQLAlchemyError

from app.ledger.errors import AuthenticationError, LedgerUnavailableError
from app.persistence.engine import Database
from app.service.access import Caller, authenticate

REMEMBERED_SECONDS = 5.0
MOST_CALLERS = 10_000
"""For how long a key that was found is not looked up again, and how many are remembered."""


@dataclass
class _Door:
    """The way to one database: while it does not answer, one caller at a time tries, and the others are told at once.

    So those who wait for a database that is gone do not take all threads from those who need another one.
    """

    db: Database
    shut: bool = False
    _knocking: Lock = field(default_factory=Lock)

    @contextmanager
    def passed(self) -> Iterator[Database]:
        """The database, and a note of whether it answered."""
        knocks = self.shut
        if knocks and not self._knocking.acquire(blocking=False):
            raise LedgerUnavailableError("The database does not answer. Repeat the request in a moment.")
        try:
            yield self.db
        except (SQLAlchemyError, LedgerUnavailableError):
            self.shut = True
            raise
        except AuthenticationError:  # an answer as well
            self.shut = False
            raise
        else:
            self.shut = False
        finally:
            if knocks:
                self._knocking.release()


class KeyRing:
    """Callers who were authenticated a moment ago; within it a key that was withdrawn still opens.

    Args:
        databases: by the name of their placement, the default one first.
    """

    def __init__(self, databases: Mapping[str, Database]) -> None:
        self._doors = {placement: _Door(db) for placement, db in databases.items()}
        self._known: dict[bytes, tuple[Caller, float]] = {}

    def find(self, authorization: str | None) -> Caller | None:
        """The caller, if this header was authenticated a moment ago."""
        caller, until = self._known.get(_fingerprint(authorization), (None, 0.0))
        return caller if monotonic() < until else None

    def authenticate(self, authorization: str | None) -> Caller:
        """Find out who asks, and remember it for a moment.

        A key is looked up where it was found the last time, then on the default placement, then on the others; on
        those that did not answer only when the rest does not know it.

        Args:
            authorization: the header's value.

        Returns:
            The caller.

        Raises:
            AuthenticationError: no key, or none that this ledger knows.
            LedgerUnavailableError: a database does not answer, and no other one knows the key.
            SQLAlchemyError: as before.
        """
        header = _fingerprint(authorization)
        last, _ = self._known.get(header, (None, 0.0))
        failure: Exception | None = None
        for placement in self._order(last.placement if last else None):
            try:
                with self._doors[placement].passed() as db:
                    caller = authenticate(db, authorization, placement)
            except AuthenticationError as error:
                failure = failure or error
            except (SQLAlchemyError, LedgerUnavailableError) as error:
                failure = error  # that database may know the key
            else:
                if len(self._known) >= MOST_CALLERS:
                    self._known = {}
                self._known[header] = (caller, monotonic() + REMEMBERED_SECONDS)
                return caller
        assert failure is not None, "there is a default placement"
        raise failure

    def _order(self, last: str | None) -> list[str]:
        doors = self._doors
        return sorted(doors, key=lambda placement: (placement != last, doors[placement].shut))


def _fingerprint(authorization: str | None) -> bytes:
    return hashlib.sha256((authorization or "").encode()).digest()
