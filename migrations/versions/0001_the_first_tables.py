"""The first tables: organisations, keys, accounts, runs, decisions and what was asked."""

import sqlalchemy as sa
from alembic import op

revision = "0001"
down_revision = None
branch_labels = None
depends_on = None

SKELETONS = {
    "population": ["organisation_id", "name_skeleton"],
    "budget": ["organisation_id", "parent_id", "name_skeleton"],
}


def upgrade() -> None:
    """Go to this version."""
    op.create_table(
        "organisations",
        sa.Column("id", sa.String(length=40), nullable=False),
        sa.Column("name", sa.String(length=100), nullable=False),
        sa.Column("created_at", sa.DateTime(timezone=True), nullable=False),
        sa.CheckConstraint("name <> ''", name=op.f("ck_organisations_name_given")),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_organisations")),
        sa.UniqueConstraint("name", name=op.f("uq_organisations_name")),
    )
    op.create_table(
        "accounts",
        sa.Column("organisation_id", sa.String(length=40), nullable=False),
        sa.Column("id", sa.String(length=40), nullable=False),
        sa.Column("kind", sa.String(length=16), nullable=False),
        sa.Column("parent_id", sa.String(length=40), nullable=True),
        sa.Column("population_id", sa.String(length=40), nullable=False),
        sa.Column("name", sa.String(length=100), nullable=False),
        sa.Column("name_skeleton", sa.Text(), nullable=True),
        sa.Column("path", sa.Text(), nullable=False),
        sa.Column("depth", sa.Integer(), nullable=False),
        sa.Column("epsilon_limit", sa.Float(precision=53), nullable=True),
        sa.Column("delta_limit", sa.Float(precision=53), nullable=True),
        sa.Column("filter", sa.String(length=16), nullable=False),
        sa.Column("planned", sa.Text(), nullable=False),
        sa.Column("weights", sa.Text(), nullable=True),
        sa.Column("grid_version", sa.Integer(), nullable=False),
        sa.Column("spent", sa.LargeBinary(), nullable=False),
        sa.Column("held", sa.LargeBinary(), nullable=False),
        sa.Column("version", sa.BigInteger(), nullable=False),
        sa.Column("created_at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("updated_at", sa.DateTime(timezone=True), nullable=False),
        sa.CheckConstraint(
            "(kind = 'population') = (parent_id IS NULL) AND (kind = 'population') = (depth = 0) AND depth >= 0",
            name=op.f("ck_accounts_population_is_root"),
        ),
        sa.CheckConstraint("filter = 'adaptive' OR weights IS NULL", name=op.f("ck_accounts_weights_only_if_adaptive")),
        sa.CheckConstraint("filter IN ('adaptive', 'declared')", name=op.f("ck_accounts_filter_known")),
        sa.CheckConstraint(
            "kind <> 'population' OR population_id = id", name=op.f("ck_accounts_population_is_its_own")
        ),
        sa.CheckConstraint("kind = 'run' OR epsilon_limit IS NOT NULL", name=op.f("ck_accounts_limit_unless_run")),
        sa.CheckConstraint("kind IN ('population', 'budget', 'run')", name=op.f("ck_accounts_kind_known")),
        sa.CheckConstraint("name <> ''", name=op.f("ck_accounts_name_given")),
        sa.CheckConstraint("(kind = 'run') = (name_skeleton IS NULL)", name=op.f("ck_accounts_name_compared")),
        sa.CheckConstraint("(epsilon_limit IS NULL) = (delta_limit IS NULL)", name=op.f("ck_accounts_limit_whole")),
        sa.CheckConstraint(
            "epsilon_limit > 0 AND epsilon_limit <= 10000 AND delta_limit > 0 AND delta_limit < 0.5",
            name=op.f("ck_accounts_limit_in_range"),
        ),
        sa.CheckConstraint(
            "length(spent) > 0 AND length(spent) % 8 = 0 AND length(held) = length(spent)",
            name=op.f("ck_accounts_curves_whole"),
        ),
        sa.CheckConstraint("version >= 0", name=op.f("ck_accounts_version_counts")),
        sa.ForeignKeyConstraint(
            ["organisation_id", "parent_id"],
            ["accounts.organisation_id", "accounts.id"],
            name=op.f("fk_accounts_organisation_id_parent_id"),
        ),
        sa.ForeignKeyConstraint(
            ["organisation_id", "population_id"],
            ["accounts.organisation_id", "accounts.id"],
            name=op.f("fk_accounts_organisation_id_population_id"),
        ),
        sa.ForeignKeyConstraint(["organisation_id"], ["organisations.id"], name=op.f("fk_accounts_organisation_id")),
        sa.PrimaryKeyConstraint("organisation_id", "id", name=op.f("pk_accounts")),
    )
    op.create_index(
        op.f("ix_accounts_organisation_id_parent_id"), "accounts", ["organisation_id", "parent_id"], unique=False
    )
    op.create_index(
        "uq_accounts_path",
        "accounts",
        ["organisation_id", "path"],
        unique=True,
        sqlite_where=sa.text("kind != 'run'"),
        postgresql_where=sa.text("kind != 'run'"),
    )
    for kind, columns in SKELETONS.items():
        op.create_index(
            f"uq_accounts_{kind}_skeleton",
            "accounts",
            columns,
            unique=True,
            sqlite_where=sa.text(f"kind = '{kind}'"),
            postgresql_where=sa.text(f"kind = '{kind}'"),
        )
    op.create_table(
        "api_keys",
        sa.Column("organisation_id", sa.String(length=40), nullable=False),
        sa.Column("id", sa.String(length=40), nullable=False),
        sa.Column("role", sa.String(length=16), nullable=False),
        sa.Column("secret_hash", sa.LargeBinary(length=32), nullable=False),
        sa.Column("created_at", sa.DateTime(timezone=True), nullable=False),
        sa.CheckConstraint("role IN ('admin', 'trainer', 'viewer')", name=op.f("ck_api_keys_role_known")),
        sa.CheckConstraint("length(secret_hash) = 32", name=op.f("ck_api_keys_secret_hash_is_sha256")),
        sa.ForeignKeyConstraint(["organisation_id"], ["organisations.id"], name=op.f("fk_api_keys_organisation_id")),
        sa.PrimaryKeyConstraint("organisation_id", "id", name=op.f("pk_api_keys")),
        sa.UniqueConstraint("id", name=op.f("uq_api_keys_id")),
    )
    op.create_table(
        "dp_events",
        sa.Column("organisation_id", sa.String(length=40), nullable=False),
        sa.Column("fingerprint", sa.String(length=64), nullable=False),
        sa.Column("canonical", sa.Text(), nullable=False),
        sa.CheckConstraint("length(fingerprint) = 64", name=op.f("ck_dp_events_fingerprint_is_sha256")),
        sa.ForeignKeyConstraint(["organisation_id"], ["organisations.id"], name=op.f("fk_dp_events_organisation_id")),
        sa.PrimaryKeyConstraint("organisation_id", "fingerprint", name=op.f("pk_dp_events")),
    )
    op.create_table(
        "replies",
        sa.Column("organisation_id", sa.String(length=40), nullable=False),
        sa.Column("idempotency_key", sa.String(length=255), nullable=False),
        sa.Column("request_fingerprint", sa.String(length=64), nullable=False),
        sa.Column("body", sa.Text(), nullable=False),
        sa.Column("created_at", sa.DateTime(timezone=True), nullable=False),
        sa.CheckConstraint("length(request_fingerprint) = 64", name=op.f("ck_replies_request_fingerprint_is_sha256")),
        sa.ForeignKeyConstraint(["organisation_id"], ["organisations.id"], name=op.f("fk_replies_organisation_id")),
        sa.PrimaryKeyConstraint("organisation_id", "idempotency_key", name=op.f("pk_replies")),
    )
    op.create_table(
        "account_paths",
        sa.Column("organisation_id", sa.String(length=40), nullable=False),
        sa.Column("account_id", sa.String(length=40), nullable=False),
        sa.Column("ancestor_id", sa.String(length=40), nullable=False),
        sa.Column("depth", sa.Integer(), nullable=False),
        sa.CheckConstraint("depth >= 0", name=op.f("ck_account_paths_depth_counts")),
        sa.ForeignKeyConstraint(
            ["organisation_id", "account_id"],
            ["accounts.organisation_id", "accounts.id"],
            name=op.f("fk_account_paths_organisation_id_account_id"),
        ),
        sa.ForeignKeyConstraint(
            ["organisation_id", "ancestor_id"],
            ["accounts.organisation_id", "accounts.id"],
            name=op.f("fk_account_paths_organisation_id_ancestor_id"),
        ),
        sa.PrimaryKeyConstraint("organisation_id", "account_id", "depth", name=op.f("pk_account_paths")),
        sa.UniqueConstraint(
            "organisation_id",
            "ancestor_id",
            "account_id",
            name=op.f("uq_account_paths_organisation_id_ancestor_id_account_id"),
        ),
    )
    op.create_table(
        "event_curves",
        sa.Column("organisation_id", sa.String(length=40), nullable=False),
        sa.Column("event_fingerprint", sa.String(length=64), nullable=False),
        sa.Column("neighboring_relation", sa.String(length=32), nullable=False),
        sa.Column("grid_version", sa.Integer(), nullable=False),
        sa.Column("curve", sa.LargeBinary(), nullable=False),
        sa.CheckConstraint(
            "neighboring_relation IN ('add_or_remove_one', 'replace_one', 'replace_special')",
            name=op.f("ck_event_curves_relation_known"),
        ),
        sa.CheckConstraint("length(curve) > 0 AND length(curve) % 8 = 0", name=op.f("ck_event_curves_curve_whole")),
        sa.ForeignKeyConstraint(
            ["organisation_id", "event_fingerprint"],
            ["dp_events.organisation_id", "dp_events.fingerprint"],
            name=op.f("fk_event_curves_organisation_id_event_fingerprint"),
        ),
        sa.PrimaryKeyConstraint(
            "organisation_id", "event_fingerprint", "neighboring_relation", "grid_version", name=op.f("pk_event_curves")
        ),
    )
    op.create_table(
        "populations",
        sa.Column("organisation_id", sa.String(length=40), nullable=False),
        sa.Column("account_id", sa.String(length=40), nullable=False),
        sa.Column("privacy_unit", sa.String(length=100), nullable=False),
        sa.Column("neighboring_relation", sa.String(length=32), nullable=False),
        sa.Column("size", sa.BigInteger(), nullable=True),
        sa.CheckConstraint(
            "neighboring_relation IN ('add_or_remove_one', 'replace_one', 'replace_special')",
            name=op.f("ck_populations_relation_known"),
        ),
        sa.CheckConstraint("privacy_unit <> ''", name=op.f("ck_populations_privacy_unit_given")),
        sa.CheckConstraint("size > 0", name=op.f("ck_populations_size_counts")),
        sa.ForeignKeyConstraint(
            ["organisation_id", "account_id"],
            ["accounts.organisation_id", "accounts.id"],
            name=op.f("fk_populations_organisation_id_account_id"),
        ),
        sa.PrimaryKeyConstraint("organisation_id", "account_id", name=op.f("pk_populations")),
    )
    op.create_table(
        "runs",
        sa.Column("organisation_id", sa.String(length=40), nullable=False),
        sa.Column("account_id", sa.String(length=40), nullable=False),
        sa.Column("status", sa.String(length=16), nullable=False),
        sa.Column("event_fingerprint", sa.String(length=64), nullable=True),
        sa.Column("attempt", sa.Integer(), nullable=False),
        sa.Column("next_step", sa.BigInteger(), nullable=False),
        sa.Column("decisions", sa.BigInteger(), nullable=False),
        sa.CheckConstraint("status IN ('active', 'paused', 'completed', 'aborted')", name=op.f("ck_runs_status_known")),
        sa.CheckConstraint("attempt >= 1", name=op.f("ck_runs_attempt_counts")),
        sa.CheckConstraint("decisions >= 0", name=op.f("ck_runs_decisions_count")),
        sa.CheckConstraint("next_step >= 0", name=op.f("ck_runs_next_step_counts")),
        sa.ForeignKeyConstraint(
            ["organisation_id", "account_id"],
            ["accounts.organisation_id", "accounts.id"],
            name=op.f("fk_runs_organisation_id_account_id"),
        ),
        sa.ForeignKeyConstraint(
            ["organisation_id", "event_fingerprint"],
            ["dp_events.organisation_id", "dp_events.fingerprint"],
            name=op.f("fk_runs_organisation_id_event_fingerprint"),
        ),
        sa.PrimaryKeyConstraint("organisation_id", "account_id", name=op.f("pk_runs")),
    )
    op.create_table(
        "decisions",
        sa.Column("organisation_id", sa.String(length=40), nullable=False),
        sa.Column("run_id", sa.String(length=40), nullable=False),
        sa.Column("position", sa.BigInteger(), nullable=False),
        sa.Column("attempt", sa.Integer(), nullable=False),
        sa.Column("outcome", sa.String(length=16), nullable=False),
        sa.Column("idempotency_key", sa.String(length=255), nullable=True),
        sa.Column("request_fingerprint", sa.String(length=64), nullable=False),
        sa.Column("first_step", sa.BigInteger(), nullable=False),
        sa.Column("step_count", sa.BigInteger(), nullable=False),
        sa.Column("next_step", sa.BigInteger(), nullable=True),
        sa.Column("follows_step", sa.BigInteger(), nullable=True),
        sa.Column("epsilon", sa.Float(precision=53), nullable=False),
        sa.Column("delta", sa.Float(precision=53), nullable=False),
        sa.Column("epsilon_limit", sa.Float(precision=53), nullable=False),
        sa.Column("steps_remaining", sa.BigInteger(), nullable=True),
        sa.Column("binding_account_id", sa.String(length=40), nullable=False),
        sa.Column("refusal", sa.Text(), nullable=True),
        sa.Column("created_at", sa.DateTime(timezone=True), nullable=False),
        sa.CheckConstraint(
            "(outcome = 'admitted' AND next_step IS NOT NULL AND next_step = first_step + step_count AND COALESCE(follows_step, 0) = first_step AND refusal IS NULL AND steps_remaining IS NOT NULL AND steps_remaining >= 0) OR (outcome = 'refused' AND next_step IS NULL AND follows_step IS NULL AND refusal IS NOT NULL AND steps_remaining IS NULL)",
            name=op.f("ck_decisions_outcome_whole"),
        ),
        sa.CheckConstraint(
            "epsilon >= 0 AND delta > 0 AND epsilon_limit > 0", name=op.f("ck_decisions_reading_in_range")
        ),
        sa.CheckConstraint("length(request_fingerprint) = 64", name=op.f("ck_decisions_request_fingerprint_is_sha256")),
        sa.CheckConstraint(
            "position >= 0 AND attempt >= 1 AND first_step >= 0 AND step_count >= 1", name=op.f("ck_decisions_counts")
        ),
        sa.ForeignKeyConstraint(
            ["organisation_id", "binding_account_id"],
            ["accounts.organisation_id", "accounts.id"],
            name=op.f("fk_decisions_organisation_id_binding_account_id"),
        ),
        sa.ForeignKeyConstraint(
            ["organisation_id", "run_id", "attempt", "follows_step"],
            ["decisions.organisation_id", "decisions.run_id", "decisions.attempt", "decisions.next_step"],
            name="fk_decisions_follows",
        ),
        sa.ForeignKeyConstraint(
            ["organisation_id", "run_id"],
            ["runs.organisation_id", "runs.account_id"],
            name=op.f("fk_decisions_organisation_id_run_id"),
        ),
        sa.PrimaryKeyConstraint("organisation_id", "run_id", "position", name=op.f("pk_decisions")),
        sa.UniqueConstraint(
            "organisation_id", "idempotency_key", name=op.f("uq_decisions_organisation_id_idempotency_key")
        ),
        sa.UniqueConstraint(
            "organisation_id",
            "run_id",
            "attempt",
            "next_step",
            name=op.f("uq_decisions_organisation_id_run_id_attempt_next_step"),
        ),
    )
    op.create_index(
        "uq_decisions_first_step",
        "decisions",
        ["organisation_id", "run_id", "attempt", "first_step"],
        unique=True,
        sqlite_where=sa.text("outcome = 'admitted'"),
        postgresql_where=sa.text("outcome = 'admitted'"),
    )
    op.create_table(
        "step_events",
        sa.Column("organisation_id", sa.String(length=40), nullable=False),
        sa.Column("run_id", sa.String(length=40), nullable=False),
        sa.Column("position", sa.BigInteger(), nullable=False),
        sa.Column("item", sa.Integer(), nullable=False),
        sa.Column("event_fingerprint", sa.String(length=64), nullable=False),
        sa.Column("count", sa.BigInteger(), nullable=False),
        sa.CheckConstraint("count >= 1 AND count <= 1000000000", name=op.f("ck_step_events_count_in_range")),
        sa.CheckConstraint("item >= 0", name=op.f("ck_step_events_item_counts")),
        sa.ForeignKeyConstraint(
            ["organisation_id", "event_fingerprint"],
            ["dp_events.organisation_id", "dp_events.fingerprint"],
            name=op.f("fk_step_events_organisation_id_event_fingerprint"),
        ),
        sa.ForeignKeyConstraint(
            ["organisation_id", "run_id", "position"],
            ["decisions.organisation_id", "decisions.run_id", "decisions.position"],
            name=op.f("fk_step_events_organisation_id_run_id_position"),
        ),
        sa.PrimaryKeyConstraint("organisation_id", "run_id", "position", "item", name=op.f("pk_step_events")),
    )


def downgrade() -> None:
    """Go back to the version before."""
    op.drop_table("step_events")
    op.drop_index(
        "uq_decisions_first_step",
        table_name="decisions",
        sqlite_where=sa.text("outcome = 'admitted'"),
        postgresql_where=sa.text("outcome = 'admitted'"),
    )
    op.drop_table("decisions")
    op.drop_table("runs")
    op.drop_table("populations")
    op.drop_table("event_curves")
    op.drop_table("account_paths")
    op.drop_table("replies")
    op.drop_table("dp_events")
    op.drop_table("api_keys")
    op.drop_index(
        "uq_accounts_path",
        table_name="accounts",
        sqlite_where=sa.text("kind != 'run'"),
        postgresql_where=sa.text("kind != 'run'"),
    )
    for kind in SKELETONS:
        op.drop_index(f"uq_accounts_{kind}_skeleton", table_name="accounts")
    op.drop_index(op.f("ix_accounts_organisation_id_parent_id"), table_name="accounts")
    op.drop_table("accounts")
    op.drop_table("organisations")
