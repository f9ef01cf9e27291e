"""Tables of organisations, accounts and balances."""

from typing import Final

from sqlalchemy import (
    BigInteger,
    Boolean,
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

from app.accounting.events import NeighboringRelation
from app.ledger.accounts.account import AccountKind
from app.ledger.accounts.calendar import CalendarPeriod
from app.ledger.accounts.metadata import MAX_DISPLAY_NAME, MAX_LABEL_KEY, MAX_LABEL_VALUE, MAX_OWNER
from app.ledger.experiments import ChargingMode
from app.ledger.filter.limits import Unit
from app.ledger.names import ACTOR_LENGTH, KEY_LENGTH, MAX_NAME_LENGTH, MAX_PREFIX_LENGTH
from app.ledger.permissions import Role
from app.persistence.tables.base import (
    NumberedId,
    Sha256Hex,
    UtcDateTime,
    digest_column,
    enum_column,
    foreign_key,
    metadata,
    number_column,
    organisation_foreign_key,
    owned_table,
    partial_index,
    reference,
    text_column,
)

organisations = Table(
    "organisations",
    metadata,
    Column("id", NumberedId, primary_key=True),
    *text_column("name", String(MAX_NAME_LENGTH), unique=True),
    Column("policy", Text),
    *number_column("policy_revision", Integer, server_default="0"),
    Column("created_at", UtcDateTime, nullable=False),
    CheckConstraint("id >= 0", name="id_nonnegative"),
)

api_keys = owned_table(
    "api_keys",
    Column("name", String(MAX_NAME_LENGTH)),
    *enum_column("role", 16, Role),
    *reference("scope_id", "accounts", nullable=True),
    *digest_column("secret_hash"),
    Column("created_by", String(ACTOR_LENGTH), nullable=False),
    Column("created_at", UtcDateTime, nullable=False),
    Column("expires_at", UtcDateTime),
    Column("revoked_at", UtcDateTime),
    Column("last_used_at", UtcDateTime),
    Column("single_use", Boolean, nullable=False),
    *digest_column("token_hash", nullable=True),
    UniqueConstraint("id"),
    UniqueConstraint("organisation_id", "token_hash"),
    organisation_foreign_key(),
    single_use_complete="NOT single_use OR (scope_id IS NOT NULL AND expires_at IS NOT NULL)",
)

LIMIT_IN_RANGE: Final = (
    "limit_value > 0 AND limit_value <= 10000 AND limit_delta >= 0 AND limit_delta < 0.5"
    " AND (limit_unit <> 'mu' OR (limit_value <= 100 AND limit_delta = 0))"
)

accounts = owned_table(
    "accounts",
    Column("id", NumberedId, nullable=False),
    *enum_column("kind", 16, AccountKind),
    *reference("parent_id", "accounts", nullable=True),
    *reference("population_id", "accounts"),
    *text_column("name", String(MAX_NAME_LENGTH)),
    Column("name_skeleton", Text),
    Column("path", Text, nullable=False),
    Column("depth", Integer, nullable=False),
    *enum_column("limit_unit", 8, Unit, nullable=True),
    Column("limit_value", Float(53)),
    Column("limit_delta", Float(53)),
    Column("planned_events", Text, nullable=False),
    Column("filter_weights", Text),
    Column("grid_version", Integer, nullable=False),
    *number_column("version", BigInteger),
    *number_column("limit_revision", Integer, server_default="0"),
    Column("policy", Text),
    Column("organisation_policy", Text),
    *number_column("policy_revision", Integer, server_default="0"),
    Column("allocation", Text),
    *number_column("allocation_revision", Integer, server_default="0"),
    Column("uncompacted_charges", Text, nullable=False, server_default="{}"),
    Column("plan_usage", Text, nullable=False, server_default="{}"),
    *text_column("quarantine_reason", Text(), nullable=True),
    *text_column("alert_thresholds", Text(), server_default="[0.5, 0.8, 1.0]"),
    *number_column("forecast_days", Integer, server_default="30"),
    *number_column("max_partitions_per_unit", Integer, least=1, nullable=True),
    Column("opens_at", UtcDateTime),
    Column("closes_at", UtcDateTime),
    Column("created_at", UtcDateTime, nullable=False),
    Column("updated_at", UtcDateTime, nullable=False),
    organisation_foreign_key(),
    partial_index("uq_accounts_path", "path", where="kind != 'run'", unique=True),
    partial_index("ix_accounts_run_path", "path", where="kind = 'run'"),
    partial_index("uq_accounts_population_skeleton", "name_skeleton", where="kind = 'population'", unique=True),
    partial_index("uq_accounts_budget_skeleton", "parent_id", "name_skeleton", where="kind = 'budget'", unique=True),
    Index(None, "organisation_id", "parent_id"),
    id_nonnegative="id >= 0",
    name_skeleton_unless_run="(kind = 'run') = (name_skeleton IS NULL)",
    population_is_root=(
        "(kind = 'population') = (parent_id IS NULL) AND (kind = 'population') = (depth = 0) AND depth >= 0"
    ),
    population_refers_to_itself="kind <> 'population' OR population_id = id",
    limit_required_unless_run="kind = 'run' OR limit_value IS NOT NULL",
    limit_complete=("(limit_value IS NULL) = (limit_delta IS NULL) AND (limit_value IS NULL) = (limit_unit IS NULL)"),
    limit_in_range=LIMIT_IN_RANGE,
    filter_weights_only_with_orders=(
        "filter_weights IS NULL OR (limit_unit IS NOT NULL AND limit_unit = 'epsilon' AND limit_delta > 0)"
    ),
    policy_not_on_runs="kind <> 'run' OR policy IS NULL",
    organisation_policy_only_on_populations="kind = 'population' OR organisation_policy IS NULL",
    allocation_not_on_runs="kind <> 'run' OR allocation IS NULL",
    partitions_not_on_runs="kind <> 'run' OR max_partitions_per_unit IS NULL",
    window_order="closes_at > opens_at",
)

account_metadata = owned_table(
    "account_metadata",
    *number_column("number", Integer, least=1),
    *text_column("display_name", String(MAX_DISPLAY_NAME), nullable=True),
    *text_column("description", Text(), nullable=True),
    *text_column("owner", String(MAX_OWNER), nullable=True),
    *text_column("links", Text(), server_default="[]"),
    *text_column("deployment", Text(), server_default="{}"),
    *text_column("search_text", Text()),
    Column("archived_at", UtcDateTime),
    foreign_key("accounts", account_id="id"),
    partial_index("ix_account_metadata_owner", "owner", "account_id", where="owner IS NOT NULL"),
    partial_index("ix_account_metadata_archived", "account_id", where="archived_at IS NOT NULL"),
    key=("account_id",),
)

account_labels = owned_table(
    "account_labels",
    *text_column("key", String(MAX_LABEL_KEY)),
    Column("value", String(MAX_LABEL_VALUE), nullable=False),
    foreign_key("accounts", account_id="id"),
    Index("ix_account_labels_key", "organisation_id", "key", "value", "account_id"),
    key=("account_id", "key"),
)

balances = owned_table(
    "balances",
    Column("spent_curve", LargeBinary, nullable=False),
    Column("held_curve", LargeBinary, nullable=False),
    *number_column("spent_delta", BigInteger),
    *number_column("held_delta", BigInteger),
    *text_column("charges", Text(), nullable=True),
    foreign_key("accounts", account_id="id"),
    key=("account_id",),
    curve_lengths="length(spent_curve) % 8 = 0 AND length(held_curve) % 8 = 0",
)

account_ancestors = owned_table(
    "account_ancestors",
    *number_column("depth", Integer),
    UniqueConstraint("organisation_id", "ancestor_id", "account_id"),
    foreign_key("accounts", account_id="id"),
    foreign_key("accounts", ancestor_id="id"),
    key=("account_id", "ancestor_id"),
)

run_budgets = owned_table(
    "run_budgets",
    *number_column("position", Integer),
    *reference("budget_id", "accounts"),
    UniqueConstraint("organisation_id", "budget_id", "run_id"),
    foreign_key("accounts", run_id="id"),
    key=("run_id", "position"),
)

partition_attestations = owned_table(
    "partition_attestations",
    *text_column("attestation", Text()),
    Column("replacement_assumption", String(32)),
    Column("attested_by", String(KEY_LENGTH), nullable=False),
    Column("attested_at", UtcDateTime, nullable=False),
    foreign_key("accounts", account_id="id"),
    key=("account_id",),
    replacement_assumption_known="replacement_assumption IN ('stay_in_their_parts', 'removal_is_bounded')",
)

data_blocks = owned_table(
    "data_blocks",
    Column("data_from", UtcDateTime, nullable=False),
    Column("data_to", UtcDateTime, nullable=False),
    *text_column("label", String(MAX_NAME_LENGTH), nullable=True),
    foreign_key("accounts", account_id="id"),
    key=("account_id",),
    data_range_order="data_to > data_from",
)

block_schedules = owned_table(
    "block_schedules",
    *enum_column("period", 16, CalendarPeriod),
    *text_column("start", String(10)),
    *enum_column("limit_unit", 8, Unit),
    Column("limit_value", Float(53), nullable=False),
    Column("limit_delta", Float(53), nullable=False),
    Column("prefix", String(MAX_PREFIX_LENGTH), nullable=False),
    Column("due_at", UtcDateTime),
    *text_column("failure", Text(), nullable=True),
    foreign_key("accounts", account_id="id"),
    key=("account_id",),
    limit_in_range=LIMIT_IN_RANGE,
)

experiments = owned_table(
    "experiments",
    *reference("account_id", "accounts"),
    *enum_column("charging_mode", 32, ChargingMode),
    Column("created_by", String(ACTOR_LENGTH), nullable=False),
    Column("created_at", UtcDateTime, nullable=False),
    UniqueConstraint("organisation_id", "account_id"),
)

populations = owned_table(
    "populations",
    *text_column("privacy_unit", String(MAX_NAME_LENGTH)),
    *enum_column("neighboring_relation", 32, NeighboringRelation),
    Column("size", BigInteger),
    foreign_key("accounts", account_id="id"),
    key=("account_id",),
    size_positive="size > 0",
)

idempotent_responses = owned_table(
    "idempotent_responses",
    Column("idempotency_key", String(KEY_LENGTH), nullable=False),
    *digest_column("request_fingerprint", Sha256Hex()),
    Column("status", Integer, nullable=False),
    Column("body", Text, nullable=False),
    Column("created_at", UtcDateTime, nullable=False),
    organisation_foreign_key(),
    key=("idempotency_key",),
    status_known="status IN (200, 201, 202, 403)",
)
