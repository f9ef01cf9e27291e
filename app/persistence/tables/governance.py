"""Who did what with an organisation's budgets, chained."""

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
