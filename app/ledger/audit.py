"""The audit log: its actions, the hash chain of its entries, signed checkpoints, and results of verifications.

An entry's hash covers the previous hash and all of its own fields, so changed or missing entries break the chain. The
first link depends on the organisation, so that chains cannot be exchanged (ADR 0014).
"""

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from enum import StrEnum
from functools import lru_cache
from typing import Final, NamedTuple

import rfc8785


class AuditOrder(StrEnum):
    """The order of a list of the audit log."""

    OLDEST = "oldest"
    NEWEST = "newest"


class AuditAction(StrEnum):
    """Name what an audit event records; docs/reference/glossary.md explains each."""

    ALERT_SETTINGS_REPLACED = "alert_settings.replaced"
    ALLOCATION_APPROVED = "allocation.approved"
    ALLOCATION_PROPOSED = "allocation.proposed"
    ALLOCATION_REJECTED = "allocation.rejected"
    ALLOCATION_REPLACED = "allocation.replaced"
    ALLOCATION_SUPERSEDED = "allocation.superseded"
    ALLOCATION_WITHDRAWN = "allocation.withdrawn"
    API_KEY_AUTHENTICATION_FAILED = "api_key.authentication_failed"
    API_KEY_BOUND = "api_key.bound"
    API_KEY_CREATED = "api_key.created"
    API_KEY_REVOKED = "api_key.revoked"
    API_KEY_ROTATED = "api_key.rotated"
    BLOCK_SCHEDULE_REMOVED = "block_schedule.removed"
    BLOCK_SCHEDULE_REPLACED = "block_schedule.replaced"
    BUDGET_ARCHIVED = "budget.archived"
    BUDGET_CREATED = "budget.created"
    BUDGET_LIMIT_CHANGED = "budget.limit_changed"
    BUDGET_METADATA_CHANGED = "budget.metadata_changed"
    BUDGET_UNARCHIVED = "budget.unarchived"
    EXPERIMENT_CREATED = "experiment.created"
    EXPERIMENT_REFUSED = "experiment.refused"
    LIMIT_APPROVED = "limit.approved"
    LIMIT_PROPOSED = "limit.proposed"
    LIMIT_REJECTED = "limit.rejected"
    LIMIT_SUPERSEDED = "limit.superseded"
    LIMIT_WITHDRAWN = "limit.withdrawn"
    OIDC_TOKEN_AUTHENTICATION_FAILED = "oidc_token.authentication_failed"  # noqa: S105 - an action
    ORGANISATION_CREATED = "organisation.created"
    POLICY_APPROVED = "policy.approved"
    POLICY_PROPOSED = "policy.proposed"
    POLICY_REJECTED = "policy.rejected"
    POLICY_REPLACED = "policy.replaced"
    POLICY_SUPERSEDED = "policy.superseded"
    POLICY_WITHDRAWN = "policy.withdrawn"
    POPULATION_APPROVED = "population.approved"
    POPULATION_ARCHIVED = "population.archived"
    POPULATION_CREATED = "population.created"
    POPULATION_LIMIT_CHANGED = "population.limit_changed"
    POPULATION_METADATA_CHANGED = "population.metadata_changed"
    POPULATION_PROPOSED = "population.proposed"
    POPULATION_REJECTED = "population.rejected"
    POPULATION_SUPERSEDED = "population.superseded"
    POPULATION_UNARCHIVED = "population.unarchived"
    POPULATION_WITHDRAWN = "population.withdrawn"
    QUARANTINE_APPROVED = "quarantine.approved"
    QUARANTINE_LIFTED = "quarantine.lifted"
    QUARANTINE_PLACED = "quarantine.placed"
    QUARANTINE_PROPOSED = "quarantine.proposed"
    QUARANTINE_REJECTED = "quarantine.rejected"
    QUARANTINE_SUPERSEDED = "quarantine.superseded"
    QUARANTINE_WITHDRAWN = "quarantine.withdrawn"
    RESERVATION_CANCELLED = "reservation.cancelled"
    RESERVATION_EXPIRED = "reservation.expired"
    RESERVATION_GRANTED = "reservation.granted"
    RESERVATION_PRIORITIZED = "reservation.prioritized"
    RESERVATION_QUEUED = "reservation.queued"
    RESERVATION_REFUSED = "reservation.refused"
    RUN_ABORTED = "run.aborted"
    RUN_ACTIVATED = "run.activated"
    RUN_APPROVED = "run.approved"
    RUN_ARCHIVED = "run.archived"
    RUN_ATTEMPT_CREATED = "run.attempt_created"
    RUN_COMPLETED = "run.completed"
    RUN_CREATED = "run.created"
    RUN_LIMIT_CHANGED = "run.limit_changed"
    RUN_METADATA_CHANGED = "run.metadata_changed"
    RUN_PAUSED = "run.paused"
    RUN_PROPOSED = "run.proposed"
    RUN_REFUSED = "run.refused"
    RUN_REJECTED = "run.rejected"
    RUN_RESUMED = "run.resumed"
    RUN_SUPERSEDED = "run.superseded"
    RUN_UNARCHIVED = "run.unarchived"
    RUN_WITHDRAWN = "run.withdrawn"
    RUNS_ANCHORED = "runs.anchored"
    SESSION_CREATED = "session.created"
    SESSION_ENDED = "session.ended"
    SIGN_IN_LINK_CREATED = "sign_in_link.created"
    SIGNING_KEY_CHANGED = "signing_key.changed"
    UNARCHIVAL_APPROVED = "unarchival.approved"
    UNARCHIVAL_PROPOSED = "unarchival.proposed"
    UNARCHIVAL_REJECTED = "unarchival.rejected"
    UNARCHIVAL_SUPERSEDED = "unarchival.superseded"
    UNARCHIVAL_WITHDRAWN = "unarchival.withdrawn"
    WORKLOAD_TOKEN_AUTHENTICATION_FAILED = "workload_token.authentication_failed"  # noqa: S105 - an action
    RECEIVER_CREATED = "receiver.created"
    RECEIVER_DELETED = "receiver.deleted"
    RECEIVER_DISABLED = "receiver.disabled"
    RECEIVER_ENABLED = "receiver.enabled"
    RECEIVER_SECRET_ROTATED = "receiver.secret_rotated"  # noqa: S105 - an action


