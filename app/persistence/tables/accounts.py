"""Tables of organisations, accounts and balances."""

from sqlalchemy import (
    BigInteger,
    CheckConstraint,
    Column,
    Float,
    Index,
    Integer,
    LargeBinary,
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
    owned_table,
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

api_keys = owned_table(
    "api_keys",
    ("id",),
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
    UniqueConstraint("id"),
    organisation_foreign_key(),
    foreign_key("accounts", scope_id="id"),
    role_known="role IN ('viewer', 'trainer', 'planner', 'budget_admin', 'privacy_officer', 'auditor', 'admin')",
    secret_hash_is_sha256="length(secret_hash) = 32",  # noqa: S106 - a condition
)

accounts = owned_table(
    "accounts",
    ("id",),
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
    organisation_foreign_key(),
    foreign_key("accounts", parent_id="id"),
    foreign_key("accounts", population_id="id"),
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
    kind_known="kind IN ('population', 'budget', 'run')",
    name_not_empty="name <> ''",
    name_skeleton_unless_run="(kind = 'run') = (name_skeleton IS NULL)",
    population_is_root=(
        "(kind = 'population') = (parent_id IS NULL) AND (kind = 'population') = (depth = 0) AND depth >= 0"
    ),
    population_refers_to_itself="kind <> 'population' OR population_id = id",
    limit_required_unless_run="kind = 'run' OR epsilon_limit IS NOT NULL",
    limit_complete="(epsilon_limit IS NULL) = (delta_limit IS NULL)",
    limit_in_range="epsilon_limit > 0 AND epsilon_limit <= 10000 AND delta_limit > 0 AND delta_limit < 0.5",
    filter_known="filter IN ('adaptive', 'declared')",
    filter_weights_only_if_adaptive="filter = 'adaptive' OR filter_weights IS NULL",
    version_nonnegative="version >= 0",
    limit_revision_nonnegative="limit_revision >= 0",
    policy_revision_nonnegative="policy_revision >= 0",
    policy_not_on_runs="kind <> 'run' OR policy IS NULL",
    organisation_policy_only_on_populations="kind = 'population' OR organisation_policy IS NULL",
    quarantine_reason_not_empty="quarantine_reason <> ''",
    alert_thresholds_not_empty="alert_thresholds <> ''",
    forecast_days_nonnegative="forecast_days >= 0",
    max_partitions_per_unit_positive="max_partitions_per_unit >= 1",
    partitions_not_on_runs="kind <> 'run' OR max_partitions_per_unit IS NULL",
    window_order="closes_at > opens_at",
)

balances = owned_table(
    "balances",
    ("account_id",),
    id_column("account_id"),
    Column("spent_curve", LargeBinary, nullable=False),
    Column("held_curve", LargeBinary, nullable=False),
    Column("spent_delta", BigInteger, nullable=False),
    Column("held_delta", BigInteger, nullable=False),
    foreign_key("accounts", account_id="id"),
    curve_lengths="length(spent_curve) % 8 = 0 AND length(held_curve) % 8 = 0"
    " AND (length(spent_curve) = 0 OR length(held_curve) IN (0, length(spent_curve)))",
    spent_delta_nonnegative="spent_delta >= 0",
    held_delta_nonnegative="held_delta >= 0",
)

account_ancestors = owned_table(
    "account_ancestors",
    ("account_id", "ancestor_id"),
    id_column("account_id"),
    id_column("ancestor_id"),
    Column("depth", Integer, nullable=False),
    UniqueConstraint("organisation_id", "ancestor_id", "account_id"),
    foreign_key("accounts", account_id="id"),
    foreign_key("accounts", ancestor_id="id"),
    depth_nonnegative="depth >= 0",
)

run_budgets = owned_table(
    "run_budgets",
    ("run_id", "position"),
    id_column("run_id"),
    Column("position", Integer, nullable=False),
    id_column("budget_id"),
    UniqueConstraint("organisation_id", "budget_id", "run_id"),
    foreign_key("accounts", run_id="id"),
    foreign_key("accounts", budget_id="id"),
    position_nonnegative="position >= 0",
)

partition_attestations = owned_table(
    "partition_attestations",
    ("account_id",),
    id_column("account_id"),
    Column("attestation", Text, nullable=False),
    Column("replacement_assumption", String(32)),
    Column("attested_by", String(KEY_LENGTH), nullable=False),
    Column("attested_at", UtcDateTime, nullable=False),
    foreign_key("accounts", account_id="id"),
    attestation_not_empty="attestation <> ''",
    replacement_assumption_known="replacement_assumption IN ('stay_in_their_parts', 'removal_is_bounded')",
)

data_blocks = owned_table(
    "data_blocks",
    ("account_id",),
    id_column("account_id"),
    Column("data_from", UtcDateTime, nullable=False),
    Column("data_to", UtcDateTime, nullable=False),
    Column("label", String(MAX_NAME_LENGTH)),
    foreign_key("accounts", account_id="id"),
    data_range_order="data_to > data_from",
    label_not_empty="label <> ''",
)

experiments = owned_table(
    "experiments",
    ("id",),
    id_column("id"),
    id_column("account_id"),
    Column("charging_mode", String(32), nullable=False),
    Column("created_by", String(ACTOR_LENGTH), nullable=False),
    Column("created_at", UtcDateTime, nullable=False),
    UniqueConstraint("organisation_id", "account_id"),
    foreign_key("accounts", account_id="id"),
    charging_mode_known="charging_mode IN ('each_run', 'repeat_and_select')",
)

populations = owned_table(
    "populations",
    ("account_id",),
    id_column("account_id"),
    Column("privacy_unit", String(MAX_NAME_LENGTH), nullable=False),
    Column("neighboring_relation", String(32), nullable=False),
    Column("size", BigInteger),
    foreign_key("accounts", account_id="id"),
    privacy_unit_not_empty="privacy_unit <> ''",
    neighboring_relation_known="neighboring_relation IN ('add_or_remove_one', 'replace_one', 'replace_special')",
    size_positive="size > 0",
)

idempotent_responses = owned_table(
    "idempotent_responses",
    ("idempotency_key",),
    Column("idempotency_key", String(KEY_LENGTH), nullable=False),
    Column("request_fingerprint", String(64), nullable=False),
    Column("status", Integer, nullable=False),
    Column("body", Text, nullable=False),
    Column("created_at", UtcDateTime, nullable=False),
    organisation_foreign_key(),
    status_known="status IN (200, 201, 202, 403)",
    request_fingerprint_is_sha256="length(request_fingerprint) = 64",
)
