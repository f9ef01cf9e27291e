"""What is told of a ledger's accounts, and to whom: the outbox."""

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

from app.persistence.tables.base import (
    KEY_LENGTH,
    UtcDateTime,
    foreign_key,
    id_column,
    metadata,
    organisation_foreign_key,
    partial_index,
)

MAX_URL_LENGTH = 2000
"""Characters of a webhook's URL."""

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
    Column("previous_until", UtcDateTime),
    Column("created_at", UtcDateTime, nullable=False),
    Column("disabled_at", UtcDateTime),
    Column("disabled_because", Text),
    Column("failures", Integer, nullable=False),
    Column("failing_since", UtcDateTime),
    PrimaryKeyConstraint("organisation_id", "id"),
    organisation_foreign_key(),
    foreign_key("accounts", account_id="id"),
    CheckConstraint("url <> ''", name="url_given"),
    CheckConstraint("secret <> ''", name="secret_given"),
    CheckConstraint("(previous_secret IS NULL) = (previous_until IS NULL)", name="previous_whole"),
    CheckConstraint("(disabled_at IS NULL) = (disabled_because IS NULL)", name="disabled_whole"),
    CheckConstraint("failures >= 0 AND (failures = 0) = (failing_since IS NULL)", name="failures_whole"),
)

alerts = Table(
    "alerts",
    metadata,
    id_column("organisation_id"),
    id_column("id"),
    Column("type", String(40), nullable=False),
    id_column("account_id", nullable=True),
    Column("occasion", String(KEY_LENGTH), nullable=False),
    Column("facts", Text, nullable=False),
    Column("created_at", UtcDateTime, nullable=False),
    PrimaryKeyConstraint("organisation_id", "id"),
    UniqueConstraint("organisation_id", "account_id", "type", "occasion"),
    organisation_foreign_key(),
    foreign_key("accounts", account_id="id"),
    CheckConstraint("(type = 'webhook.test') = (account_id IS NULL)", name="about_an_account"),
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
    CheckConstraint("status <> 'delivered' OR delivered_at IS NOT NULL", name="delivered_once"),
    CheckConstraint("attempts >= 0", name="attempts_count"),
    partial_index("ix_deliveries_pending", "organisation_id", "next_attempt_at", where="status = 'pending'"),
)

account_readings = Table(
    "account_readings",
    metadata,
    id_column("organisation_id"),
    id_column("account_id"),
    Column("day", Integer, nullable=False),
    Column("share", Float(53), nullable=False),
    Column("read_at", UtcDateTime, nullable=False),
    PrimaryKeyConstraint("organisation_id", "account_id", "day"),
    foreign_key("accounts", account_id="id"),
    CheckConstraint("share >= 0", name="share_counts"),
    CheckConstraint("day >= 0", name="day_counts"),
)
