"""Create the schema of the ledger: tables, constraints, indexes and row-level security.

Columns and checks are repeated here as of this revision, because a migration must not change with
`app.persistence.tables`. Names of constraints follow the naming convention of its metadata.
"""

from datetime import datetime

import sqlalchemy as sa
from alembic import op

revision = "0001"
down_revision = None
branch_labels = None
depends_on = None

TABLES = (
    "organisations",
    "accounts",
    "account_metadata",
    "account_labels",
    "balances",
    "account_ancestors",
    "run_budgets",
    "partition_attestations",
    "data_blocks",
    "block_schedules",
    "experiments",
    "populations",
    "api_keys",
    "idempotent_responses",
    "dp_events",
    "event_costs",
    "runs",
    "run_origins",
    "attempts",
    "reservations",
    "reservation_items",
    "decisions",
    "decision_ranges",
    "decision_events",
    "receivers",
    "alerts",
    "deliveries",
    "account_usage_snapshots",
    "audit_entries",
    "proposals",
    "checkpoints",
    "run_anchors",
    "verifications",
    "sessions",
    "sign_in_links",
)
"""In the order of creation: a table follows those that it refers to."""

POLICY = "tenant_isolation"


def upgrade() -> None:
    """Create every table, and on PostgreSQL its row-level security policy."""
    _create_organisations()
    _create_accounts()
    _create_account_metadata()
    _create_account_labels()
    _create_balances()
    _create_account_ancestors()
    _create_run_budgets()
    _create_partition_attestations()
    _create_data_blocks()
    _create_block_schedules()
    _create_experiments()
    _create_populations()
    _create_api_keys()
    _create_idempotent_responses()
    _create_dp_events()
    _create_event_costs()
    _create_runs()
    _create_run_origins()
    _create_attempts()
    _create_reservations()
    _create_reservation_items()
    _create_decisions()
    _create_decision_ranges()
    _create_decision_events()
    _create_receivers()
    _create_alerts()
    _create_deliveries()
    _create_account_usage_snapshots()
    _create_audit_entries()
    _create_proposals()
    _create_checkpoints()
    _create_run_anchors()
    _create_verifications()
    _create_sessions()
    _create_sign_in_links()
    if _is_postgresql():
        for table in TABLES:
            _enable_row_level_security(table)


def downgrade() -> None:
    """Drop every table."""
    if _is_postgresql():
        op.drop_constraint("fk_runs_reservation", "runs")
    for table in reversed(TABLES):
        op.drop_table(table)


def _is_postgresql() -> bool:
    return op.get_bind().dialect.name == "postgresql"


def _enable_row_level_security(table: str) -> None:
    """Restrict a table to the rows of the transaction's organisation."""
    owner = "id" if table == "organisations" else "organisation_id"
    op.execute(f"ALTER TABLE {table} ENABLE ROW LEVEL SECURITY")
    op.execute(f"ALTER TABLE {table} FORCE ROW LEVEL SECURITY")  # also for the owner, which the service is
    op.execute(
        f"CREATE POLICY {POLICY} ON {table} USING"
        f" ({owner} = NULLIF(current_setting('epsilon_ledger.organisation', true), '')::bigint"
        " OR current_setting('epsilon_ledger.all_tenants', true) = 'on')"
    )


def _id(name: str, *, nullable: bool = False) -> sa.Column[str]:
    return sa.Column(name, sa.String(40), nullable=nullable)


def _number(name: str, *, nullable: bool = False) -> sa.Column[int]:
    """Build a column of the integers of organisations or accounts."""
    return sa.Column(name, sa.BigInteger, nullable=nullable)


def _digest(name: str, *, nullable: bool = False) -> sa.Column[bytes]:
    """Build a column of sha256 hashes."""
    return sa.Column(name, sa.LargeBinary(32), nullable=nullable)


def _timestamp(name: str, *, nullable: bool = True) -> sa.Column[datetime]:
    return sa.Column(name, sa.DateTime(timezone=True), nullable=nullable)


def _organisation_foreign_key() -> sa.ForeignKeyConstraint:
    return sa.ForeignKeyConstraint(["organisation_id"], ["organisations.id"])


def _foreign_key(table: str, *, name: str | None = None, **columns: str) -> sa.ForeignKeyConstraint:
    """Reference a table of the same organisation; `columns` maps each column to the referenced one."""
    referred = [f"{table}.{column}" for column in ("organisation_id", *columns.values())]
    return sa.ForeignKeyConstraint(["organisation_id", *columns], referred, name=name)


def _create_partial_index(name: str, table: str, columns: list[str], *, where: str, unique: bool = False) -> None:
    condition = sa.text(where)
    op.create_index(name, table, columns, unique=unique, sqlite_where=condition, postgresql_where=condition)


def _create_organisations() -> None:
    op.create_table(
        "organisations",
        sa.Column("id", sa.BigInteger, primary_key=True),
        sa.Column("name", sa.String(100), nullable=False, unique=True),
        sa.Column("policy", sa.Text),
        sa.Column("policy_revision", sa.Integer, nullable=False, server_default="0"),
        _timestamp("created_at", nullable=False),
        sa.CheckConstraint("id >= 0", name="id_nonnegative"),
        sa.CheckConstraint("name <> ''", name="name_not_empty"),
        sa.CheckConstraint("policy_revision >= 0", name="policy_revision_nonnegative"),
    )


