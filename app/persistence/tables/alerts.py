"""Tables of alert settings, webhooks and the outbox."""

from sqlalchemy import Column, Float, Integer, String, Text, UniqueConstraint

from app.ledger.names import KEY_LENGTH, MAX_URL_LENGTH
from app.persistence.tables.base import (
    UtcDateTime,
    foreign_key,
    id_column,
    organisation_foreign_key,
    owned_table,
    partial_index,
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
