"""Tables of organisations, accounts and balances."""

from sqlalchemy import (
    BigInteger,
    CheckConstraint,
    Column,
    Float,
    Index,
    Integer,
    LargeBinary,
    PrimaryKeyConstraint,
    String,
    Table,
    Text,
    UniqueConstraint,
)

from app.ledger.names import ACTOR_LENGTH, KEY_LENGTH, MAX_NAME_LENGTH
from app.persistence.tables.base import (
    ID_LENGTH,
    UtcDateTime,
    foreign_key,
    id_column,
    metadata,
    organisation_foreign_key,
    partial_index,
)

organisations = Table(
    "organisations",
    metadata,
    Column("id", String(ID_LENGTH), primary_key=True),
    Column("name", String(MAX_NAME_LENGTH), nullable=False, unique=True),
    Column("policy", Text),
    Column("policy_revision", Integer, nullable=False, server_default="0"),
    Column("created_at", UtcDateTime, nullable=False),
    CheckConstraint("name <> ''", name="name_not_empty"),
    CheckConstraint("policy_revision >= 0", name="policy_revision_nonnegative"),
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
    Column("created_by", String(ACTOR_LENGTH), nullable=False),
    Column("created_at", UtcDateTime, nullable=False),
    Column("expires_at", UtcDateTime),
    Column("revoked_at", UtcDateTime),
    Column("last_used_at", UtcDateTime),
    PrimaryKeyConstraint("organisation_id", "id"),
    UniqueConstraint("id"),
    organisation_foreign_key(),
    foreign_key("accounts", scope_id="id"),
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
    Column("name_skeleton", Text),
    Column("path", Text, nullable=False),
    Column("depth", Integer, nullable=False),
    Column("epsilon_limit", Float(53)),
    Column("delta_limit", Float(53)),
    Column("filter", String(16), nullable=False),
    Column("planned_events", Text, nullable=False),
    Column("filter_weights", Text),
    Column("grid_version", Integer, nullable=False),
    Column("version", BigInteger, nullable=False),
    Column("limit_revision", Integer, nullable=False, server_default="0"),
    Column("policy", Text),
    Column("organisation_policy", Text),
    Column("policy_revision", Integer, nullable=False, server_default="0"),
    Column("uncompacted_charges", Text, nullable=False, server_default="{}"),
    Column("quarantine_reason", Text),
    Column("alert_thresholds", Text, nullable=False, server_default="[0.5, 0.8, 1.0]"),
    Column("forecast_days", Integer, nullable=False, server_default="30"),
    Column("max_partitions_per_unit", Integer),
    Column("opens_at", UtcDateTime),
    Column("closes_at", UtcDateTime),
    Column("created_at", UtcDateTime, nullable=False),
    Column("updated_at", UtcDateTime, nullable=False),
    PrimaryKeyConstraint("organisation_id", "id"),
    organisation_foreign_key(),
    foreign_key("accounts", parent_id="id"),
    foreign_key("accounts", population_id="id"),
    CheckConstraint("kind IN ('population', 'budget', 'run')", name="kind_known"),
    CheckConstraint("name <> ''", name="name_not_empty"),
    CheckConstraint("(kind = 'run') = (name_skeleton IS NULL)", name="name_skeleton_unless_run"),
    CheckConstraint(
        "(kind = 'population') = (parent_id IS NULL) AND (kind = 'population') = (depth = 0) AND depth >= 0",
        name="population_is_root",
    ),
    CheckConstraint("kind <> 'population' OR population_id = id", name="population_refers_to_itself"),
    CheckConstraint("kind = 'run' OR epsilon_limit IS NOT NULL", name="limit_required_unless_run"),
    CheckConstraint("(epsilon_limit IS NULL) = (delta_limit IS NULL)", name="limit_complete"),
    CheckConstraint(
        "epsilon_limit > 0 AND epsilon_limit <= 10000 AND delta_limit > 0 AND delta_limit < 0.5",
        name="limit_in_range",
    ),
    CheckConstraint("filter IN ('adaptive', 'declared')", name="filter_known"),
    CheckConstraint("filter = 'adaptive' OR filter_weights IS NULL", name="filter_weights_only_if_adaptive"),
    CheckConstraint("version >= 0", name="version_nonnegative"),
    CheckConstraint("limit_revision >= 0", name="limit_revision_nonnegative"),
    CheckConstraint("policy_revision >= 0", name="policy_revision_nonnegative"),
    CheckConstraint("kind <> 'run' OR policy IS NULL", name="policy_not_on_runs"),
    CheckConstraint(
        "kind = 'population' OR organisation_policy IS NULL", name="organisation_policy_only_on_populations"
    ),
    CheckConstraint("quarantine_reason <> ''", name="quarantine_reason_not_empty"),
    CheckConstraint("alert_thresholds <> ''", name="alert_thresholds_not_empty"),
    CheckConstraint("forecast_days >= 0", name="forecast_days_nonnegative"),
    CheckConstraint("max_partitions_per_unit >= 1", name="max_partitions_per_unit_positive"),
    CheckConstraint("kind <> 'run' OR max_partitions_per_unit IS NULL", name="partitions_not_on_runs"),
    CheckConstraint("closes_at > opens_at", name="window_order"),
    partial_index("uq_accounts_path", "organisation_id", "path", where="kind != 'run'", unique=True),
    partial_index(
        "uq_accounts_population_skeleton", "organisation_id", "name_skeleton", where="kind = 'population'", unique=True
    ),
    partial_index(
        "uq_accounts_budget_skeleton",
        "organisation_id",
        "parent_id",
        "name_skeleton",
        where="kind = 'budget'",
        unique=True,
    ),
    Index(None, "organisation_id", "parent_id"),
)