def _create_accounts() -> None:
    op.create_table(
        "accounts",
        _number("organisation_id"),
        _number("id"),
        sa.Column("kind", sa.String(16), nullable=False),
        _number("parent_id", nullable=True),
        _number("population_id"),
        sa.Column("name", sa.String(100), nullable=False),
        sa.Column("name_skeleton", sa.Text),
        sa.Column("path", sa.Text, nullable=False),
        sa.Column("depth", sa.Integer, nullable=False),
        sa.Column("limit_unit", sa.String(8)),
        sa.Column("limit_value", sa.Float(53)),
        sa.Column("limit_delta", sa.Float(53)),
        sa.Column("planned_events", sa.Text, nullable=False),
        sa.Column("filter_weights", sa.Text),
        sa.Column("grid_version", sa.Integer, nullable=False),
        sa.Column("version", sa.BigInteger, nullable=False),
        sa.Column("limit_revision", sa.Integer, nullable=False, server_default="0"),
        sa.Column("policy", sa.Text),
        sa.Column("organisation_policy", sa.Text),
        sa.Column("policy_revision", sa.Integer, nullable=False, server_default="0"),
        sa.Column("allocation", sa.Text),
        sa.Column("allocation_revision", sa.Integer, nullable=False, server_default="0"),
        sa.Column("uncompacted_charges", sa.Text, nullable=False, server_default="{}"),
        sa.Column("plan_usage", sa.Text, nullable=False, server_default="{}"),
        sa.Column("quarantine_reason", sa.Text),
        sa.Column("alert_thresholds", sa.Text, nullable=False, server_default="[0.5, 0.8, 1.0]"),
        sa.Column("forecast_days", sa.Integer, nullable=False, server_default="30"),
        sa.Column("max_partitions_per_unit", sa.Integer),
        _timestamp("opens_at"),
        _timestamp("closes_at"),
        _timestamp("created_at", nullable=False),
        _timestamp("updated_at", nullable=False),
        sa.PrimaryKeyConstraint("organisation_id", "id"),
        _organisation_foreign_key(),
        _foreign_key("accounts", parent_id="id"),
        _foreign_key("accounts", population_id="id"),
        sa.CheckConstraint("id >= 0", name="id_nonnegative"),
        sa.CheckConstraint("kind IN ('population', 'budget', 'run')", name="kind_known"),
        sa.CheckConstraint("name <> ''", name="name_not_empty"),
        sa.CheckConstraint("(kind = 'run') = (name_skeleton IS NULL)", name="name_skeleton_unless_run"),
        sa.CheckConstraint(
            "(kind = 'population') = (parent_id IS NULL) AND (kind = 'population') = (depth = 0) AND depth >= 0",
            name="population_is_root",
        ),
        sa.CheckConstraint("kind <> 'population' OR population_id = id", name="population_refers_to_itself"),
        sa.CheckConstraint("kind = 'run' OR limit_value IS NOT NULL", name="limit_required_unless_run"),
        sa.CheckConstraint(
            "(limit_value IS NULL) = (limit_delta IS NULL) AND (limit_value IS NULL) = (limit_unit IS NULL)",
            name="limit_complete",
        ),
        *_limit_checks(),
        sa.CheckConstraint(
            "filter_weights IS NULL OR (limit_unit IS NOT NULL AND limit_unit = 'epsilon' AND limit_delta > 0)",
            name="filter_weights_only_with_orders",
        ),
        sa.CheckConstraint("version >= 0", name="version_nonnegative"),
        sa.CheckConstraint("limit_revision >= 0", name="limit_revision_nonnegative"),
        sa.CheckConstraint("policy_revision >= 0", name="policy_revision_nonnegative"),
        sa.CheckConstraint("allocation_revision >= 0", name="allocation_revision_nonnegative"),
        sa.CheckConstraint("kind <> 'run' OR policy IS NULL", name="policy_not_on_runs"),
        sa.CheckConstraint("kind <> 'run' OR allocation IS NULL", name="allocation_not_on_runs"),
        sa.CheckConstraint(
            "kind = 'population' OR organisation_policy IS NULL", name="organisation_policy_only_on_populations"
        ),
        sa.CheckConstraint("quarantine_reason <> ''", name="quarantine_reason_not_empty"),
        sa.CheckConstraint("alert_thresholds <> ''", name="alert_thresholds_not_empty"),
        sa.CheckConstraint("forecast_days >= 0", name="forecast_days_nonnegative"),
        sa.CheckConstraint("max_partitions_per_unit >= 1", name="max_partitions_per_unit_positive"),
        sa.CheckConstraint("kind <> 'run' OR max_partitions_per_unit IS NULL", name="partitions_not_on_runs"),
        sa.CheckConstraint("closes_at > opens_at", name="window_order"),
    )
    _create_partial_index(
        "uq_accounts_path", "accounts", ["organisation_id", "path"], where="kind != 'run'", unique=True
    )
    _create_partial_index("ix_accounts_run_path", "accounts", ["organisation_id", "path"], where="kind = 'run'")
    _create_partial_index(
        "uq_accounts_population_skeleton",
        "accounts",
        ["organisation_id", "name_skeleton"],
        where="kind = 'population'",
        unique=True,
    )
    _create_partial_index(
        "uq_accounts_budget_skeleton",
        "accounts",
        ["organisation_id", "parent_id", "name_skeleton"],
        where="kind = 'budget'",
        unique=True,
    )
    op.create_index("ix_accounts_organisation_id_parent_id", "accounts", ["organisation_id", "parent_id"])


def _create_account_metadata() -> None:
    op.create_table(
        "account_metadata",
        _number("organisation_id"),
        _number("account_id"),
        sa.Column("number", sa.Integer, nullable=False),
        sa.Column("display_name", sa.String(100)),
        sa.Column("description", sa.Text),
        sa.Column("owner", sa.String(200)),
        sa.Column("links", sa.Text, nullable=False, server_default="[]"),
        sa.Column("deployment", sa.Text, nullable=False, server_default="{}"),
        sa.Column("search_text", sa.Text, nullable=False),
        _timestamp("archived_at"),
        sa.PrimaryKeyConstraint("organisation_id", "account_id"),
        _foreign_key("accounts", account_id="id"),
        sa.CheckConstraint("number >= 1", name="number_positive"),
        sa.CheckConstraint("display_name <> ''", name="display_name_not_empty"),
        sa.CheckConstraint("description <> ''", name="description_not_empty"),
        sa.CheckConstraint("owner <> ''", name="owner_not_empty"),
        sa.CheckConstraint("links <> ''", name="links_not_empty"),
        sa.CheckConstraint("deployment <> ''", name="deployment_not_empty"),
        sa.CheckConstraint("search_text <> ''", name="search_text_not_empty"),
    )
    _create_partial_index(
        "ix_account_metadata_owner",
        "account_metadata",
        ["organisation_id", "owner", "account_id"],
        where="owner IS NOT NULL",
    )
    _create_partial_index(
        "ix_account_metadata_archived",
        "account_metadata",
        ["organisation_id", "account_id"],
        where="archived_at IS NOT NULL",
    )


