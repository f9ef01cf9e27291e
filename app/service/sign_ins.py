"""Keys that were tried and opened nothing: noted in their organisation's chain, a flood of them as a number."""

import logging
from dataclasses import dataclass, field
from datetime import UTC, datetime
from threading import Lock
from time import monotonic

from sqlalchemy.exc import SQLAlchemyError

from app.ledger.audit import Asker
from app.ledger.errors import LedgerError
from app.persistence.engine import Database, said_by
from app.persistence.repositories.keys import KeyRecord
from app.service.access import KeyRefusedError
from app.service.acts import Act, append

GATHERED_SECONDS = 60.0
"""After the first failure of a key, how long further ones are counted before they are noted together."""

NOBODY = "unauthenticated"

_logger = logging.getLogger(__name__)


@dataclass
class _Further:
    """Failures of a key after one that was noted.

    Args:
        key: as it is stored.
        db: where.
        until: when they are noted, by the monotonic clock.
        why: how often, by what was wrong.
    """

    key: KeyRecord
    db: Database
    until: float
    why: dict[str, int] = field(default_factory=dict)


class Failures:
    """What is to be noted of keys that opened nothing."""

    def __init__(self) -> None:
        self._further: dict[str, _Further] = {}
        self._lock = Lock()

    def note(self, db: Database, error: KeyRefusedError, request_id: str | None) -> None:
        """Note a failure: at once if it is the first of its key for a while, else together with others.

        Args:
            db: where the key's organisation lives.
            error: what was wrong.
            request_id: of the HTTP request.
        """
        with self._lock:
            further = self._further.get(error.key.id)
            if further is not None:
                further.why[error.why] = further.why.get(error.why, 0) + 1
                return
            self._further[error.key.id] = _Further(error.key, db, monotonic() + GATHERED_SECONDS)
        self._write(db, error.key, {error.why: 1}, request_id)

    def flush(self, db: Database, *, all_of_them: bool = False) -> None:
        """Note what was gathered for long enough, on one database."""
        with self._lock:
            due = [
                each for each in self._further.values() if each.db is db and (all_of_them or monotonic() >= each.until)
            ]
            for each in due:
                del self._further[each.key.id]
        for each in due:
            if each.why:
                self._write(db, each.key, each.why, None)

    def _write(self, db: Database, key: KeyRecord, why: dict[str, int], request_id: str | None) -> None:
        act = Act("key.refused", key.id, after={"times": dict(why)})

        def write() -> None:
            with db.write(key.organisation_id) as tx:
                append(tx, key.organisation_id, Asker(NOBODY, request_id), act, datetime.now(UTC))

        try:
            db.retried(write)
        except (SQLAlchemyError, LedgerError) as error:  # who tried is told that the key opens nothing all the same
            _logger.warning("A refused key %s could not be noted (%s): %s", key.id, why, said_by(error))
