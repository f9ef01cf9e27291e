"""Hash chains of runs' decisions and of an organisation's audit events.

An entry's hash covers the previous hash and all of its own fields, so changed or missing entries break the chain. The
first link depends on the run or organisation, so that chains cannot be exchanged (ADR 0014).
"""

import hashlib
import json
from dataclasses import dataclass
from datetime import UTC, datetime
from json.encoder import encode_basestring_ascii as _text
from math import isinf
from typing import Final

HASH_LENGTH: Final = 32
"""Bytes of a hash."""

_NULL: Final = "null"


@dataclass(frozen=True, slots=True)
class Actor:
    """The author of a request, and the HTTP request, if any.

    `actor` is a key's id, "oidc:" and a person's subject, "cli" for the command line, "service" for background work.
    """

    id: str
    request_id: str | None = None


SERVICE: Final = Actor("service")
"""Background work of the ledger itself."""


@dataclass(frozen=True, slots=True)
class DecisionEntry:
    """All fields of a decision and its items.

    Args:
        position: index among the run's decisions.
        outcome: admitted, refused, reported or forfeited.
        request_fingerprint: sha256 (hex) of the request.
        requested_count: number of requested steps; larger than `step_count` if only a prefix was admitted.
        items: (fingerprint of an event, count), in order.
        reservation_id: the reservation of the steps, or the forfeited one.
        epsilon: of the run, afterwards, at `delta`.
        steps_remaining: further repetitions of the last event; None if refused or forfeited.
        refusal_details: of a refusal, as stored text.
        actor: the author of the request.
    """

    organisation_id: str
    run_id: str
    position: int
    attempt: int
    outcome: str
    idempotency_key: str | None
    request_fingerprint: str
    first_step: int
    step_count: int
    requested_count: int
    items: tuple[tuple[str, int], ...]
    reservation_id: str | None
    epsilon: float
    delta: float
    epsilon_limit: float
    steps_remaining: int | None
    binding_account_id: str
    refusal_details: str | None
    created_at: datetime
    actor: str
    request_id: str | None = None


def genesis(organisation_id: str, run_id: str) -> bytes:
    """Compute the hash before a run's first decision."""
    text = json.dumps({"organisation": organisation_id, "run": run_id}, separators=(",", ":"))
    return hashlib.sha256(text.encode()).digest()


def canonical_entry(entry: DecisionEntry) -> str:
    """Serialize an entry to its unique JSON: sorted keys, no spaces, ASCII.

    Floats are the shortest that round-trip, an infinite epsilon is null, and times are UTC with microseconds.
    """
    # Hot path: the json encoder takes four times as long.
    items = ",".join([f"[{_text(event)},{count}]" for event, count in entry.items])
    key, details, request, reservation = [
        _NULL if text is None else _text(text)
        for text in (entry.idempotency_key, entry.refusal_details, entry.request_id, entry.reservation_id)
    ]
    return (
        f'{{"actor":{_text(entry.actor)},"attempt":{entry.attempt},"binding_account_id":{_text(entry.binding_account_id)},'
        f'"created_at":"{entry.created_at.astimezone(UTC).isoformat(timespec="microseconds")}",'
        f'"delta":{float(entry.delta)!r},"epsilon":{_NULL if isinf(entry.epsilon) else repr(float(entry.epsilon))},'
        f'"epsilon_limit":{float(entry.epsilon_limit)!r},"first_step":{entry.first_step},'
        f'"idempotency_key":{key},"items":[{items}],'
        f'"organisation_id":{_text(entry.organisation_id)},"outcome":{_text(entry.outcome)},'
        f'"position":{entry.position},"refusal_details":{details},'
        f'"request_fingerprint":{_text(entry.request_fingerprint)},"request_id":{request},'
        f'"requested_count":{entry.requested_count},'
        f'"reservation_id":{reservation},"run_id":{_text(entry.run_id)},'
        f'"step_count":{entry.step_count},'
        f'"steps_remaining":{_NULL if entry.steps_remaining is None else entry.steps_remaining}}}'
    )


def entry_hash(previous: bytes, entry: DecisionEntry) -> bytes:
    """Compute the hash of an entry, the run's new head."""
    return hashlib.sha256(previous + canonical_entry(entry).encode()).digest()


@dataclass(frozen=True, slots=True)
class AuditEntry:
    """All fields of an entry of an organisation's audit chain.

    `subject` is the id of the changed object; `before` and `after` are its states as canonical JSON, if any.
    `entry_hash` is the link of the chain, which covers the other fields; empty until the entry is recorded.
    """

    organisation_id: str
    position: int
    actor: str
    action: str
    subject: str
    before: str | None
    after: str | None
    reason: str | None
    request_id: str | None
    created_at: datetime
    entry_hash: bytes = b""


def audit_genesis(organisation_id: str) -> bytes:
    """Compute the hash before an organisation's first audit event."""
    text = json.dumps({"audit_log_of": organisation_id}, separators=(",", ":"))
    return hashlib.sha256(text.encode()).digest()


def canonical(value: object) -> str:
    """Serialize JSON to its unique text: sorted keys, no spaces, ASCII."""
    return json.dumps(value, sort_keys=True, separators=(",", ":"), allow_nan=False)


def canonical_audit_entry(entry: AuditEntry) -> str:
    """Serialize an audit entry to its unique JSON; `before` and `after` stay strings."""
    facts = {name: getattr(entry, name) for name in _AUDIT_FIELDS}
    return canonical(facts | {"created_at": entry.created_at.astimezone(UTC).isoformat(timespec="microseconds")})


def digest(secret: bytes | str) -> str:
    """Compute the sha256 (hex) that represents a secret in an entry."""
    return hashlib.sha256(secret if isinstance(secret, bytes) else secret.encode()).hexdigest()


_AUDIT_FIELDS = tuple(name for name in AuditEntry.__dataclass_fields__ if name not in {"created_at", "entry_hash"})


def audit_entry_hash(previous: bytes, entry: AuditEntry) -> bytes:
    """Compute the hash of an audit entry, the organisation's new head."""
    return hashlib.sha256(previous + canonical_audit_entry(entry).encode()).digest()