def _create_account_labels() -> None:
    op.create_table(
        "account_labels",
        _number("organisation_id"),
        _number("account_id"),
        sa.Column("key", sa.String(63), nullable=False),
        sa.Column("value", sa.String(200), nullable=False),
        sa.PrimaryKeyConstraint("organisation_id", "account_id", "key"),
        _foreign_key("accounts", account_id="id"),
        sa.CheckConstraint("key <> ''", name="key_not_empty"),
    )
    op.create_index("ix_account_labels_key", "account_labels", ["organisation_id", "key", "value", "account_id"])


def _create_balances() -> None:
    op.create_table(
        "balances",
        _number("organisation_id"),
        _number("account_id"),
        sa.Column("spent_curve", sa.LargeBinary, nullable=False),
        sa.Column("held_curve", sa.LargeBinary, nullable=False),
        sa.Column("spent_delta", sa.BigInteger, nullable=False),
        sa.Column("held_delta", sa.BigInteger, nullable=False),
        sa.Column("charges", sa.Text),
        sa.PrimaryKeyConstraint("organisation_id", "account_id"),
        _foreign_key("accounts", account_id="id"),
        sa.CheckConstraint(
            "length(spent_curve) % 8 = 0 AND length(held_curve) % 8 = 0",
            name="curve_lengths",
        ),
        sa.CheckConstraint("spent_delta >= 0", name="spent_delta_nonnegative"),
        sa.CheckConstraint("held_delta >= 0", name="held_delta_nonnegative"),
        sa.CheckConstraint("charges <> ''", name="charges_not_empty"),
    )


def _create_account_ancestors() -> None:
    op.create_table(
        "account_ancestors",
        _number("organisation_id"),
        _number("account_id"),
        _number("ancestor_id"),
        sa.Column("depth", sa.Integer, nullable=False),
        sa.PrimaryKeyConstraint("organisation_id", "account_id", "ancestor_id"),
        sa.UniqueConstraint("organisation_id", "ancestor_id", "account_id"),
        _foreign_key("accounts", account_id="id"),
        _foreign_key("accounts", ancestor_id="id"),
        sa.CheckConstraint("depth >= 0", name="depth_nonnegative"),
    )


def _create_run_budgets() -> None:
    op.create_table(
        "run_budgets",
        _number("organisation_id"),
        _number("run_id"),
        sa.Column("position", sa.Integer, nullable=False),
        _number("budget_id"),
        sa.PrimaryKeyConstraint("organisation_id", "run_id", "position"),
        sa.UniqueConstraint("organisation_id", "budget_id", "run_id"),
        _foreign_key("accounts", run_id="id"),
        _foreign_key("accounts", budget_id="id"),
        sa.CheckConstraint("position >= 0", name="position_nonnegative"),
    )


def _create_partition_attestations() -> None:
    op.create_table(
        "partition_attestations",
        _number("organisation_id"),
        _number("account_id"),
        sa.Column("attestation", sa.Text, nullable=False),
        sa.Column("replacement_assumption", sa.String(32)),
        sa.Column("attested_by", sa.String(255), nullable=False),
        _timestamp("attested_at", nullable=False),
        sa.PrimaryKeyConstraint("organisation_id", "account_id"),
        _foreign_key("accounts", account_id="id"),
        sa.CheckConstraint("attestation <> ''", name="attestation_not_empty"),
        sa.CheckConstraint(
            "replacement_assumption IN ('stay_in_their_parts', 'removal_is_bounded')",
            name="replacement_assumption_known",
        ),
    )


def _create_data_blocks() -> None:
    op.create_table(
        "data_blocks",
        _number("organisation_id"),
        _number("account_id"),
        _timestamp("data_from", nullable=False),
        _timestamp("data_to", nullable=False),
        sa.Column("label", sa.String(100)),
        sa.PrimaryKeyConstraint("organisation_id", "account_id"),
        _foreign_key("accounts", account_id="id"),
        sa.CheckConstraint("data_to > data_from", name="data_range_order"),
        sa.CheckConstraint("label <> ''", name="label_not_empty"),
    )


def _limit_checks() -> tuple[sa.CheckConstraint, ...]:
    return (
        sa.CheckConstraint("limit_unit IN ('epsilon', 'rho', 'mu')", name="limit_unit_known"),
        sa.CheckConstraint(
            "limit_value > 0 AND limit_value <= 10000 AND limit_delta >= 0 AND limit_delta < 0.5"
            " AND (limit_unit <> 'mu' OR (limit_value <= 100 AND limit_delta = 0))",
            name="limit_in_range",
        ),
    )


def _create_block_schedules() -> None:
    op.create_table(
        "block_schedules",
        _number("organisation_id"),
        _number("account_id"),
        sa.Column("period", sa.String(16), nullable=False),
        sa.Column("start", sa.String(10), nullable=False),
        sa.Column("limit_unit", sa.String(8), nullable=False),
        sa.Column("limit_value", sa.Float(53), nullable=False),
        sa.Column("limit_delta", sa.Float(53), nullable=False),
        sa.Column("prefix", sa.String(50), nullable=False),
        _timestamp("due_at"),
        sa.Column("failure", sa.Text),
        sa.PrimaryKeyConstraint("organisation_id", "account_id"),
        _foreign_key("accounts", account_id="id"),
        sa.CheckConstraint("period IN ('week', 'month', 'quarter')", name="period_known"),
        sa.CheckConstraint("start <> ''", name="start_not_empty"),
        sa.CheckConstraint("failure <> ''", name="failure_not_empty"),
        *_limit_checks(),
    )


