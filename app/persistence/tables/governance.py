"""Tables of the audit chain, proposals, sessions, alerts and webhooks."""

from sqlalchemy import BigInteger, Column, Float, Index, Integer, LargeBinary, String, Text, UniqueConstraint

from app.ledger.names import ACTOR_LENGTH, KEY_LENGTH, MAX_URL_LENGTH, REQUEST_ID_LENGTH
from app.persistence.tables.base import (
    UtcDateTime,
    foreign_key,
    id_column,
    organisation_foreign_key,
    owned_table,
    partial_index,
)

audit_entries = owned_table(
    "audit_entries",
    ("position",),
    Column("position", BigInteger, nullable=False),
    Column("actor", String(ACTOR_LENGTH), nullable=False),
    Column("action", String(64), nullable=False),
    Column("subject", String(ACTOR_LENGTH), nullable=False),
    Column("before", Text),
    Column("after", Text),
    Column("reason", Text),
    Column("request_id", String(REQUEST_ID_LENGTH)),
    Column("entry_hash", LargeBinary(32), nullable=False),
    Column("created_at", UtcDateTime, nullable=False),
    organisation_foreign_key(),
    Index(None, "organisation_id", "action", "position"),
    Index(None, "organisation_id", "actor", "position"),
    Index(None, "organisation_id", "subject", "position"),
    position_nonnegative="position >= 0",
    entry_hash_is_sha256="length(entry_hash) = 32",
)

proposals = owned_table(
    "proposals",
    ("id",),
    id_column("id"),
    Column("kind", String(16), nullable=False),
    id_column("account_id", nullable=True),
    Column("payload", Text, nullable=False),
    Column("status", String(16), nullable=False),
    Column("reason", Text, nullable=False),
    Column("proposed_by", String(ACTOR_LENGTH), nullable=False),
    Column("proposed_at", UtcDateTime, nullable=False),
    Column("decided_by", String(ACTOR_LENGTH)),
    Column("decided_at", UtcDateTime),
    Column("decision_reason", Text),
    foreign_key("accounts", account_id="id"),
    partial_index("uq_proposals_open", "organisation_id", "account_id", "kind", where="status = 'open'", unique=True),
    kind_known="kind IN ('limit', 'run', 'policy', 'population', 'quarantine')",
    account_required="kind IN ('policy', 'population') OR account_id IS NOT NULL",
    status_known="status IN ('open', 'approved', 'rejected', 'withdrawn', 'superseded')",
    decided_by_unless_open="(status = 'open') = (decided_by IS NULL)",
    decision_complete="(decided_by IS NULL) = (decided_at IS NULL)",
)

checkpoints = owned_table(
    "checkpoints",
    ("audit_length",),
    Column("audit_length", BigInteger, nullable=False),
    Column("audit_head", LargeBinary(32), nullable=False),
    Column("document", Text, nullable=False),
    Column("created_at", UtcDateTime, nullable=False),
    organisation_foreign_key(),
    audit_length_positive="audit_length >= 1",
    audit_head_is_sha256="length(audit_head) = 32",
)

run_anchors = owned_table(
    "run_anchors",
    ("run_id",),
    id_column("run_id"),
    Column("decision_count", BigInteger, nullable=False),
    foreign_key("runs", run_id="account_id"),
    decision_count_positive="decision_count >= 1",
)

verifications = owned_table(
    "verifications",
    ("id",),
    id_column("id"),
    Column("actor", String(ACTOR_LENGTH), nullable=False),
    Column("discrepancy_count", BigInteger, nullable=False),
    Column("report", Text, nullable=False),
    Column("created_at", UtcDateTime, nullable=False),
    organisation_foreign_key(),
    discrepancy_count_nonnegative="discrepancy_count >= 0",
)

