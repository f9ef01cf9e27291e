"""Who has accounts, and what stands in them."""

from sqlalchemy import (
    BigInteger,
    CheckConstraint,
    Column,
    Float,
    ForeignKeyConstraint,
    Index,
    Integer,
    LargeBinary,
    PrimaryKeyConstraint,
    String,
    Table,
    Text,
    UniqueConstraint,
)

from app.ledger.names import MAX_NAME_LENGTH
from app.persistence.tables.base import ACTOR_LENGTH, ID_LENGTH, KEY_LENGTH, UtcDateTime, id_column, metadata

organisations = Table(
    "organisations",
    metadata,
    Column("id", String(ID_LENGTH), primary_key=True),
    Column("name", String(MAX_NAME_LENGTH), nullable=False, unique=True),
    Column("created_at", UtcDateTime, nullable=False),
    CheckConstraint("name <> ''", name="name_given"),
)

api_keys = Table(
    "api_keys",
    metadata,
    id_column("organisation_id"),
    id_column("id"),
    Column("name", String(MAX_NAME_LENGTH)),
    Column("role", String(16), nullable=False),
    id_column("scope_id", nullable=True),
    Column("secret_hash", LargeBinary(32), nullable=False),
    Column("created_by", String(ACTOR_LENGTH)),
    Column("created_at", UtcDateTime, nullable=False),
    Column("expires_at", UtcDateTime),
    Column("revoked_at", UtcDateTime),
    Column("last_used_at", UtcDateTime),
    PrimaryKeyConstraint("organisation_id", "id"),
    UniqueConstraint("id"),
    ForeignKeyConstraint(["organisation_id"], ["organisations.id"]),
    ForeignKeyConstraint(["organisation_id", "scope_id"], ["accounts.organisation_id", "accounts.id"]),
    CheckConstraint(
        "role IN ('viewer', 'trainer', 'planner', 'budget_admin', 'privacy_officer', 'auditor', 'admin')",
        name="role_known",
    ),
    CheckConstraint("length(secret_hash) = 32", name="secret_hash_is_sha256"),
)

accounts = Table(
    "accounts",
    metadata,
    id_column("organisation_id"),
    id_column("id"),
    Column("kind", String(16), nullable=False),
    id_column("parent_id", nullable=True),
    id_column("population_id"),
    Column("name", String(MAX_NAME_LENGTH), nullable=False),
    Column("path", Text, nullable=False),
    Column("depth", Integer, nullable=False),
    Column("epsilon_limit", Float(53)),
    Column("delta_limit", Float(53)),
    Column("filter", String(16), nullable=False),
    Column("planned", Text, nullable=False),
    Column("weights", Text),
    Column("grid_version", Integer, nullable=False),
    Column("version", BigInteger, nullable=False),
    Column("charged_since", Text, nullable=False, server_default="{}"),
    Column("quarantine", Text),
    Column("created_at", UtcDateTime, nullable=False),
    Column("updated_at", UtcDateTime, nullable=False),
    PrimaryKeyConstraint("organisation_id", "id"),
    ForeignKeyConstraint(["organisation_id"], ["organisations.id"]),
    ForeignKeyConstraint(["organisation_id", "parent_id"], ["accounts.organisation_id", "accounts.id"]),
    ForeignKeyConstraint(["organisation_id", "population_id"], ["accounts.organisation_id", "accounts.id"]),
    CheckConstraint("kind IN ('population', 'budget', 'run')", name="kind_known"),
    CheckConstraint("name <> ''", name="name_given"),
    CheckConstraint(
        "(kind = 'population') = (parent_id IS NULL) AND (kind = 'population') = (depth = 0) AND depth >= 0",
        name="population_is_root",
    ),
    CheckConstraint("kind <> 'population' OR population_id = id", name="population_is_its_own"),
    CheckConstraint("kind = 'run' OR epsilon_limit IS NOT NULL", name="limit_unless_run"),
    CheckConstraint("(epsilon_limit IS NULL) = (delta_limit IS NULL)", name="limit_whole"),
    CheckConstraint(
        "epsilon_limit > 0 AND epsilon_limit <= 10000 AND delta_limit > 0 AND delta_limit < 0.5",
        name="limit_in_range",
    ),
    CheckConstraint("filter IN ('adaptive', 'declared')", name="filter_known"),
    CheckConstraint("filter = 'adaptive' OR weights IS NULL", name="weights_only_if_adaptive"),
    CheckConstraint("version >= 0", name="version_counts"),
    CheckConstraint("quarantine <> ''", name="quarantine_said"),
    Index(
        "uq_accounts_path",
        "organisation_id",
        "path",
        unique=True,
        sqlite_where=Column("kind") != "run",
        postgresql_where=Column("kind") != "run",
    ),
    Index(None, "organisation_id", "parent_id"),
)