def _create_experiments() -> None:
    op.create_table(
        "experiments",
        _number("organisation_id"),
        _id("id"),
        _number("account_id"),
        sa.Column("charging_mode", sa.String(32), nullable=False),
        sa.Column("created_by", sa.String(300), nullable=False),
        _timestamp("created_at", nullable=False),
        sa.PrimaryKeyConstraint("organisation_id", "id"),
        sa.UniqueConstraint("organisation_id", "account_id"),
        _foreign_key("accounts", account_id="id"),
        sa.CheckConstraint("charging_mode IN ('each_run', 'repeat_and_select')", name="charging_mode_known"),
    )


def _create_populations() -> None:
    op.create_table(
        "populations",
        _number("organisation_id"),
        _number("account_id"),
        sa.Column("privacy_unit", sa.String(100), nullable=False),
        sa.Column("neighboring_relation", sa.String(32), nullable=False),
        sa.Column("size", sa.BigInteger),
        sa.PrimaryKeyConstraint("organisation_id", "account_id"),
        _foreign_key("accounts", account_id="id"),
        sa.CheckConstraint("privacy_unit <> ''", name="privacy_unit_not_empty"),
        sa.CheckConstraint(
            "neighboring_relation IN ('add_or_remove_one', 'replace_one', 'replace_special')",
            name="neighboring_relation_known",
        ),
        sa.CheckConstraint("size > 0", name="size_positive"),
    )


def _create_api_keys() -> None:
    op.create_table(
        "api_keys",
        _number("organisation_id"),
        _id("id"),
        sa.Column("name", sa.String(100)),
        sa.Column("role", sa.String(16), nullable=False),
        _number("scope_id", nullable=True),
        _digest("secret_hash"),
        sa.Column("created_by", sa.String(300), nullable=False),
        _timestamp("created_at", nullable=False),
        _timestamp("expires_at"),
        _timestamp("revoked_at"),
        _timestamp("last_used_at"),
        sa.Column("single_use", sa.Boolean, nullable=False),
        _digest("token_hash", nullable=True),
        sa.PrimaryKeyConstraint("organisation_id", "id"),
        sa.UniqueConstraint("id"),
        sa.UniqueConstraint("organisation_id", "token_hash"),
        _organisation_foreign_key(),
        _foreign_key("accounts", scope_id="id"),
        sa.CheckConstraint(
            "NOT single_use OR (scope_id IS NOT NULL AND expires_at IS NOT NULL)", name="single_use_complete"
        ),
        sa.CheckConstraint("length(token_hash) = 32", name="token_hash_is_sha256"),
        sa.CheckConstraint(
            "role IN ('viewer', 'trainer', 'planner', 'budget_admin', 'privacy_officer', 'auditor', 'admin')",
            name="role_known",
        ),
        sa.CheckConstraint("length(secret_hash) = 32", name="secret_hash_is_sha256"),
    )


def _create_idempotent_responses() -> None:
    op.create_table(
        "idempotent_responses",
        _number("organisation_id"),
        sa.Column("idempotency_key", sa.String(255), nullable=False),
        _digest("request_fingerprint"),
        sa.Column("status", sa.Integer, nullable=False),
        sa.Column("body", sa.Text, nullable=False),
        _timestamp("created_at", nullable=False),
        sa.PrimaryKeyConstraint("organisation_id", "idempotency_key"),
        _organisation_foreign_key(),
        sa.CheckConstraint("status IN (200, 201, 202, 403)", name="status_known"),
        sa.CheckConstraint("length(request_fingerprint) = 32", name="request_fingerprint_is_sha256"),
    )


def _create_dp_events() -> None:
    op.create_table(
        "dp_events",
        _number("organisation_id"),
        _digest("fingerprint"),
        sa.Column("canonical_json", sa.Text, nullable=False),
        sa.PrimaryKeyConstraint("organisation_id", "fingerprint"),
        _organisation_foreign_key(),
        sa.CheckConstraint("length(fingerprint) = 32", name="fingerprint_is_sha256"),
    )


def _create_event_costs() -> None:
    op.create_table(
        "event_costs",
        _number("organisation_id"),
        _digest("event_fingerprint"),
        sa.Column("neighboring_relation", sa.String(32), nullable=False),
        sa.Column("grid_version", sa.Integer, nullable=False),
        sa.Column("curve", sa.LargeBinary, nullable=False),
        sa.Column("curve_delta", sa.BigInteger, nullable=False),
        sa.Column("formula_version", sa.Integer, nullable=False),
        sa.PrimaryKeyConstraint("organisation_id", "event_fingerprint", "neighboring_relation", "grid_version"),
        _foreign_key("dp_events", event_fingerprint="fingerprint"),
        sa.CheckConstraint(
            "neighboring_relation IN ('add_or_remove_one', 'replace_one', 'replace_special')",
            name="neighboring_relation_known",
        ),
        sa.CheckConstraint("length(curve) > 0 AND length(curve) % 8 = 0", name="curve_length"),
        sa.CheckConstraint("curve_delta >= 0", name="curve_delta_nonnegative"),
        sa.CheckConstraint("formula_version >= 1", name="formula_version_positive"),
    )


