"""Keys and tokens that were tried and opened nothing: noted in their organisation's chain, a flood as a number."""

import logging
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from functools import partial
from threading import Lock
from time import monotonic

from sqlalchemy.exc import SQLAlchemyError

from app.ledger.audit_actions import AuditAction
from app.ledger.errors import LedgerError
from app.ledger.hash_chain import Actor
from app.persistence.database import Database, error_summary
from app.service.audit_log import AuditEvent, record_event

GATHERED_SECONDS = 60.0
"""After the first failure of a key or a person, how long further ones are counted before they are noted together."""

MOST_GATHERED_SECONDS = 3600.0
"""While they go on they are counted for twice as long each time, and for no longer than this; after so long without
any, the next one is noted at once again. A chain is for ever, and who only knows a key's id may fail without end."""

NOBODY = "unauthenticated"

_logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class FailedAttempt:
    """What was tried.

    Args:
        action: AuditAction.API_KEY_AUTHENTICATION_FAILED or AuditAction.OIDC_TOKEN_AUTHENTICATION_FAILED.
        organisation_id: in whose chain that is noted.
        subject: the key, or the person.
        facts: what else is kept of it.
    """

    action: AuditAction
    organisation_id: str
    subject: str
    facts: Mapping[str, object] = field(default_factory=dict, hash=False)


@dataclass
class _Further:
    """Failures after one that was noted.

    Args:
        tried: what.
        db: where.
        until: when they are noted, by the monotonic clock.
        seconds: for how long they are gathered.
        last_at: of the last failure, by the same clock.
        why: how often, by what was wrong.
    """

    tried: FailedAttempt
    db: Database
    until: float
    seconds: float
    last_at: float
    why: dict[str, int] = field(default_factory=dict)


class FailedAttemptLog:
    """What is to be noted of keys and tokens that opened nothing."""

    def __init__(self) -> None:
        self._further: dict[FailedAttempt, _Further] = {}
        self._lock = Lock()

    def note(self, db: Database, tried: FailedAttempt, why: str, request_id: str | None) -> None:
        """Note a failure: at once if it is the first of its key or person for a while, else together with others.

        Args:
            db: where the organisation lives.
            tried: what opened nothing.
            why: in a word.
            request_id: of the HTTP request.
        """
        with self._lock:
            now, further = monotonic(), self._further.get(tried)
            if further is not None:
                further.why[why] = further.why.get(why, 0) + 1
                further.last_at = now
                return
            self._further[tried] = _Further(tried, db, now + GATHERED_SECONDS, GATHERED_SECONDS, now)
        self._write(db, tried, {why: 1}, request_id)

    def flush(self, db: Database, *, all_of_them: bool = False) -> None:
        """Note what was gathered for long enough, on one database."""
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

        def write(now: datetime) -> None:
            with db.write(tried.organisation_id) as tx:
                record_event(tx, tried.organisation_id, Actor(NOBODY, request_id), act, now)

        try:
            db.retried(partial(write, db.clock.now()))
        except (SQLAlchemyError, LedgerError) as error:  # who tried is told that it opens nothing all the same
            _logger.warning("A %s could not be noted (%s): %s", tried.action, why, error_summary(error))