sessions = owned_table(
    "sessions",
    ("id",),
    id_column("id"),
    Column("secret_hash", LargeBinary(32), nullable=False),
    Column("actor", String(ACTOR_LENGTH), nullable=False),
    Column("role", String(16)),
    id_column("scope_id", nullable=True),
    Column("oidc_key_thumbprint", String(64)),
    Column("created_at", UtcDateTime, nullable=False),
    Column("expires_at", UtcDateTime, nullable=False),
    UniqueConstraint("id"),
    organisation_foreign_key(),
    foreign_key("accounts", scope_id="id"),
    secret_hash_is_sha256="length(secret_hash) = 32",  # noqa: S106 - a condition
    oidc_session_complete="(role IS NULL) = (oidc_key_thumbprint IS NULL)",
    scope_only_for_oidc="role IS NOT NULL OR scope_id IS NULL",
    expires_after_creation="expires_at > created_at",
)

webhooks = owned_table(
    "webhooks",
    ("id",),
    id_column("id"),
    Column("url", String(MAX_URL_LENGTH), nullable=False),
    Column("types", Text, nullable=False),
    id_column("account_id", nullable=True),
    Column("secret", String(KEY_LENGTH), nullable=False),
    Column("previous_secret", String(KEY_LENGTH)),
    Column("previous_secret_expires_at", UtcDateTime),
    Column("created_at", UtcDateTime, nullable=False),
    Column("disabled_at", UtcDateTime),
    Column("disabled_reason", Text),
    Column("consecutive_failures", Integer, nullable=False),
    Column("failing_since", UtcDateTime),
    organisation_foreign_key(),
    foreign_key("accounts", account_id="id"),
    url_not_empty="url <> ''",
    secret_not_empty="secret <> ''",  # noqa: S106 - a condition
    previous_secret_complete="(previous_secret IS NULL) = (previous_secret_expires_at IS NULL)",  # noqa: S106 - a condition
    disabled_complete="(disabled_at IS NULL) = (disabled_reason IS NULL)",
    consecutive_failures_consistent=(
        "consecutive_failures >= 0 AND (consecutive_failures = 0) = (failing_since IS NULL)"
    ),
)

alerts = owned_table(
    "alerts",
    ("id",),
    id_column("id"),
    Column("type", String(40), nullable=False),
    id_column("account_id", nullable=True),
    Column("dedup_key", String(KEY_LENGTH), nullable=False),
    Column("payload", Text, nullable=False),
    Column("created_at", UtcDateTime, nullable=False),
    UniqueConstraint("organisation_id", "account_id", "type", "dedup_key"),
    organisation_foreign_key(),
    foreign_key("accounts", account_id="id"),
    account_unless_test="(type = 'webhook.test') = (account_id IS NULL)",
)

deliveries = owned_table(
    "deliveries",
    ("id",),
    id_column("id"),
    id_column("webhook_id"),
    id_column("alert_id"),
    Column("status", String(16), nullable=False),
    Column("attempts", Integer, nullable=False),
    Column("next_attempt_at", UtcDateTime, nullable=False),
    Column("last_attempt_at", UtcDateTime),
    Column("last_status", Integer),
    Column("last_error", Text),
    Column("delivered_at", UtcDateTime),
    Column("created_at", UtcDateTime, nullable=False),
    UniqueConstraint("organisation_id", "webhook_id", "alert_id"),
    foreign_key("webhooks", webhook_id="id"),
    foreign_key("alerts", alert_id="id"),
    partial_index("ix_deliveries_pending", "organisation_id", "next_attempt_at", where="status = 'pending'"),
    status_known="status IN ('pending', 'delivered', 'given_up')",
    delivered_at_if_delivered="status <> 'delivered' OR delivered_at IS NOT NULL",
    attempts_nonnegative="attempts >= 0",
)

account_usage_snapshots = owned_table(
    "account_usage_snapshots",
    ("account_id", "day"),
    id_column("account_id"),
    Column("day", Integer, nullable=False),
    Column("utilisation", Float(53), nullable=False),
    Column("recorded_at", UtcDateTime, nullable=False),
    foreign_key("accounts", account_id="id"),
    utilisation_nonnegative="utilisation >= 0",
    day_nonnegative="day >= 0",
)
