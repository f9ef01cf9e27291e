"""Stored responses to creating requests with an idempotency key."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Final

from sqlalchemy import Connection, bindparam, select

from app.persistence import pipeline
from app.persistence.repositories.expressions import RecordTable, owned_by
from app.persistence.repositories.locks import writes
from app.persistence.tables import decisions, idempotent_responses
from app.persistence.tables.base import stored_number


@dataclass(frozen=True, slots=True)
class Reply:
    """The response to a key's request, and that request's fingerprint."""

    request_fingerprint: str
    body: str
    status: int


_REPLIES = RecordTable(idempotent_responses, Reply)


def find(tx: Connection, organisation_id: str, idempotency_key: str) -> Reply | None:
    """Find the response stored for a key."""
    found = select(idempotent_responses).where(
        owned_by(idempotent_responses, organisation_id, idempotency_key=idempotency_key)
    )
    row = tx.execute(found).one_or_none()
    return None if row is None else _REPLIES.read(row)


_KNOWN = select(idempotent_responses.c.idempotency_key).where(
    idempotent_responses.c.organisation_id == bindparam("of_organisation"),
    idempotent_responses.c.idempotency_key.in_(bindparam("of_keys", expanding=True)),
)


def known(tx: Connection, organisation_id: str, idempotency_keys: Sequence[str]) -> list[str]:
    """List the keys that have a stored response."""
    asked = {"of_organisation": organisation_id, "of_keys": idempotency_keys}
    return list(tx.execute(_KNOWN, asked).scalars())


_DECIDED = select(decisions.c.idempotency_key).where(
    decisions.c.organisation_id == bindparam("of_organisation"),
    decisions.c.idempotency_key.in_(bindparam("of_keys", expanding=True)),
)


def used(tx: Connection, organisation_id: str, idempotency_keys: Sequence[str]) -> list[str]:
    """List the keys that have a stored response or a decision."""
    asked = {"of_organisation": organisation_id, "of_keys": idempotency_keys}
    return [key for found in (_KNOWN, _DECIDED) for key in tx.execute(found, asked).scalars()]


_LOCK: Final = (
    "SELECT pg_advisory_xact_lock(hashtextextended(%(organisation)s::text || ' ' || key, 0))"
    " FROM unnest(%(keys)s::text[]) AS key"
)
# Key by key: a plan that was prepared while the tables were small may read all keys for `= ANY`.
_USED: Final = (
    "SELECT 1 FROM unnest(%(keys)s::text[]) AS asked(key), LATERAL"
    " (SELECT 1 FROM {} WHERE organisation_id = %(number)s::bigint AND idempotency_key = asked.key LIMIT 1) AS used"
)
_REQUIRED: Final = pipeline.required(
    f"{_USED.format(idempotent_responses.name)} UNION ALL {_USED.format(decisions.name)}", "0"
)


def lock_keys(tx: Connection, organisation_id: str, idempotency_keys: Iterable[str]) -> None:
    """Lock keys until the end of a write transaction.

    A key has either a response or a decision: no unique constraint covers both tables. SQLite has one writer anyway.
    """
    keys = sorted(idempotency_keys)
    if keys and writes(tx) and tx.dialect.name == "postgresql":
        pipeline.execute(tx, _LOCK, {"organisation": organisation_id, "keys": pipeline.texts(keys)})


def require_new(tx: Connection, organisation_id: str, idempotency_keys: Sequence[str]) -> None:
    """Lock keys in a pipeline on PostgreSQL, which fails if one of them has a response or a decision."""
    lock_keys(tx, organisation_id, idempotency_keys)
    # A statement of its own: it sees what was committed before it began, so the locks must be held by then.
    keys = pipeline.texts(idempotency_keys)
    pipeline.execute(tx, _REQUIRED, {"number": stored_number(organisation_id), "keys": keys})


def add(tx: Connection, organisation_id: str, idempotency_key: str, reply: Reply, now: datetime) -> None:
    """Store the response to a key."""
    _REPLIES.add(tx, organisation_id, reply, idempotency_key=idempotency_key, created_at=now)
