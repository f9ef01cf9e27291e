"""Circuit breaker of the database."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from threading import Lock

from sqlalchemy.exc import SQLAlchemyError

from app.ledger.errors import AuthenticationError, LedgerUnavailableError
from app.persistence.database import Database


@dataclass
class CircuitBreaker:
    """Circuit breaker of a database.

    While the database does not answer, one caller at a time tries it and the others fail at once. So callers that wait
    for it never take all threads from requests that need no database, such as those of health checks.
    """

    db: Database
    is_open: bool = False
    _probe: Lock = field(default_factory=Lock)

    @contextmanager
    def guard(self) -> Iterator[Database]:
        """Yield the database and record whether it answered.

        Raises:
            LedgerUnavailableError: the circuit is open, and another caller tries the database.
        """
        knocks = self.is_open
        if knocks and not self._probe.acquire(blocking=False):
            raise LedgerUnavailableError("The database does not answer. Retry the request shortly.")
        try:
            yield self.db
        except (SQLAlchemyError, LedgerUnavailableError):
            self.is_open = True
            raise
        except AuthenticationError:  # the database answered
            self.is_open = False
            raise
        else:
            self.is_open = False
        finally:
            if knocks:
                self._probe.release()
