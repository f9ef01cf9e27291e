"""The audit log: its actions, the hash chain of its entries, and signed checkpoints.

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

from app.ledger.names import ACTOR_LENGTH
from app.ledger.query_parameters import actor_parameter, parameter, since_parameter, until_parameter
from app.ledger.wording import WordedEnum


class AuditOrder(StrEnum):
    """The order of a list of the audit log."""

    OLDEST = "oldest"
    NEWEST = "newest"


class AuditAction(WordedEnum):
    """Name what an audit event records; docs/reference/glossary.md explains each.

    Its words are the sentence of the pages, without its subject; `describe_event` fills in the facts.
    """

    ALERT_SETTINGS_REPLACED = "alert_settings.replaced", "changed the alert settings of {name}"
    ALLOCATION_APPROVED = "allocation.approved", "approved the proposed allocation {name}"
    ALLOCATION_PROPOSED = "allocation.proposed", "proposed to unlock the limit of {account} earlier"
    ALLOCATION_REJECTED = "allocation.rejected", "rejected the proposed allocation {name}"
    ALLOCATION_REPLACED = "allocation.replaced", "changed the allocation of {name}{allocation}"
    ALLOCATION_SUPERSEDED = "allocation.superseded", "superseded the proposed allocation {name}"
    ALLOCATION_WITHDRAWN = "allocation.withdrawn", "withdrew the proposed allocation {name}"
    API_KEY_AUTHENTICATION_FAILED = (
        "api_key.authentication_failed",
        "failed to authenticate with the key {name}, {times}",
    )
    API_KEY_BOUND = "api_key.bound", "bound the key {name} to the run that it registered"
    API_KEY_CREATED = "api_key.created", "issued the key {name} with the role {role}"
    API_KEY_REVOKED = "api_key.revoked", "revoked the key {name}"
    API_KEY_ROTATED = "api_key.rotated", "rotated the key {name} to {heir}"
    BLOCK_SCHEDULE_REMOVED = "block_schedule.removed", "removed the block schedule of {name}"
    BLOCK_SCHEDULE_REPLACED = "block_schedule.replaced", "set the block schedule of {name} with {limit} for each block"
    BUDGET_ARCHIVED = "budget.archived", "archived {name}"
    BUDGET_CREATED = "budget.created", "created the budget {name} with {limit}"
    BUDGET_LIMIT_CHANGED = "budget.limit_changed", "changed the limit of {name} from {limit_before} to {limit}"
    BUDGET_METADATA_CHANGED = "budget.metadata_changed", "changed the description of {name}"
    BUDGET_UNARCHIVED = "budget.unarchived", "unarchived {name}"
    EXPERIMENT_CREATED = "experiment.created", "created the experiment {name}"
    EXPERIMENT_REFUSED = "experiment.refused", "requested an experiment under {name} that did not fit"
    LIMIT_APPROVED = "limit.approved", "approved the proposed limit {name}"
    LIMIT_PROPOSED = "limit.proposed", "proposed {limit} for {account}, instead of {limit_before}"
    LIMIT_REJECTED = "limit.rejected", "rejected the proposed limit {name}"
    LIMIT_SUPERSEDED = "limit.superseded", "superseded the proposed limit {name}"
    LIMIT_WITHDRAWN = "limit.withdrawn", "withdrew the proposed limit {name}"
    OIDC_TOKEN_AUTHENTICATION_FAILED = (
        "oidc_token.authentication_failed",
        "failed to authenticate with a token of {name}, {times}",
    )
    ORGANISATION_CREATED = "organisation.created", "created the organisation {name}"
    POLICY_APPROVED = "policy.approved", "approved the proposed policy {name}"
    POLICY_PROPOSED = "policy.proposed", "proposed to loosen the policy of {account}"
    POLICY_REJECTED = "policy.rejected", "rejected the proposed policy {name}"
    POLICY_REPLACED = "policy.replaced", "changed the policy of {name}"
    POLICY_SUPERSEDED = "policy.superseded", "superseded the proposed policy {name}"
    POLICY_WITHDRAWN = "policy.withdrawn", "withdrew the proposed policy {name}"
    POPULATION_APPROVED = "population.approved", "approved the population of the proposal {name}"
    POPULATION_ARCHIVED = "population.archived", "archived {name}"
    POPULATION_CREATED = "population.created", "created the population {name} with {limit}"
    POPULATION_LIMIT_CHANGED = "population.limit_changed", "changed the limit of {name} from {limit_before} to {limit}"
    POPULATION_METADATA_CHANGED = "population.metadata_changed", "changed the description of {name}"
    POPULATION_PROPOSED = "population.proposed", "proposed to create the population {name} with {limit}"
    POPULATION_REJECTED = "population.rejected", "rejected the population of the proposal {name}"
    POPULATION_SUPERSEDED = "population.superseded", "superseded the proposal {name} for a population"
    POPULATION_UNARCHIVED = "population.unarchived", "unarchived {name}"
    POPULATION_WITHDRAWN = "population.withdrawn", "withdrew the population of the proposal {name}"
    QUARANTINE_APPROVED = "quarantine.approved", "approved the proposal {name} to lift a quarantine"
    QUARANTINE_LIFTED = "quarantine.lifted", "lifted the quarantine of {name}"
    QUARANTINE_PLACED = "quarantine.placed", "found a discrepancy in {name} and quarantined it"
    QUARANTINE_PROPOSED = "quarantine.proposed", "proposed to lift the quarantine of {account}"
    QUARANTINE_REJECTED = "quarantine.rejected", "rejected the proposal {name} to lift a quarantine"
    QUARANTINE_SUPERSEDED = "quarantine.superseded", "superseded the proposal {name} to lift a quarantine"
    QUARANTINE_WITHDRAWN = "quarantine.withdrawn", "withdrew the proposal {name} to lift a quarantine"
    RESERVATION_CANCELLED = "reservation.cancelled", "cancelled the waiting reservation of {run}"
    RESERVATION_EXPIRED = "reservation.expired", "ended the reservation of {run}, which waited in vain"
    RESERVATION_GRANTED = "reservation.granted", "granted the waiting reservation of {run}{grant}"
    RESERVATION_PRIORITIZED = (
        "reservation.prioritized",
        "moved the reservation of {run} from priority {priority_before} to {priority}",
    )
    RESERVATION_QUEUED = "reservation.queued", "let a reservation of {run} wait{place}"
    RESERVATION_REFUSED = "reservation.refused", "requested a reservation of {name} that did not fit"
    RUN_ABORTED = "run.aborted", "aborted the run {name}{ending}"
    RUN_ACTIVATED = "run.activated", "activated the run {name}"
    RUN_APPROVED = "run.approved", "approved the run of the proposal {name}"
    RUN_ARCHIVED = "run.archived", "archived {name}"
    RUN_ATTEMPT_CREATED = "run.attempt_created", "started attempt {attempt} of the run {name}"
    RUN_COMPLETED = "run.completed", "completed the run {name}{ending}"
    RUN_CREATED = "run.created", "registered the run {name}"
    RUN_LIMIT_CHANGED = "run.limit_changed", "changed the limit of {name} from {limit_before} to {limit}"
    RUN_METADATA_CHANGED = "run.metadata_changed", "changed the description of {name}"
    RUN_PAUSED = "run.paused", "paused the run {name}"
    RUN_PROPOSED = "run.proposed", "requested approval of the run {account}"
    RUN_REFUSED = "run.refused", "requested a run under {name} whose reservation did not fit"
    RUN_REJECTED = "run.rejected", "rejected the run of the proposal {name}"
    RUN_RESUMED = "run.resumed", "resumed the run {name}"
    RUN_SUPERSEDED = "run.superseded", "superseded the proposal {name} for a run"
    RUN_UNARCHIVED = "run.unarchived", "unarchived {name}"
    RUN_WITHDRAWN = "run.withdrawn", "withdrew the run of the proposal {name}"
    CHAINS_ANCHORED = "chains.anchored", "anchored the chains of {runs} runs in this one"
    SESSION_CREATED = "session.created", "signed in"
    SESSION_ENDED = "session.ended", "signed out"
    SIGN_IN_LINK_CREATED = "sign_in_link.created", "created a link that signs in once"
    SIGNING_KEY_CHANGED = "signing_key.changed", "changed the signing key from {signing_key_before} to {signing_key}"
    UNARCHIVAL_APPROVED = "unarchival.approved", "approved the proposal {name} to unarchive an account"
    UNARCHIVAL_PROPOSED = "unarchival.proposed", "proposed to unarchive {account}"
    UNARCHIVAL_REJECTED = "unarchival.rejected", "rejected the proposal {name} to unarchive an account"
    UNARCHIVAL_SUPERSEDED = "unarchival.superseded", "superseded the proposal {name} to unarchive an account"
    UNARCHIVAL_WITHDRAWN = "unarchival.withdrawn", "withdrew the proposal {name} to unarchive an account"
    WORKLOAD_TOKEN_AUTHENTICATION_FAILED = (
        "workload_token.authentication_failed",
        "failed to exchange a token of {name}, {times}",
    )
    RECEIVER_CREATED = "receiver.created", "created a receiver at {host}"
    RECEIVER_DELETED = "receiver.deleted", "deleted the receiver {name} at {host_before}"
    RECEIVER_DISABLED = "receiver.disabled", "disabled the receiver {name}"
    RECEIVER_ENABLED = "receiver.enabled", "enabled the receiver {name}"
    RECEIVER_SECRET_ROTATED = "receiver.secret_rotated", "rotated the secret of the receiver {name}"


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
    """A filter and an order of audit entries; None: any.

    Args:
        within: entries about this account and its descendants, and about their keys, proposals and experiments.
    """

    action: str | None = parameter(
        "Such as `budget.created`; `budget.*` matches the prefix.",
        label="Action",
        hint="run.paused, or run.*",
        most=ACTOR_LENGTH,
    )
    actor: str | None = actor_parameter()
    subject: str | None = parameter("Id of the affected object.", label="Subject", hint="its id", most=ACTOR_LENGTH)
    since: datetime | None = since_parameter()
    until: datetime | None = until_parameter()
    order: AuditOrder = parameter("`oldest` reads the log forward.", default=AuditOrder.NEWEST)
    within: str | None = None


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """A signed checkpoint: the chain's length and head, and the document as JSON."""

    organisation_id: str
    audit_length: int
    audit_head: bytes
    document: str
    created_at: datetime


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
