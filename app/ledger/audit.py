"""The hash chain of a run's decisions: whatever is changed in one of them, or left out, breaks it.

An entry's hash covers the hash before it and everything that a decision and its items say. The first link hangs on the
run itself, so that no chain can be passed off as another run's.
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
class Entry:
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
        refusal: the numbers of a refusal, the text as it is stored.
        created_at: an aware moment.
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
    refusal: str | None
    created_at: datetime


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


def canonical_entry(entry: Entry) -> str:
    """An entry as its one JSON text: sorted keys, no spaces, ASCII.

    Args:
        entry: a decision and its items.

    Returns:
        The text. Floats are the shortest that read back as the same; an infinite epsilon is null, which it is in no
        other case; the moment is in UTC, with microseconds.
    """
    # Every decision of the hot path has this text: json's encoder takes four times as long to write it.
    items = ",".join([f"[{_text(event)},{count}]" for event, count in entry.items])
    return (
        f'{{"attempt":{entry.attempt},"binding_account_id":{_text(entry.binding_account_id)},'
        f'"created_at":"{entry.created_at.astimezone(UTC).isoformat(timespec="microseconds")}",'
        f'"delta":{float(entry.delta)!r},"epsilon":{_NULL if isinf(entry.epsilon) else repr(float(entry.epsilon))},'
        f'"epsilon_limit":{float(entry.epsilon_limit)!r},"first_step":{entry.first_step},'
        f'"idempotency_key":{_text_or_null(entry.idempotency_key)},"items":[{items}],'
        f'"organisation_id":{_text(entry.organisation_id)},"outcome":{_text(entry.outcome)},'
        f'"position":{entry.position},"refusal":{_text_or_null(entry.refusal)},'
        f'"request_fingerprint":{_text(entry.request_fingerprint)},"requested_count":{entry.requested_count},'
        f'"reservation_id":{_text_or_null(entry.reservation_id)},"run_id":{_text(entry.run_id)},'
        f'"step_count":{entry.step_count},'
        f'"steps_remaining":{_NULL if entry.steps_remaining is None else entry.steps_remaining}}}'
    )


def entry_hash(previous: bytes, entry: Entry) -> bytes:
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
