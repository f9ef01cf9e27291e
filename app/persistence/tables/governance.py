"""Tables of the audit chain and of proposals."""

from sqlalchemy import (
    BigInteger,
    CheckConstraint,
    Column,
    Index,
    LargeBinary,
    PrimaryKeyConstraint,
    String,
    Table,
    Text,
    UniqueConstraint,
)

from app.ledger.names import ACTOR_LENGTH, REQUEST_ID_LENGTH
from app.persistence.tables.base import (
    UtcDateTime,
    foreign_key,
    id_column,
    metadata,
    organisation_foreign_key,
    partial_index,
)

audit_entries = Table(
    "audit_entries",
    metadata,
    id_column("organisation_id"),
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
    PrimaryKeyConstraint("organisation_id", "position"),
    organisation_foreign_key(),
    CheckConstraint("position >= 0", name="position_nonnegative"),
    CheckConstraint("length(entry_hash) = 32", name="entry_hash_is_sha256"),
    Index(None, "organisation_id", "action", "position"),
    Index(None, "organisation_id", "actor", "position"),
    Index(None, "organisation_id", "subject", "position"),
)

proposals = Table(
    "proposals",
    metadata,
    id_column("organisation_id"),
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
    PrimaryKeyConstraint("organisation_id", "id"),
    foreign_key("accounts", account_id="id"),
    CheckConstraint("kind IN ('limit', 'run', 'policy', 'population', 'quarantine')", name="kind_known"),
    CheckConstraint("kind IN ('policy', 'population') OR account_id IS NOT NULL", name="account_required"),
    CheckConstraint("status IN ('open', 'approved', 'rejected', 'withdrawn', 'superseded')", name="status_known"),
    CheckConstraint("(status = 'open') = (decided_by IS NULL)", name="decided_by_unless_open"),
    CheckConstraint("(decided_by IS NULL) = (decided_at IS NULL)", name="decision_complete"),
    partial_index("uq_proposals_open", "organisation_id", "account_id", "kind", where="status = 'open'", unique=True),
)

checkpoints = Table(
    "checkpoints",
    metadata,
    id_column("organisation_id"),
    Column("audit_length", BigInteger, nullable=False),
    Column("audit_head", LargeBinary(32), nullable=False),
    Column("document", Text, nullable=False),
    Column("created_at", UtcDateTime, nullable=False),
    PrimaryKeyConstraint("organisation_id", "audit_length"),
    organisation_foreign_key(),
    CheckConstraint("audit_length >= 1", name="audit_length_positive"),
    CheckConstraint("length(audit_head) = 32", name="audit_head_is_sha256"),
)

run_anchors = Table(
    "run_anchors",
    metadata,
    id_column("organisation_id"),
    id_column("run_id"),
    Column("decision_count", BigInteger, nullable=False),
    PrimaryKeyConstraint("organisation_id", "run_id"),
    foreign_key("runs", run_id="account_id"),
    CheckConstraint("decision_count >= 1", name="decision_count_positive"),
)

sessions = Table(
    "sessions",
    metadata,
    id_column("organisation_id"),
    id_column("id"),
    Column("secret_hash", LargeBinary(32), nullable=False),
    Column("actor", String(ACTOR_LENGTH), nullable=False),
    Column("role", String(16)),
    id_column("scope_id", nullable=True),
    Column("oidc_key_thumbprint", String(64)),
    Column("created_at", UtcDateTime, nullable=False),
    Column("expires_at", UtcDateTime, nullable=False),
    PrimaryKeyConstraint("organisation_id", "id"),
    UniqueConstraint("id"),
    organisation_foreign_key(),
    foreign_key("accounts", scope_id="id"),
    CheckConstraint("length(secret_hash) = 32", name="secret_hash_is_sha256"),
    CheckConstraint("(role IS NULL) = (oidc_key_thumbprint IS NULL)", name="oidc_session_complete"),
    CheckConstraint("role IS NOT NULL OR scope_id IS NULL", name="scope_only_for_oidc"),
    CheckConstraint("expires_at > created_at", name="expires_after_creation"),
)