@dataclass(frozen=True, slots=True)
class AuditEvent:
    """An event of the audit log, with the states of the subject before and after; None: it did not exist."""

    action: AuditAction
    subject: str
    before: Mapping[str, object] | None = None
    after: Mapping[str, object] | None = None
    reason: str | None = None


@dataclass(frozen=True, slots=True)
class AuditFilter:
    """A filter of audit entries; None: any.

    Args:
        action: for example "budget.created", or "budget.*" for all of a kind.
        within: entries about this account and its descendants, and about their keys, proposals and experiments.
    """

    action: str | None = None
    actor: str | None = None
    subject: str | None = None
    since: datetime | None = None
    until: datetime | None = None
    within: str | None = None


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """A signed checkpoint: the chain's length and head, and the document as JSON."""

    organisation_id: str
    audit_length: int
    audit_head: bytes
    document: str
    created_at: datetime


@dataclass(frozen=True, slots=True)
class Discrepancy:
    """A discrepancy between the ledger's records.

    Args:
        organisation_id: None: an event's description, found while all ledgers are verified.
        account_id: the account whose balance it leaves unproven; None: no account.
        position: the first bad decision of the run's chain; None: not about a decision.
    """

    organisation_id: str | None
    account_id: str | None
    position: int | None
    detail: str


@dataclass(frozen=True, slots=True)
class QuarantinedAccount:
    """A quarantined account with the reason; `liftable` if no discrepancy of it remains."""

    account_id: str
    detail: str
    liftable: bool


@dataclass(frozen=True, slots=True)
class Verification:
    """The result of a verification of an organisation.

    Args:
        checked: number of checked objects, by kind.
        discrepancies: the first ones.
        discrepancy_count: number of all discrepancies.
        quarantined: the first quarantined accounts.
        quarantined_count: number of all quarantined accounts.
    """

    id: str
    organisation_id: str
    actor: str
    checked: Mapping[str, int]
    discrepancies: tuple[Discrepancy, ...]
    discrepancy_count: int
    quarantined: tuple[QuarantinedAccount, ...]
    quarantined_count: int
    created_at: datetime

    @property
    def sound(self) -> bool:
        """Whether there were no discrepancies."""
        return self.discrepancy_count == 0


class Actor(NamedTuple):
    """The author of a request, and the HTTP request, if any.

    `actor` is a key's id, "oidc:" and a person's subject, "cli" for the command line, "service" for background work.
    """

    id: str
    request_id: str | None = None


SERVICE: Final = Actor("service")
"""Background work of the ledger itself."""


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


SIGNATURE_ALGORITHM: Final = "Ed25519"
"""Of the signatures of canonical JSON."""


def canonical(value: object) -> str:
    """Serialize JSON to its unique text by RFC 8785, which every language can reproduce.

    A number is a double, as in JavaScript: 3.0 is written 3, and an integer must be exact as one.

    Raises:
        ValueError: a number is not finite, or an integer of more than 53 bits; or a text is no Unicode.
    """
    try:
        return rfc8785.dumps(value).decode()  # type: ignore[arg-type] # checked there
    except rfc8785.IntegerDomainError:
        # 1e16 is written as 10000000000000000, and read back as an integer.
        return rfc8785.dumps(json.loads(json.dumps(value), parse_int=_double)).decode()


def _double(integer: str) -> float:
    """Read an integer as the double that is written so. ValueError: there is none."""
    if rfc8785.dumps(number := float(integer)).decode() != integer:
        raise ValueError(f"{integer} is no double: JSON would lose its last digits.")
    return number


@lru_cache(maxsize=1024)
def utc_text(moment: datetime) -> str:
    """Format an aware time: ISO 8601, UTC, with microseconds. A step needs it three times, and it is slow."""
    return moment.astimezone(UTC).isoformat(timespec="microseconds")


def canonical_audit_entry(entry: AuditEntry) -> str:
    """Serialize an audit entry as `canonical` does; `before` and `after` stay strings."""
    facts = {name: getattr(entry, name) for name in _AUDIT_FIELDS}
    # Without floats, the json encoder writes the same, in a seventh of the time: verification needs each entry once.
    texts = facts | {"created_at": utc_text(entry.created_at)}
    return json.dumps(texts, sort_keys=True, separators=(",", ":"), ensure_ascii=False)


def digest(secret: bytes | str) -> str:
    """Compute the sha256 (hex) that represents a secret in an entry."""
    return hashlib.sha256(secret if isinstance(secret, bytes) else secret.encode()).hexdigest()


_AUDIT_FIELDS = tuple(name for name in AuditEntry.__dataclass_fields__ if name not in {"created_at", "entry_hash"})


def audit_entry_hash(previous: bytes, entry: AuditEntry) -> bytes:
    """Compute the hash of an audit entry, the organisation's new head."""
    return hashlib.sha256(previous + canonical_audit_entry(entry).encode()).digest()