balances = Table(
    "balances",
    metadata,
    id_column("organisation_id"),
    id_column("account_id"),
    Column("spent", LargeBinary, nullable=False),
    Column("held", LargeBinary, nullable=False),
    Column("spent_delta", BigInteger, nullable=False),
    Column("held_delta", BigInteger, nullable=False),
    PrimaryKeyConstraint("organisation_id", "account_id"),
    ForeignKeyConstraint(["organisation_id", "account_id"], ["accounts.organisation_id", "accounts.id"]),
    CheckConstraint(
        "length(spent) % 8 = 0 AND length(held) % 8 = 0 AND (length(spent) = 0 OR length(held) IN (0, length(spent)))",
        name="curves_whole",
    ),
    CheckConstraint("spent_delta >= 0", name="spent_delta_counts"),
    CheckConstraint("held_delta >= 0", name="held_delta_counts"),
)

account_paths = Table(
    "account_paths",
    metadata,
    id_column("organisation_id"),
    id_column("account_id"),
    id_column("ancestor_id"),
    Column("depth", Integer, nullable=False),
    PrimaryKeyConstraint("organisation_id", "account_id", "depth"),
    UniqueConstraint("organisation_id", "ancestor_id", "account_id"),
    ForeignKeyConstraint(["organisation_id", "account_id"], ["accounts.organisation_id", "accounts.id"]),
    ForeignKeyConstraint(["organisation_id", "ancestor_id"], ["accounts.organisation_id", "accounts.id"]),
    CheckConstraint("depth >= 0", name="depth_counts"),
)

populations = Table(
    "populations",
    metadata,
    id_column("organisation_id"),
    id_column("account_id"),
    Column("privacy_unit", String(MAX_NAME_LENGTH), nullable=False),
    Column("neighboring_relation", String(32), nullable=False),
    Column("size", BigInteger),
    PrimaryKeyConstraint("organisation_id", "account_id"),
    ForeignKeyConstraint(["organisation_id", "account_id"], ["accounts.organisation_id", "accounts.id"]),
    CheckConstraint("privacy_unit <> ''", name="privacy_unit_given"),
    CheckConstraint(
        "neighboring_relation IN ('add_or_remove_one', 'replace_one', 'replace_special')",
        name="relation_known",
    ),
    CheckConstraint("size > 0", name="size_counts"),
)

replies = Table(
    "replies",
    metadata,
    id_column("organisation_id"),
    Column("idempotency_key", String(KEY_LENGTH), nullable=False),
    Column("request_fingerprint", String(64), nullable=False),
    Column("status", Integer, nullable=False, server_default="201"),
    Column("body", Text, nullable=False),
    Column("created_at", UtcDateTime, nullable=False),
    PrimaryKeyConstraint("organisation_id", "idempotency_key"),
    ForeignKeyConstraint(["organisation_id"], ["organisations.id"]),
    CheckConstraint("status IN (201, 403)", name="status_known"),
    CheckConstraint("length(request_fingerprint) = 64", name="request_fingerprint_is_sha256"),
)