def _create_runs() -> None:
    op.create_table(
        "runs",
        _number("organisation_id"),
        _number("account_id"),
        sa.Column("status", sa.String(16), nullable=False),
        _digest("event_fingerprint", nullable=True),
        sa.Column("attempt", sa.Integer, nullable=False),
        sa.Column("next_step", sa.BigInteger, nullable=False),
        sa.Column("decision_count", sa.BigInteger, nullable=False),
        _digest("chain_head"),
        _id("reservation_id", nullable=True),
        sa.Column("expected_steps", sa.BigInteger),
        sa.Column("declared_steps_per_hour", sa.Float(53)),
        sa.Column("starts_from", sa.Text),
        sa.Column("deviations", sa.Text),
        sa.Column("end_reason", sa.String(16)),
        sa.Column("ended_at", sa.DateTime(timezone=True)),
        sa.PrimaryKeyConstraint("organisation_id", "account_id"),
        _foreign_key("accounts", account_id="id"),
        _foreign_key("dp_events", event_fingerprint="fingerprint"),
        *(
            []
            if _is_postgresql()
            else [_foreign_key("reservations", account_id="run_id", reservation_id="id", name="fk_runs_reservation")]
        ),
        sa.CheckConstraint(
            "status IN ('pending', 'waiting', 'active', 'paused', 'completed', 'aborted', 'overdrawn')",
            name="status_known",
        ),
        sa.CheckConstraint(
            "status <> 'pending' OR (attempt = 1 AND reservation_id IS NULL)", name="pending_not_started"
        ),
        sa.CheckConstraint("expected_steps >= 1", name="expected_steps_positive"),
        sa.CheckConstraint("declared_steps_per_hour > 0", name="declared_steps_per_hour_positive"),
        sa.CheckConstraint(
            "end_reason IN ('finished', 'budget_exhausted', 'aborted', 'lost', 'not_granted')", name="end_reason_known"
        ),
        sa.CheckConstraint(
            "(status IN ('completed', 'aborted')) = (end_reason IS NOT NULL)", name="end_reason_if_ended"
        ),
        sa.CheckConstraint("(end_reason IS NULL) = (ended_at IS NULL)", name="ended_at_if_ended"),
        sa.CheckConstraint("length(chain_head) = 32", name="chain_head_is_sha256"),
        sa.CheckConstraint("attempt >= 1", name="attempt_positive"),
        sa.CheckConstraint("next_step >= 0", name="next_step_nonnegative"),
        sa.CheckConstraint("decision_count >= 0", name="decision_count_nonnegative"),
    )


def _create_run_origins() -> None:
    op.create_table(
        "run_origins",
        _number("organisation_id"),
        _number("run_id"),
        _number("origin_id"),
        sa.PrimaryKeyConstraint("organisation_id", "run_id", "origin_id"),
        _foreign_key("runs", run_id="account_id"),
        _foreign_key("accounts", origin_id="id"),
    )
    op.create_index(
        "ix_run_origins_organisation_id_origin_id_run_id", "run_origins", ["organisation_id", "origin_id", "run_id"]
    )


def _create_attempts() -> None:
    op.create_table(
        "attempts",
        _number("organisation_id"),
        _number("run_id"),
        sa.Column("attempt", sa.Integer, nullable=False),
        sa.Column("first_step", sa.BigInteger, nullable=False),
        _timestamp("created_at", nullable=False),
        sa.PrimaryKeyConstraint("organisation_id", "run_id", "attempt"),
        _foreign_key("runs", run_id="account_id"),
        sa.CheckConstraint("attempt >= 1", name="attempt_positive"),
        sa.CheckConstraint("first_step >= 0", name="first_step_nonnegative"),
    )


def _create_reservations() -> None:
    op.create_table(
        "reservations",
        _number("organisation_id"),
        _id("id"),
        _number("run_id"),
        sa.Column("attempt", sa.Integer, nullable=False),
        sa.Column("status", sa.String(16), nullable=False),
        sa.Column("reserved_curve", sa.LargeBinary, nullable=False),
        sa.Column("reserved_delta", sa.BigInteger, nullable=False),
        sa.Column("lease_seconds", sa.Integer, nullable=False),
        _timestamp("expires_at", nullable=False),
        _timestamp("created_at", nullable=False),
        _timestamp("closed_at"),
        sa.Column("steps_executed", sa.BigInteger),
        _timestamp("wait_until"),
        _timestamp("granted_at"),
        _timestamp("claimed_at"),
        sa.Column("priority", sa.Integer, nullable=False, server_default="0"),
        sa.PrimaryKeyConstraint("organisation_id", "id"),
        sa.UniqueConstraint("organisation_id", "run_id", "id"),
        _foreign_key("attempts", run_id="run_id", attempt="attempt"),
        sa.CheckConstraint(
            "status IN ('waiting', 'active', 'committed', 'voided', 'forfeited', 'expired', 'cancelled')",
            name="status_known",
        ),
        sa.CheckConstraint(
            "(status IN ('waiting', 'active')) = (closed_at IS NULL)", name="closed_at_unless_waiting_or_active"
        ),
        sa.CheckConstraint(
            "status NOT IN ('waiting', 'expired', 'cancelled') OR (wait_until IS NOT NULL AND granted_at IS NULL)",
            name="wait_until_if_not_granted",
        ),
        sa.CheckConstraint("granted_at IS NULL OR wait_until IS NOT NULL", name="granted_at_if_waited"),
        sa.CheckConstraint("claimed_at IS NULL OR granted_at IS NOT NULL", name="claimed_at_if_granted"),
        sa.CheckConstraint("priority >= -100 AND priority <= 100", name="priority_in_range"),
        sa.CheckConstraint("(status = 'committed') = (steps_executed IS NOT NULL)", name="steps_executed_if_committed"),
        sa.CheckConstraint("steps_executed >= 0", name="steps_executed_nonnegative"),
        sa.CheckConstraint("length(reserved_curve) > 0 AND length(reserved_curve) % 8 = 0", name="curve_length"),
        sa.CheckConstraint("reserved_delta >= 0", name="reserved_delta_nonnegative"),
        sa.CheckConstraint("lease_seconds >= 1", name="lease_seconds_positive"),
    )
    if _is_postgresql():  # the two tables refer to each other, and SQLite cannot add a constraint
        op.create_foreign_key(
            "fk_runs_reservation",
            "runs",
            "reservations",
            ["organisation_id", "account_id", "reservation_id"],
            ["organisation_id", "run_id", "id"],
        )
    _create_partial_index(
        "uq_reservations_active", "reservations", ["organisation_id", "run_id"], where="status = 'active'", unique=True
    )
    _create_partial_index(
        "uq_reservations_waiting",
        "reservations",
        ["organisation_id", "run_id"],
        where="status = 'waiting'",
        unique=True,
    )


