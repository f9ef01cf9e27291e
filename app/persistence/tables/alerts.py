"""Tables of alert settings, webhooks and the outbox."""

from sqlalchemy import (
    CheckConstraint,
    Column,
    Float,
    Integer,
    PrimaryKeyConstraint,
    String,
    Table,
    Text,
    UniqueConstraint,
)

from app.ledger.names import KEY_LENGTH, MAX_URL_LENGTH
from app.persistence.tables.base import (
    UtcDateTime,
    foreign_key,
    id_column,
    metadata,
    organisation_foreign_key,
    partial_index,
)

webhooks = Table(
    "webhooks",
    metadata,
    id_column("organisation_id"),
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
    PrimaryKeyConstraint("organisation_id", "id"),
    organisation_foreign_key(),
    foreign_key("accounts", account_id="id"),
    CheckConstraint("url <> ''", name="url_not_empty"),
    CheckConstraint("secret <> ''", name="secret_not_empty"),
    CheckConstraint(
        "(previous_secret IS NULL) = (previous_secret_expires_at IS NULL)", name="previous_secret_complete"
    ),
    CheckConstraint("(disabled_at IS NULL) = (disabled_reason IS NULL)", name="disabled_complete"),
    CheckConstraint(
        "consecutive_failures >= 0 AND (consecutive_failures = 0) = (failing_since IS NULL)",
        name="consecutive_failures_consistent",
    ),
)

alerts = Table(
    "alerts",
    metadata,
    id_column("organisation_id"),
    id_column("id"),
    Column("type", String(40), nullable=False),
    id_column("account_id", nullable=True),
    Column("dedup_key", String(KEY_LENGTH), nullable=False),
    Column("payload", Text, nullable=False),
    Column("created_at", UtcDateTime, nullable=False),
    PrimaryKeyConstraint("organisation_id", "id"),
    UniqueConstraint("organisation_id", "account_id", "type", "dedup_key"),
    organisation_foreign_key(),
    foreign_key("accounts", account_id="id"),
    CheckConstraint("(type = 'webhook.test') = (account_id IS NULL)", name="account_unless_test"),
)

deliveries = Table(
    "deliveries",
    metadata,
    id_column("organisation_id"),
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
    PrimaryKeyConstraint("organisation_id", "id"),
    UniqueConstraint("organisation_id", "webhook_id", "alert_id"),
    foreign_key("webhooks", webhook_id="id"),
    foreign_key("alerts", alert_id="id"),
    CheckConstraint("status IN ('pending', 'delivered', 'given_up')", name="status_known"),
    CheckConstraint("status <> 'delivered' OR delivered_at IS NOT NULL", name="delivered_at_if_delivered"),
    CheckConstraint("attempts >= 0", name="attempts_nonnegative"),
    partial_index("ix_deliveries_pending", "organisation_id", "next_attempt_at", where="status = 'pending'"),
)

account_usage_snapshots = Table(
    "account_usage_snapshots",
    metadata,
    id_column("organisation_id"),
    id_column("account_id"),
    Column("day", Integer, nullable=False),
    Column("utilisation", Float(53), nullable=False),
    Column("recorded_at", UtcDateTime, nullable=False),
    PrimaryKeyConstraint("organisation_id", "account_id", "day"),
    foreign_key("accounts", account_id="id"),
    CheckConstraint("utilisation >= 0", name="utilisation_nonnegative"),
    CheckConstraint("day >= 0", name="day_nonnegative"),
)
