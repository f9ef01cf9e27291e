"""Tables of the audit chain, proposals, sessions, sign-in links, alerts and receivers."""

from sqlalchemy import BigInteger, Column, Float, Index, Integer, String, Text, UniqueConstraint

from app.ledger.accounts.alerts import DeliveryStatus
from app.ledger.accounts.receivers import ReceiverKind
from app.ledger.governance.proposals import ProposalKind, ProposalStatus
from app.ledger.names import ACTOR_LENGTH, KEY_LENGTH, MAX_URL_LENGTH, REQUEST_ID_LENGTH
from app.persistence.tables.base import (
    UtcDateTime,
    digest_column,
    enum_column,
    foreign_key,
    number_column,
    organisation_foreign_key,
    owned_table,
    partial_index,
    reference,
    text_column,
)

audit_entries = owned_table(
    "audit_entries",
    *number_column("position", BigInteger),
    Column("actor", String(ACTOR_LENGTH), nullable=False),
    Column("action", String(64), nullable=False),
    Column("subject", String(ACTOR_LENGTH), nullable=False),
    Column("before", Text),
    Column("after", Text),
    Column("reason", Text),
    Column("request_id", String(REQUEST_ID_LENGTH)),
    *digest_column("entry_hash"),
    Column("created_at", UtcDateTime, nullable=False),
    organisation_foreign_key(),
    Index(None, "organisation_id", "action", "position"),
    Index(None, "organisation_id", "actor", "position"),
    Index(None, "organisation_id", "subject", "position"),
    key=("position",),
)

proposals = owned_table(
    "proposals",
    *enum_column("kind", 16, ProposalKind),
    *reference("account_id", "accounts", nullable=True),
    Column("payload", Text, nullable=False),
    *enum_column("status", 16, ProposalStatus),
    Column("reason", Text, nullable=False),
    Column("proposed_by", String(ACTOR_LENGTH), nullable=False),
    Column("proposed_at", UtcDateTime, nullable=False),
    Column("decided_by", String(ACTOR_LENGTH)),
    Column("decided_at", UtcDateTime),
    Column("decision_reason", Text),
    partial_index("uq_proposals_open", "account_id", "kind", where="status = 'open'", unique=True),
    account_required="kind IN ('policy', 'population') OR account_id IS NOT NULL",
    decided_by_unless_open="(status = 'open') = (decided_by IS NULL)",
    decision_complete="(decided_by IS NULL) = (decided_at IS NULL)",
)

checkpoints = owned_table(
    "checkpoints",
    *number_column("audit_length", BigInteger, least=1),
    *digest_column("audit_head"),
    Column("document", Text, nullable=False),
    Column("created_at", UtcDateTime, nullable=False),
    organisation_foreign_key(),
    key=("audit_length",),
)

run_anchors = owned_table(
    "run_anchors",
    *number_column("decision_count", BigInteger, least=1),
    foreign_key("runs", run_id="account_id"),
    key=("run_id",),
)

verifications = owned_table(
    "verifications",
    Column("actor", String(ACTOR_LENGTH), nullable=False),
    *number_column("discrepancy_count", BigInteger),
    Column("report", Text, nullable=False),
    Column("created_at", UtcDateTime, nullable=False),
    organisation_foreign_key(),
)

sessions = owned_table(
    "sessions",
    *digest_column("secret_hash"),
    Column("actor", String(ACTOR_LENGTH), nullable=False),
    Column("role", String(16)),
    *reference("scope_id", "accounts", nullable=True),
    Column("oidc_key_thumbprint", String(64)),
    Column("created_at", UtcDateTime, nullable=False),
    Column("expires_at", UtcDateTime, nullable=False),
    UniqueConstraint("id"),
    organisation_foreign_key(),
    oidc_session_complete="(role IS NULL) = (oidc_key_thumbprint IS NULL)",
    scope_only_for_oidc="role IS NOT NULL OR scope_id IS NULL",
    expires_after_creation="expires_at > created_at",
)