def _create_reservation_items() -> None:
    op.create_table(
        "reservation_items",
        _number("organisation_id"),
        _id("reservation_id"),
        sa.Column("item", sa.Integer, nullable=False),
        _digest("event_fingerprint"),
        sa.Column("count", sa.BigInteger, nullable=False),
        sa.Column("revoked_count", sa.BigInteger, nullable=False, server_default="0"),
        sa.Column("authorized_count", sa.BigInteger, nullable=False),
        sa.PrimaryKeyConstraint("organisation_id", "reservation_id", "item"),
        sa.UniqueConstraint("organisation_id", "reservation_id", "event_fingerprint"),
        _foreign_key("reservations", reservation_id="id"),
        _foreign_key("dp_events", event_fingerprint="fingerprint"),
        sa.CheckConstraint("item >= 0", name="item_nonnegative"),
        sa.CheckConstraint("count >= 1 AND count <= 1000000000", name="count_in_range"),
        sa.CheckConstraint("authorized_count >= 0 AND authorized_count <= count", name="authorized_count_in_range"),
        sa.CheckConstraint("revoked_count >= 0 AND revoked_count <= count", name="revoked_count_in_range"),
    )


def _create_decisions() -> None:
    op.create_table(
        "decisions",
        _number("organisation_id"),
        _number("run_id"),
        sa.Column("position", sa.BigInteger, nullable=False),
        sa.Column("attempt", sa.Integer, nullable=False),
        sa.Column("outcome", sa.String(16), nullable=False),
        sa.Column("idempotency_key", sa.String(255)),
        _digest("request_fingerprint"),
        sa.Column("first_step", sa.BigInteger, nullable=False),
        sa.Column("step_count", sa.BigInteger, nullable=False),
        sa.Column("requested_count", sa.BigInteger, nullable=False),
        _digest("event_fingerprint"),
        sa.Column("event_count", sa.BigInteger, nullable=False),
        _id("reservation_id", nullable=True),
        sa.Column("epsilon", sa.Float(53), nullable=False),
        sa.Column("limit_unit", sa.String(8), nullable=False),
        sa.Column("limit_value", sa.Float(53), nullable=False),
        sa.Column("limit_delta", sa.Float(53), nullable=False),
        sa.Column("used", sa.Float(53), nullable=False),
        sa.Column("steps_remaining", sa.BigInteger),
        _number("binding_account_id"),
        sa.Column("refusal_details", sa.Text),
        sa.Column("ended_plans", sa.Text),
        sa.Column("warnings", sa.Text),
        sa.Column("population_version", sa.BigInteger, nullable=False),
        _digest("entry_hash"),
        _timestamp("created_at", nullable=False),
        sa.Column("actor", sa.String(300), nullable=False),
        sa.Column("request_id", sa.String(64)),
        sa.PrimaryKeyConstraint("organisation_id", "run_id", "position"),
        _foreign_key("attempts", run_id="run_id", attempt="attempt"),
        _foreign_key("dp_events", event_fingerprint="fingerprint"),
        _foreign_key("accounts", binding_account_id="id"),
        _foreign_key("reservations", run_id="run_id", reservation_id="id", name="fk_decisions_reservation"),
        sa.CheckConstraint(
            "position >= 0 AND attempt >= 1 AND first_step >= 0 AND step_count >= 1", name="counters_in_range"
        ),
        sa.CheckConstraint("requested_count >= step_count", name="requested_count_at_least_step_count"),
        sa.CheckConstraint(
            "event_count >= 1 AND event_count <= step_count AND event_count <= 1000000000", name="event_count_in_range"
        ),
        sa.CheckConstraint("steps_remaining >= 0", name="steps_remaining_nonnegative"),
        sa.CheckConstraint("population_version >= 0", name="population_version_nonnegative"),
        sa.CheckConstraint(
            "(outcome IN ('admitted', 'reported') AND refusal_details IS NULL"
            " AND (outcome = 'reported' OR steps_remaining IS NOT NULL))"
            " OR (outcome = 'refused' AND refusal_details IS NOT NULL AND steps_remaining IS NULL)"
            " OR (outcome = 'forfeited' AND refusal_details IS NULL AND steps_remaining IS NULL"
            " AND reservation_id IS NOT NULL AND idempotency_key IS NULL)",
            name="outcome_consistent",
        ),
        sa.CheckConstraint("length(entry_hash) = 32", name="entry_hash_is_sha256"),
        sa.CheckConstraint("outcome <> 'refused' OR ended_plans IS NULL", name="ended_plans_unless_refused"),
        sa.CheckConstraint("outcome <> 'refused' OR warnings IS NULL", name="warnings_unless_refused"),
        sa.CheckConstraint(
            "epsilon >= 0 AND used >= 0 AND limit_value > 0 AND limit_delta >= 0", name="reading_in_range"
        ),
        sa.CheckConstraint("length(request_fingerprint) = 32", name="request_fingerprint_is_sha256"),
    )
    op.create_index("ix_decisions_organisation_id_created_at", "decisions", ["organisation_id", "created_at"])
    # not written by an admitted charge without a key, as most are
    _create_partial_index(
        "uq_decisions_idempotency_key",
        "decisions",
        ["organisation_id", "idempotency_key"],
        where="idempotency_key IS NOT NULL",
        unique=True,
    )
    _create_partial_index(
        "ix_decisions_not_admitted",
        "decisions",
        ["organisation_id", "outcome", "created_at"],
        where="outcome <> 'admitted'",
    )


def _create_decision_ranges() -> None:
    op.create_table(
        "decision_ranges",
        _number("organisation_id"),
        _number("run_id"),
        sa.Column("first_position", sa.BigInteger, nullable=False),
        sa.Column("actor", sa.String(300), nullable=False),
        sa.PrimaryKeyConstraint("organisation_id", "run_id", "first_position"),
        _foreign_key("decisions", run_id="run_id", first_position="position"),
    )
    columns = ["organisation_id", "actor", "run_id", "first_position"]
    op.create_index("ix_decision_ranges_organisation_id_actor_run_id_first_position", "decision_ranges", columns)


