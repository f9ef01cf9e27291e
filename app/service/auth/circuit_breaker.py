"""Circuit breakers of the databases."""

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
    """Circuit breaker of one database.

    While the database does not answer, one caller at a time tries it and the others fail at once. So callers that wait
    for it never take all threads from the callers of other databases.
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


class CircuitBreakers(dict[str, CircuitBreaker]):
    """Circuit breakers of all databases, by placement, the default one first."""

    def __init__(self, databases: Mapping[str, Database]) -> None:
        super().__init__({placement: CircuitBreaker(db) for placement, db in databases.items()})

    def now(self) -> datetime:
        """Get the time by which tokens are checked: of the first database whose clock is known."""
        breakers = list(self.values())
        return next((each for each in breakers if each.db.clock.known), breakers[0]).db.clock.now()

    def in_order(self, last: str | None = None) -> list[str]:
        """List the placements to search: `last` first, those that do not answer at the end."""
        return sorted(self, key=lambda placement: (placement != last, self[placement].is_open))
