"""Alerts, the webhooks that they go to, and what was delivered; accounts say of what they tell."""

import sqlalchemy as sa
from alembic import op

revision = "0007"
down_revision = "0006"
branch_labels = None
depends_on = None

ID = sa.String(length=40)
MOMENT = sa.DateTime(timezone=True)
PENDING = sa.text("status = 'pending'")


def upgrade() -> None:
    """Go to this version."""
    with op.batch_alter_table("accounts") as batch:
        batch.add_column(sa.Column("alert_thresholds", sa.Text(), nullable=False, server_default="[0.5, 0.8, 1.0]"))
        batch.add_column(sa.Column("forecast_days", sa.Integer(), nullable=False, server_default="30"))
        batch.create_check_constraint(op.f("ck_accounts_alert_thresholds_said"), "alert_thresholds <> ''")
        batch.create_check_constraint(op.f("ck_accounts_forecast_days_count"), "forecast_days >= 0")
    _create_webhooks()
    _create_alerts()
    _create_deliveries()
    op.create_table(
        "account_readings",
        sa.Column("organisation_id", ID, nullable=False),
        sa.Column("account_id", ID, nullable=False),
        sa.Column("day", sa.Integer(), nullable=False),
        sa.Column("share", sa.Float(precision=53), nullable=False),
        sa.Column("read_at", MOMENT, nullable=False),
        sa.PrimaryKeyConstraint("organisation_id", "account_id", "day", name=op.f("pk_account_readings")),
        sa.ForeignKeyConstraint(
            ["organisation_id", "account_id"],
            ["accounts.organisation_id", "accounts.id"],
            name=op.f("fk_account_readings_organisation_id_account_id"),
        ),
        sa.CheckConstraint("share >= 0", name=op.f("ck_account_readings_share_counts")),
        sa.CheckConstraint("day >= 0", name=op.f("ck_account_readings_day_counts")),
    )


def downgrade() -> None:
    """Go back to the version before, which tells nobody."""
    for table in ("account_readings", "deliveries", "alerts", "webhooks"):
        op.drop_table(table)
    with op.batch_alter_table("accounts") as batch:
        for name in ("alert_thresholds_said", "forecast_days_count"):
            batch.drop_constraint(op.f(f"ck_accounts_{name}"), type_="check")
        for name in ("alert_thresholds", "forecast_days"):
            batch.drop_column(name)


def _create_webhooks() -> None:
    op.create_table(
        "webhooks",
        sa.Column("organisation_id", ID, nullable=False),
        sa.Column("id", ID, nullable=False),
        sa.Column("url", sa.String(length=2000), nullable=False),
        sa.Column("types", sa.Text(), nullable=False),
        sa.Column("account_id", ID, nullable=True),
        sa.Column("secret", sa.String(length=255), nullable=False),
        sa.Column("previous_secret", sa.String(length=255), nullable=True),
        sa.Column("previous_until", MOMENT, nullable=True),
        sa.Column("created_at", MOMENT, nullable=False),
        sa.Column("disabled_at", MOMENT, nullable=True),
        sa.Column("disabled_because", sa.Text(), nullable=True),
        sa.Column("failures", sa.Integer(), nullable=False),
        sa.Column("failing_since", MOMENT, nullable=True),
        sa.PrimaryKeyConstraint("organisation_id", "id", name=op.f("pk_webhooks")),
        sa.ForeignKeyConstraint(["organisation_id"], ["organisations.id"], name=op.f("fk_webhooks_organisation_id")),
        sa.ForeignKeyConstraint(
            ["organisation_id", "account_id"],
            ["accounts.organisation_id", "accounts.id"],
            name=op.f("fk_webhooks_organisation_id_account_id"),
        ),
        sa.CheckConstraint("url <> ''", name=op.f("ck_webhooks_url_given")),
        sa.CheckConstraint("secret <> ''", name=op.f("ck_webhooks_secret_given")),
        sa.CheckConstraint(
            "(previous_secret IS NULL) = (previous_until IS NULL)", name=op.f("ck_webhooks_previous_whole")
        ),
        sa.CheckConstraint(
            "(disabled_at IS NULL) = (disabled_because IS NULL)", name=op.f("ck_webhooks_disabled_whole")
        ),
        sa.CheckConstraint(
            "failures >= 0 AND (failures = 0) = (failing_since IS NULL)", name=op.f("ck_webhooks_failures_whole")
        ),
    )


