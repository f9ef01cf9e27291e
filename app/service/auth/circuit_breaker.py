"""The ways to the databases, past those that do not answer."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import datetime
from threading import Lock

from sqlalchemy.exc import SQLAlchemyError

from app.ledger.errors import AuthenticationError, LedgerUnavailableError
from app.persistence.database import Database


@dataclass
class CircuitBreaker:
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


class CircuitBreakers:
    """The way to every database, by the name of its placement.

    Args:
        databases: the default one first.
    """

    def __init__(self, databases: Mapping[str, Database]) -> None:
        self._doors = {placement: CircuitBreaker(db) for placement, db in databases.items()}

    def now(self) -> datetime:
        """What time it is by the first of the databases whose clock is known; tokens go by that.

        Raises:
            SQLAlchemyError: none is known, and the default one does not answer.
        """
        doors = list(self)
        return next((door for door in doors if door.db.clock.known), doors[0]).db.clock.now()

    def __getitem__(self, placement: str) -> CircuitBreaker:
        """The way to the database of a placement."""
        return self._doors[placement]

    def __iter__(self) -> Iterator[CircuitBreaker]:
        """The ways to all of them, the default one first."""
        return iter(self._doors.values())

    def in_order(self, last: str | None = None) -> list[str]:
        """Where to look for somebody: where they were found the last time, then where one is answered.

        Args:
            last: the placement where they were found; None: nowhere yet.
        """
        doors = self._doors
        return sorted(doors, key=lambda placement: (placement != last, doors[placement].shut))
