"""Who did what with an organisation's budgets, chained; and what waits for another person's word."""

from sqlalchemy import (
    BigInteger,
    CheckConstraint,
    Column,
    ForeignKeyConstraint,
    Index,
    LargeBinary,
    PrimaryKeyConstraint,
    String,
    Table,
    Text,
)

from app.persistence.tables.base import ACTOR_LENGTH, REQUEST_ID_LENGTH, UtcDateTime, id_column, metadata

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
    ForeignKeyConstraint(["organisation_id"], ["organisations.id"]),
    CheckConstraint("position >= 0", name="position_counts"),
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
    id_column("account_id"),
    Column("facts", Text, nullable=False),
    Column("status", String(16), nullable=False),
    Column("reason", Text, nullable=False),
    Column("proposed_by", String(ACTOR_LENGTH), nullable=False),
    Column("proposed_at", UtcDateTime, nullable=False),
    Column("decided_by", String(ACTOR_LENGTH)),
    Column("decided_at", UtcDateTime),
    Column("decision_reason", Text),
    PrimaryKeyConstraint("organisation_id", "id"),
    ForeignKeyConstraint(["organisation_id", "account_id"], ["accounts.organisation_id", "accounts.id"]),
    CheckConstraint("kind IN ('limit', 'run')", name="kind_known"),
    CheckConstraint("status IN ('open', 'approved', 'rejected', 'withdrawn', 'superseded')", name="status_known"),
    CheckConstraint("(status = 'open') = (decided_by IS NULL)", name="decided_once"),
    CheckConstraint("(decided_by IS NULL) = (decided_at IS NULL)", name="decision_whole"),
    Index(
        "uq_proposals_open",
        "organisation_id",
        "account_id",
        "kind",
        unique=True,
        sqlite_where=Column("status") == "open",
        postgresql_where=Column("status") == "open",
    ),
)

checkpoints = Table(
    "checkpoints",
    metadata,
    id_column("organisation_id"),
    Column("acts", BigInteger, nullable=False),
    Column("head", LargeBinary(32), nullable=False),
    Column("document", Text, nullable=False),
    Column("created_at", UtcDateTime, nullable=False),
    PrimaryKeyConstraint("organisation_id", "acts"),
    ForeignKeyConstraint(["organisation_id"], ["organisations.id"]),
    CheckConstraint("acts >= 1", name="acts_count"),
    CheckConstraint("length(head) = 32", name="head_is_sha256"),
)

run_anchors = Table(
    "run_anchors",
    metadata,
    id_column("organisation_id"),
    id_column("run_id"),
    Column("decisions", BigInteger, nullable=False),
    PrimaryKeyConstraint("organisation_id", "run_id"),
    ForeignKeyConstraint(["organisation_id", "run_id"], ["runs.organisation_id", "runs.account_id"]),
    CheckConstraint("decisions >= 1", name="decisions_count"),
)