def _create_alerts() -> None:
    op.create_table(
        "alerts",
        sa.Column("organisation_id", ID, nullable=False),
        sa.Column("id", ID, nullable=False),
        sa.Column("type", sa.String(length=40), nullable=False),
        sa.Column("account_id", ID, nullable=True),
        sa.Column("occasion", sa.String(length=255), nullable=False),
        sa.Column("facts", sa.Text(), nullable=False),
        sa.Column("created_at", MOMENT, nullable=False),
        sa.PrimaryKeyConstraint("organisation_id", "id", name=op.f("pk_alerts")),
        sa.UniqueConstraint(
            "organisation_id",
            "account_id",
            "type",
            "occasion",
            name=op.f("uq_alerts_organisation_id_account_id_type_occasion"),
        ),
        sa.ForeignKeyConstraint(["organisation_id"], ["organisations.id"], name=op.f("fk_alerts_organisation_id")),
        sa.ForeignKeyConstraint(
            ["organisation_id", "account_id"],
            ["accounts.organisation_id", "accounts.id"],
            name=op.f("fk_alerts_organisation_id_account_id"),
        ),
        sa.CheckConstraint("(type = 'webhook.test') = (account_id IS NULL)", name=op.f("ck_alerts_about_an_account")),
    )


def _create_deliveries() -> None:
    op.create_table(
        "deliveries",
        sa.Column("organisation_id", ID, nullable=False),
        sa.Column("id", ID, nullable=False),
        sa.Column("webhook_id", ID, nullable=False),
        sa.Column("alert_id", ID, nullable=False),
        sa.Column("status", sa.String(length=16), nullable=False),
        sa.Column("attempts", sa.Integer(), nullable=False),
        sa.Column("next_attempt_at", MOMENT, nullable=False),
        sa.Column("last_attempt_at", MOMENT, nullable=True),
        sa.Column("last_status", sa.Integer(), nullable=True),
        sa.Column("last_error", sa.Text(), nullable=True),
        sa.Column("delivered_at", MOMENT, nullable=True),
        sa.Column("created_at", MOMENT, nullable=False),
        sa.PrimaryKeyConstraint("organisation_id", "id", name=op.f("pk_deliveries")),
        sa.UniqueConstraint(
            "organisation_id",
            "webhook_id",
            "alert_id",
            name=op.f("uq_deliveries_organisation_id_webhook_id_alert_id"),
        ),
        sa.ForeignKeyConstraint(
            ["organisation_id", "webhook_id"],
            ["webhooks.organisation_id", "webhooks.id"],
            name=op.f("fk_deliveries_organisation_id_webhook_id"),
        ),
        sa.ForeignKeyConstraint(
            ["organisation_id", "alert_id"],
            ["alerts.organisation_id", "alerts.id"],
            name=op.f("fk_deliveries_organisation_id_alert_id"),
        ),
        sa.CheckConstraint("status IN ('pending', 'delivered', 'given_up')", name=op.f("ck_deliveries_status_known")),
        sa.CheckConstraint(
            "status <> 'delivered' OR delivered_at IS NOT NULL", name=op.f("ck_deliveries_delivered_once")
        ),
        sa.CheckConstraint("attempts >= 0", name=op.f("ck_deliveries_attempts_count")),
    )
    op.create_index(
        "ix_deliveries_pending",
        "deliveries",
        ["organisation_id", "next_attempt_at"],
        sqlite_where=PENDING,
        postgresql_where=PENDING,
    )
