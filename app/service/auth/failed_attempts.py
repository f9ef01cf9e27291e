"""Record failed authentications in the audit log, and repeated ones as counts."""

import logging
from collections.abc import Mapping
from dataclasses import dataclass, field
from threading import Lock
from time import monotonic

from sqlalchemy.exc import SQLAlchemyError

from app.ledger.audit import AuditAction
from app.ledger.errors import LedgerError
from app.ledger.hash_chain import Actor
from app.persistence.database import Database, error_summary
from app.service.audit_log import AuditEvent, record_event

GATHERED_SECONDS = 60.0
"""First interval over which further failures of a key or person are counted into one audit event."""

MOST_GATHERED_SECONDS = 3600.0
"""Upper bound of the interval, which doubles while failures continue. After this long without a failure, the next one
is recorded at once. The audit log is never deleted, and anyone who knows a key's id can fail without end."""

NOBODY = "unauthenticated"

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
    db: Database
    until: float
    seconds: float
    last_at: float
    why: dict[str, int] = field(default_factory=dict)


class FailedAttemptLog:
    """Failed attempts that wait to be recorded; safe to use from any thread."""

    def __init__(self) -> None:
        self._further: dict[FailedAttempt, _Further] = {}
        self._lock = Lock()

    def note(self, db: Database, tried: FailedAttempt, why: str, request_id: str | None) -> None:
        """Record the first failure of a subject at once; count later ones by reason."""
        with self._lock:
            now, further = monotonic(), self._further.get(tried)
            if further is not None:
                further.why[why] = further.why.get(why, 0) + 1
                further.last_at = now
                return
            self._further[tried] = _Further(tried, db, now + GATHERED_SECONDS, GATHERED_SECONDS, now)
        self._write(db, tried, {why: 1}, request_id)

    def flush(self, db: Database, *, all_of_them: bool = False) -> None:
        """Record the counted failures of one database whose interval is over."""
        with self._lock:
            now = monotonic()
            due = [each for each in self._further.values() if each.db is db and (all_of_them or now >= each.until)]
            for each in due:
                del self._further[each.tried]
                if now - each.last_at < MOST_GATHERED_SECONDS:
                    seconds = min(2 * each.seconds, MOST_GATHERED_SECONDS) if each.why else each.seconds
                    self._further[each.tried] = _Further(each.tried, db, now + seconds, seconds, each.last_at)
        for each in due:
            if each.why:
                self._write(db, each.tried, each.why, None)

    def _write(self, db: Database, tried: FailedAttempt, why: dict[str, int], request_id: str | None) -> None:
        act = AuditEvent(tried.action, tried.subject, after={**tried.facts, "times": dict(why)})

        actor = Actor(NOBODY, request_id)
        try:
            now = db.clock.now()
            db.transact(tried.organisation_id, lambda tx: record_event(tx, tried.organisation_id, actor, act, now))
        except (SQLAlchemyError, LedgerError) as error:  # the caller is refused all the same
            _logger.warning("A %s could not be noted (%s): %s", tried.action, why, error_summary(error))