def _create_decision_events() -> None:
    op.create_table(
        "decision_events",
        _number("organisation_id"),
        _number("run_id"),
        sa.Column("position", sa.BigInteger, nullable=False),
        sa.Column("item", sa.Integer, nullable=False),
        _digest("event_fingerprint"),
        sa.Column("count", sa.BigInteger, nullable=False),
        sa.Column("repeats", sa.Text, nullable=False),
        sa.PrimaryKeyConstraint("organisation_id", "run_id", "position", "item"),
        _foreign_key("decisions", run_id="run_id", position="position"),
        _foreign_key("dp_events", event_fingerprint="fingerprint"),
        sa.CheckConstraint("item >= 1", name="item_positive"),
        # a thousand items, each at most a billion times
        sa.CheckConstraint("count >= 1 AND count <= 1000000000000", name="count_in_range"),
    )


def _create_receivers() -> None:
    op.create_table(
        "receivers",
        _number("organisation_id"),
        _id("id"),
        sa.Column("kind", sa.String(16), nullable=False),
        sa.Column("url", sa.String(2000)),
        sa.Column("addresses", sa.Text, nullable=False),
        sa.Column("types", sa.Text, nullable=False),
        _number("account_id", nullable=True),
        sa.Column("secret", sa.String(255)),
        sa.Column("previous_secret", sa.String(255)),
        _timestamp("previous_secret_expires_at"),
        _timestamp("created_at", nullable=False),
        _timestamp("disabled_at"),
        sa.Column("disabled_reason", sa.Text),
        sa.Column("consecutive_failures", sa.Integer, nullable=False),
        _timestamp("failing_since"),
        sa.PrimaryKeyConstraint("organisation_id", "id"),
        _organisation_foreign_key(),
        _foreign_key("accounts", account_id="id"),
        sa.CheckConstraint("kind IN ('webhook', 'slack', 'teams', 'email')", name="kind_known"),
        sa.CheckConstraint("url <> ''", name="url_not_empty"),
        sa.CheckConstraint("(kind = 'email') = (url IS NULL)", name="url_unless_email"),
        sa.CheckConstraint("(kind = 'email') = (addresses <> '[]')", name="addresses_if_email"),
        sa.CheckConstraint("(kind = 'webhook') = (secret IS NOT NULL)", name="secret_if_webhook"),
        sa.CheckConstraint("secret <> ''", name="secret_not_empty"),
        sa.CheckConstraint(
            "(previous_secret IS NULL) = (previous_secret_expires_at IS NULL)", name="previous_secret_complete"
        ),
        sa.CheckConstraint("(disabled_at IS NULL) = (disabled_reason IS NULL)", name="disabled_complete"),
        sa.CheckConstraint(
            "consecutive_failures >= 0 AND (consecutive_failures = 0) = (failing_since IS NULL)",
            name="consecutive_failures_consistent",
        ),
    )


def _create_alerts() -> None:
    op.create_table(
        "alerts",
        _number("organisation_id"),
        _id("id"),
        sa.Column("type", sa.String(40), nullable=False),
        _number("account_id", nullable=True),
        sa.Column("dedup_key", sa.String(255), nullable=False),
        sa.Column("payload", sa.Text, nullable=False),
        _timestamp("created_at", nullable=False),
        sa.PrimaryKeyConstraint("organisation_id", "id"),
        sa.UniqueConstraint("organisation_id", "account_id", "type", "dedup_key"),
        _organisation_foreign_key(),
        _foreign_key("accounts", account_id="id"),
        sa.CheckConstraint(
            "account_id IS NOT NULL OR type IN ('receiver.test', 'proposal.opened', 'proposal.decided')",
            name="account_unless_of_organisation",
        ),
        sa.CheckConstraint("type <> 'receiver.test' OR account_id IS NULL", name="test_without_account"),
    )
    # An alert about the organisation has no account, and NULLs differ from each other in the unique key above.
    _create_partial_index(
        "uq_alerts_of_organisation",
        "alerts",
        ["organisation_id", "type", "dedup_key"],
        where="account_id IS NULL",
        unique=True,
    )


def _create_deliveries() -> None:
    op.create_table(
        "deliveries",
        _number("organisation_id"),
        _id("id"),
        _id("receiver_id"),
        _id("alert_id"),
        sa.Column("status", sa.String(16), nullable=False),
        sa.Column("attempts", sa.Integer, nullable=False),
        _timestamp("next_attempt_at", nullable=False),
        _timestamp("last_attempt_at"),
        sa.Column("last_status", sa.Integer),
        sa.Column("last_error", sa.Text),
        _timestamp("delivered_at"),
        _timestamp("created_at", nullable=False),
        sa.PrimaryKeyConstraint("organisation_id", "id"),
        sa.UniqueConstraint("organisation_id", "receiver_id", "alert_id"),
        _foreign_key("receivers", receiver_id="id"),
        _foreign_key("alerts", alert_id="id"),
        sa.CheckConstraint("status IN ('pending', 'delivered', 'given_up')", name="status_known"),
        sa.CheckConstraint("status <> 'delivered' OR delivered_at IS NOT NULL", name="delivered_at_if_delivered"),
        sa.CheckConstraint("attempts >= 0", name="attempts_nonnegative"),
    )
    _create_partial_index(
        "ix_deliveries_pending", "deliveries", ["organisation_id", "next_attempt_at"], where="status = 'pending'"
    )


def _create_account_usage_snapshots() -> None:
    op.create_table(
        "account_usage_snapshots",
        _number("organisation_id"),
        _number("account_id"),
        sa.Column("day", sa.Integer, nullable=False),
        sa.Column("used", sa.Float(53), nullable=False),
        _timestamp("recorded_at", nullable=False),
        sa.PrimaryKeyConstraint("organisation_id", "account_id", "day"),
        _foreign_key("accounts", account_id="id"),
        sa.CheckConstraint("used >= 0", name="used_nonnegative"),
        sa.CheckConstraint("day >= 0", name="day_nonnegative"),
    )