balances = Table(
    "balances",
    metadata,
    id_column("organisation_id"),
    id_column("account_id"),
    Column("spent_curve", LargeBinary, nullable=False),
    Column("held_curve", LargeBinary, nullable=False),
    Column("spent_delta", BigInteger, nullable=False),
    Column("held_delta", BigInteger, nullable=False),
    PrimaryKeyConstraint("organisation_id", "account_id"),
    foreign_key("accounts", account_id="id"),
    CheckConstraint(
        "length(spent_curve) % 8 = 0 AND length(held_curve) % 8 = 0"
        " AND (length(spent_curve) = 0 OR length(held_curve) IN (0, length(spent_curve)))",
        name="curve_lengths",
    ),
    CheckConstraint("spent_delta >= 0", name="spent_delta_nonnegative"),
    CheckConstraint("held_delta >= 0", name="held_delta_nonnegative"),
)

account_ancestors = Table(
    "account_ancestors",
    metadata,
    id_column("organisation_id"),
    id_column("account_id"),
    id_column("ancestor_id"),
    Column("depth", Integer, nullable=False),
    PrimaryKeyConstraint("organisation_id", "account_id", "ancestor_id"),
    UniqueConstraint("organisation_id", "ancestor_id", "account_id"),
    foreign_key("accounts", account_id="id"),
    foreign_key("accounts", ancestor_id="id"),
    CheckConstraint("depth >= 0", name="depth_nonnegative"),
)

run_budgets = Table(
    "run_budgets",
    metadata,
    id_column("organisation_id"),
    id_column("run_id"),
    Column("position", Integer, nullable=False),
    id_column("budget_id"),
    PrimaryKeyConstraint("organisation_id", "run_id", "position"),
    UniqueConstraint("organisation_id", "budget_id", "run_id"),
    foreign_key("accounts", run_id="id"),
    foreign_key("accounts", budget_id="id"),
    CheckConstraint("position >= 0", name="position_nonnegative"),
)

partition_attestations = Table(
    "partition_attestations",
    metadata,
    id_column("organisation_id"),
    id_column("account_id"),
    Column("attestation", Text, nullable=False),
    Column("replacement_assumption", String(32)),
    Column("attested_by", String(KEY_LENGTH), nullable=False),
    Column("attested_at", UtcDateTime, nullable=False),
    PrimaryKeyConstraint("organisation_id", "account_id"),
    foreign_key("accounts", account_id="id"),
    CheckConstraint("attestation <> ''", name="attestation_not_empty"),
    CheckConstraint(
        "replacement_assumption IN ('stay_in_their_parts', 'removal_is_bounded')", name="replacement_assumption_known"
    ),
)

data_blocks = Table(
    "data_blocks",
    metadata,
    id_column("organisation_id"),
    id_column("account_id"),
    Column("data_from", UtcDateTime, nullable=False),
    Column("data_to", UtcDateTime, nullable=False),
    Column("label", String(MAX_NAME_LENGTH)),
    PrimaryKeyConstraint("organisation_id", "account_id"),
    foreign_key("accounts", account_id="id"),
    CheckConstraint("data_to > data_from", name="data_range_order"),
    CheckConstraint("label <> ''", name="label_not_empty"),
)

experiments = Table(
    "experiments",
    metadata,
    id_column("organisation_id"),
    id_column("id"),
    id_column("account_id"),
    Column("charging_mode", String(32), nullable=False),
    Column("created_by", String(ACTOR_LENGTH), nullable=False),
    Column("created_at", UtcDateTime, nullable=False),
    PrimaryKeyConstraint("organisation_id", "id"),
    UniqueConstraint("organisation_id", "account_id"),
    foreign_key("accounts", account_id="id"),
    CheckConstraint("charging_mode IN ('each_run', 'repeat_and_select')", name="charging_mode_known"),
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
    foreign_key("accounts", account_id="id"),
    CheckConstraint("privacy_unit <> ''", name="privacy_unit_not_empty"),
    CheckConstraint(
        "neighboring_relation IN ('add_or_remove_one', 'replace_one', 'replace_special')",
        name="neighboring_relation_known",
    ),
    CheckConstraint("size > 0", name="size_positive"),
)

idempotent_responses = Table(
    "idempotent_responses",
    metadata,
    id_column("organisation_id"),
    Column("idempotency_key", String(KEY_LENGTH), nullable=False),
    Column("request_fingerprint", String(64), nullable=False),
    Column("status", Integer, nullable=False),
    Column("body", Text, nullable=False),
    Column("created_at", UtcDateTime, nullable=False),
    PrimaryKeyConstraint("organisation_id", "idempotency_key"),
    organisation_foreign_key(),
    CheckConstraint("status IN (200, 201, 202, 403)", name="status_known"),
    CheckConstraint("length(request_fingerprint) = 64", name="request_fingerprint_is_sha256"),
)
