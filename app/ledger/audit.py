"""Audit events: their actions, the entries that record them, and signed checkpoints of the chain."""

from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum


class AuditAction(StrEnum):
    """Name what an audit event records; docs/reference/glossary.md explains each."""

    ALERT_SETTINGS_REPLACED = "alert_settings.replaced"
    API_KEY_AUTHENTICATION_FAILED = "api_key.authentication_failed"
    API_KEY_CREATED = "api_key.created"
    API_KEY_REVOKED = "api_key.revoked"
    API_KEY_ROTATED = "api_key.rotated"
    BUDGET_CREATED = "budget.created"
    BUDGET_LIMIT_CHANGED = "budget.limit_changed"
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
    POPULATION_CREATED = "population.created"
    POPULATION_LIMIT_CHANGED = "population.limit_changed"
    POPULATION_PROPOSED = "population.proposed"
    POPULATION_REJECTED = "population.rejected"
    POPULATION_SUPERSEDED = "population.superseded"
    POPULATION_WITHDRAWN = "population.withdrawn"
    QUARANTINE_APPROVED = "quarantine.approved"
    QUARANTINE_LIFTED = "quarantine.lifted"
    QUARANTINE_PLACED = "quarantine.placed"
    QUARANTINE_PROPOSED = "quarantine.proposed"
    QUARANTINE_REJECTED = "quarantine.rejected"
    QUARANTINE_SUPERSEDED = "quarantine.superseded"
    QUARANTINE_WITHDRAWN = "quarantine.withdrawn"
    RESERVATION_REFUSED = "reservation.refused"
    RUN_ABORTED = "run.aborted"
    RUN_ACTIVATED = "run.activated"
    RUN_APPROVED = "run.approved"
    RUN_ATTEMPT_CREATED = "run.attempt_created"
    RUN_COMPLETED = "run.completed"
    RUN_CREATED = "run.created"
    RUN_LIMIT_CHANGED = "run.limit_changed"
    RUN_PAUSED = "run.paused"
    RUN_PROPOSED = "run.proposed"
    RUN_REFUSED = "run.refused"
    RUN_REJECTED = "run.rejected"
    RUN_RESUMED = "run.resumed"
    RUN_SUPERSEDED = "run.superseded"
    RUN_WITHDRAWN = "run.withdrawn"
    RUNS_ANCHORED = "runs.anchored"
    SESSION_CREATED = "session.created"
    SESSION_ENDED = "session.ended"
    SIGNING_KEY_CHANGED = "signing_key.changed"
    WEBHOOK_CREATED = "webhook.created"
    WEBHOOK_DISABLED = "webhook.disabled"
    WEBHOOK_SECRET_ROTATED = "webhook.secret_rotated"  # noqa: S105 - an action


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
