"""The hash chains of runs' decisions and of an organisation's acts: whatever is changed in one, or left out, breaks it.

An entry's hash covers the hash before it and everything that the entry says. The first link hangs on the run, or on the
organisation, so that no chain can be passed off as another one.
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
    """Who asked, and in which request.

    Args:
        actor: a key's id, "oidc:" and a person's subject, "cli" for the command line, "service" for the ledger itself.
        request_id: of the HTTP request; None: there was none.
    """

    actor: str
    request_id: str | None = None


SERVICE: Final = Actor("service")
"""Nobody asked: the ledger does by itself what time demands."""


@dataclass(frozen=True, slots=True)
class DecisionEntry:
    """Everything that a decision and its items say.

    Args:
        organisation_id: whose ledger.
        run_id: whose decision.
        position: its place among the run's decisions, from 0.
        attempt: of the run.
        outcome: admitted, refused, reported or forfeited.
        idempotency_key: of the request, if it carried one.
        request_fingerprint: sha256 (hex) of what was asked.
        first_step: the number of the first step.
        step_count: how many steps the items stand for.
        requested_count: how many were asked; more than `step_count` where only the first of them were admitted.
        items: (fingerprint of an event, count), in order.
        reservation_id: under which the steps were taken, or whose rest is forfeited.
        epsilon: of the run, afterwards.
        delta: at which epsilon is read.
        epsilon_limit: that governs the run.
        steps_remaining: further repetitions of the last event; None if refused or forfeited.
        binding_account_id: the account that leaves the fewest.
        refusal_details: the numbers of a refusal, the text as it is stored.
        created_at: an aware moment.
        actor: who asked; None: a decision of a version that did not keep it.
        request_id: of the request that was decided; None: there was none, or it was not kept.
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
    actor: str | None = None
    request_id: str | None = None


def genesis(organisation_id: str, run_id: str) -> bytes:
    """The hash before a run's first decision.

    Args:
        organisation_id: whose ledger.
        run_id: whose chain.

    Returns:
        32 bytes.
    """
    text = json.dumps({"organisation": organisation_id, "run": run_id}, separators=(",", ":"))
    return hashlib.sha256(text.encode()).digest()


def canonical_entry(entry: DecisionEntry) -> str:
    """An entry as its one JSON text: sorted keys, no spaces, ASCII.

    Args:
        entry: a decision and its items.

    Returns:
        The text. Floats are the shortest that read back as the same; an infinite epsilon is null, which it is in no
        other case; the moment is in UTC, with microseconds. Who asked, and in which request, stand there if they were
        kept: the entries of earlier versions keep their texts.
    """
    # Every decision of the hot path has this text: json's encoder takes four times as long to write it.
    items = ",".join([f"[{_text(event)},{count}]" for event, count in entry.items])
    actor = "" if entry.actor is None else f'"actor":{_text(entry.actor)},'
    request = "" if entry.request_id is None else f'"request_id":{_text(entry.request_id)},'
    return (
        f'{{{actor}"attempt":{entry.attempt},"binding_account_id":{_text(entry.binding_account_id)},'
        f'"created_at":"{entry.created_at.astimezone(UTC).isoformat(timespec="microseconds")}",'
        f'"delta":{float(entry.delta)!r},"epsilon":{_NULL if isinf(entry.epsilon) else repr(float(entry.epsilon))},'
        f'"epsilon_limit":{float(entry.epsilon_limit)!r},"first_step":{entry.first_step},'
        f'"idempotency_key":{_text_or_null(entry.idempotency_key)},"items":[{items}],'
        f'"organisation_id":{_text(entry.organisation_id)},"outcome":{_text(entry.outcome)},'
        f'"position":{entry.position},"refusal":{_text_or_null(entry.refusal_details)},'
        f'"request_fingerprint":{_text(entry.request_fingerprint)},{request}"requested_count":{entry.requested_count},'
        f'"reservation_id":{_text_or_null(entry.reservation_id)},"run_id":{_text(entry.run_id)},'
        f'"step_count":{entry.step_count},'
        f'"steps_remaining":{_NULL if entry.steps_remaining is None else entry.steps_remaining}}}'
    )


def entry_hash(previous: bytes, entry: DecisionEntry) -> bytes:
    """The hash of an entry, which is the run's new head.

    Args:
        previous: the hash before it; `genesis` for the first.
        entry: a decision and its items.

    Returns:
        32 bytes.
    """
    return hashlib.sha256(previous + canonical_entry(entry).encode()).digest()


def _text_or_null(text: str | None) -> str:
    return _NULL if text is None else _text(text)


@dataclass(frozen=True, slots=True)
class AuditEntry:
    """Everything that an entry of an organisation's own chain says.

    Args:
        organisation_id: whose ledger.
        position: its place among the organisation's entries, from 0.
        actor: who did it.
        action: what was done, as "budget.created".
        subject: the id of what it was done to.
        before: what was there, as canonical JSON; None: nothing.
        after: what is there now, as canonical JSON; None: nothing.
        reason: why, in the actor's words.
        request_id: of the request in which it was done.
        created_at: an aware moment.
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


def audit_genesis(organisation_id: str) -> bytes:
    """The hash before an organisation's first act: 32 bytes."""
    text = json.dumps({"acts_of": organisation_id}, separators=(",", ":"))
    return hashlib.sha256(text.encode()).digest()


def canonical(value: object) -> str:
    """Any value of JSON as its one text: sorted keys, no spaces, ASCII, no infinities."""
    return json.dumps(value, sort_keys=True, separators=(",", ":"), allow_nan=False)


def canonical_audit_entry(entry: AuditEntry) -> str:
    """An entry of an organisation's chain as its one JSON text; `before` and `after` are texts in it, as kept."""
    facts = {name: getattr(entry, name) for name in _ACT_FIELDS}
    return canonical(facts | {"created_at": entry.created_at.astimezone(UTC).isoformat(timespec="microseconds")})


def digest(secret: bytes | str) -> str:
    """Get what an entry says of something that it must not hold itself: sha256 (hex)."""
    return hashlib.sha256(secret if isinstance(secret, bytes) else secret.encode()).hexdigest()


_ACT_FIELDS = tuple(name for name in AuditEntry.__dataclass_fields__ if name != "created_at")


def audit_entry_hash(previous: bytes, entry: AuditEntry) -> bytes:
    """The hash of an act, which is the organisation's new head: 32 bytes."""
    return hashlib.sha256(previous + canonical_audit_entry(entry).encode()).digest()