def _create_audit_entries() -> None:
    op.create_table(
        "audit_entries",
        _number("organisation_id"),
        sa.Column("position", sa.BigInteger, nullable=False),
        sa.Column("actor", sa.String(300), nullable=False),
        sa.Column("action", sa.String(64), nullable=False),
        sa.Column("subject", sa.String(300), nullable=False),
        sa.Column("before", sa.Text),
        sa.Column("after", sa.Text),
        sa.Column("reason", sa.Text),
        sa.Column("request_id", sa.String(64)),
        _digest("entry_hash"),
        _timestamp("created_at", nullable=False),
        sa.PrimaryKeyConstraint("organisation_id", "position"),
        _organisation_foreign_key(),
        sa.CheckConstraint("position >= 0", name="position_nonnegative"),
        sa.CheckConstraint("length(entry_hash) = 32", name="entry_hash_is_sha256"),
    )
    op.create_index(
        "ix_audit_entries_organisation_id_action_position", "audit_entries", ["organisation_id", "action", "position"]
    )
    op.create_index(
        "ix_audit_entries_organisation_id_actor_position", "audit_entries", ["organisation_id", "actor", "position"]
    )
    op.create_index(
        "ix_audit_entries_organisation_id_subject_position", "audit_entries", ["organisation_id", "subject", "position"]
    )


def _create_proposals() -> None:
    op.create_table(
        "proposals",
        _number("organisation_id"),
        _id("id"),
        sa.Column("kind", sa.String(16), nullable=False),
        _number("account_id", nullable=True),
        sa.Column("payload", sa.Text, nullable=False),
        sa.Column("status", sa.String(16), nullable=False),
        sa.Column("reason", sa.Text, nullable=False),
        sa.Column("proposed_by", sa.String(300), nullable=False),
        _timestamp("proposed_at", nullable=False),
        sa.Column("decided_by", sa.String(300)),
        _timestamp("decided_at"),
        sa.Column("decision_reason", sa.Text),
        sa.PrimaryKeyConstraint("organisation_id", "id"),
        _foreign_key("accounts", account_id="id"),
        sa.CheckConstraint(
            "kind IN ('limit', 'run', 'policy', 'population', 'quarantine', 'allocation', 'unarchival')",
            name="kind_known",
        ),
        sa.CheckConstraint("kind IN ('policy', 'population') OR account_id IS NOT NULL", name="account_required"),
        sa.CheckConstraint(
            "status IN ('open', 'approved', 'rejected', 'withdrawn', 'superseded')", name="status_known"
        ),
        sa.CheckConstraint("(status = 'open') = (decided_by IS NULL)", name="decided_by_unless_open"),
        sa.CheckConstraint("(decided_by IS NULL) = (decided_at IS NULL)", name="decision_complete"),
    )
    _create_partial_index(
        "uq_proposals_open",
        "proposals",
        ["organisation_id", "account_id", "kind"],
        where="status = 'open'",
        unique=True,
    )


def _create_checkpoints() -> None:
    op.create_table(
        "checkpoints",
        _number("organisation_id"),
        sa.Column("audit_length", sa.BigInteger, nullable=False),
        _digest("audit_head"),
        sa.Column("document", sa.Text, nullable=False),
        _timestamp("created_at", nullable=False),
        sa.PrimaryKeyConstraint("organisation_id", "audit_length"),
        _organisation_foreign_key(),
        sa.CheckConstraint("audit_length >= 1", name="audit_length_positive"),
        sa.CheckConstraint("length(audit_head) = 32", name="audit_head_is_sha256"),
    )


def _create_run_anchors() -> None:
    op.create_table(
        "run_anchors",
        _number("organisation_id"),
        _number("run_id"),
        sa.Column("decision_count", sa.BigInteger, nullable=False),
        sa.PrimaryKeyConstraint("organisation_id", "run_id"),
        _foreign_key("runs", run_id="account_id"),
        sa.CheckConstraint("decision_count >= 1", name="decision_count_positive"),
    )


def _create_verifications() -> None:
    op.create_table(
        "verifications",
        _number("organisation_id"),
        _id("id"),
        sa.Column("actor", sa.String(300), nullable=False),
        sa.Column("discrepancy_count", sa.BigInteger, nullable=False),
        sa.Column("report", sa.Text, nullable=False),
        _timestamp("created_at", nullable=False),
        sa.PrimaryKeyConstraint("organisation_id", "id"),
        _organisation_foreign_key(),
        sa.CheckConstraint("discrepancy_count >= 0", name="discrepancy_count_nonnegative"),
    )


def _create_sessions() -> None:
    op.create_table(
        "sessions",
        _number("organisation_id"),
        _id("id"),
        _digest("secret_hash"),
        sa.Column("actor", sa.String(300), nullable=False),
        sa.Column("role", sa.String(16)),
        _number("scope_id", nullable=True),
        sa.Column("oidc_key_thumbprint", sa.String(64)),
        _timestamp("created_at", nullable=False),
        _timestamp("expires_at", nullable=False),
        sa.PrimaryKeyConstraint("organisation_id", "id"),
        sa.UniqueConstraint("id"),
        _organisation_foreign_key(),
        _foreign_key("accounts", scope_id="id"),
        sa.CheckConstraint("length(secret_hash) = 32", name="secret_hash_is_sha256"),
        sa.CheckConstraint("(role IS NULL) = (oidc_key_thumbprint IS NULL)", name="oidc_session_complete"),
        sa.CheckConstraint("role IS NOT NULL OR scope_id IS NULL", name="scope_only_for_oidc"),
        sa.CheckConstraint("expires_at > created_at", name="expires_after_creation"),
    )


def _create_sign_in_links() -> None:
    op.create_table(
        "sign_in_links",
        _number("organisation_id"),
        _id("id"),
        _id("key_id"),
        _digest("secret_hash"),
        _timestamp("created_at", nullable=False),
        _timestamp("expires_at", nullable=False),
        sa.PrimaryKeyConstraint("organisation_id", "id"),
        sa.UniqueConstraint("id"),
        sa.UniqueConstraint("organisation_id"),
        _organisation_foreign_key(),
        _foreign_key("api_keys", key_id="id"),
        sa.CheckConstraint("length(secret_hash) = 32", name="secret_hash_is_sha256"),
        sa.CheckConstraint("expires_at > created_at", name="expires_after_creation"),
    )