sign_in_links = owned_table(
    "sign_in_links",
    *reference("key_id", "api_keys"),
    *digest_column("secret_hash"),
    Column("created_at", UtcDateTime, nullable=False),
    Column("expires_at", UtcDateTime, nullable=False),
    UniqueConstraint("id"),
    UniqueConstraint("organisation_id"),
    organisation_foreign_key(),
    expires_after_creation="expires_at > created_at",
)

receivers = owned_table(
    "receivers",
    *enum_column("kind", 16, ReceiverKind),
    *text_column("url", String(MAX_URL_LENGTH), nullable=True),
    Column("addresses", Text, nullable=False),
    Column("types", Text, nullable=False),
    *reference("account_id", "accounts", nullable=True),
    *text_column("secret", String(KEY_LENGTH), nullable=True),
    Column("previous_secret", String(KEY_LENGTH)),
    Column("previous_secret_expires_at", UtcDateTime),
    Column("created_at", UtcDateTime, nullable=False),
    Column("disabled_at", UtcDateTime),
    Column("disabled_reason", Text),
    Column("consecutive_failures", Integer, nullable=False),
    Column("failing_since", UtcDateTime),
    organisation_foreign_key(),
    url_unless_email="(kind = 'email') = (url IS NULL)",
    addresses_if_email="(kind = 'email') = (addresses <> '[]')",
    secret_if_webhook="(kind = 'webhook') = (secret IS NOT NULL)",  # noqa: S106 - a condition
    previous_secret_complete="(previous_secret IS NULL) = (previous_secret_expires_at IS NULL)",  # noqa: S106 - a condition
    disabled_complete="(disabled_at IS NULL) = (disabled_reason IS NULL)",
    consecutive_failures_consistent=(
        "consecutive_failures >= 0 AND (consecutive_failures = 0) = (failing_since IS NULL)"
    ),
)

alerts = owned_table(
    "alerts",
    Column("type", String(40), nullable=False),
    *reference("account_id", "accounts", nullable=True),
    Column("dedup_key", String(KEY_LENGTH), nullable=False),
    Column("payload", Text, nullable=False),
    Column("created_at", UtcDateTime, nullable=False),
    UniqueConstraint("organisation_id", "account_id", "type", "dedup_key"),
    organisation_foreign_key(),
    partial_index("uq_alerts_of_organisation", "type", "dedup_key", where="account_id IS NULL", unique=True),
    account_unless_of_organisation=(
        "account_id IS NOT NULL OR type IN ('receiver.test', 'proposal.opened', 'proposal.decided')"
    ),
    test_without_account="type <> 'receiver.test' OR account_id IS NULL",
)

deliveries = owned_table(
    "deliveries",
    *reference("receiver_id", "receivers"),
    *reference("alert_id", "alerts"),
    *enum_column("status", 16, DeliveryStatus),
    *number_column("attempts", Integer),
    Column("next_attempt_at", UtcDateTime, nullable=False),
    Column("last_attempt_at", UtcDateTime),
    Column("last_status", Integer),
    Column("last_error", Text),
    Column("delivered_at", UtcDateTime),
    Column("created_at", UtcDateTime, nullable=False),
    UniqueConstraint("organisation_id", "receiver_id", "alert_id"),
    partial_index("ix_deliveries_pending", "next_attempt_at", where="status = 'pending'"),
    delivered_at_if_delivered="status <> 'delivered' OR delivered_at IS NOT NULL",
)

account_usage_snapshots = owned_table(
    "account_usage_snapshots",
    *number_column("day", Integer),
    Column("used", Float(53), nullable=False),
    Column("recorded_at", UtcDateTime, nullable=False),
    foreign_key("accounts", account_id="id"),
    key=("account_id", "day"),
    used_nonnegative="used >= 0",
)
