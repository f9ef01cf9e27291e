"""Sweeps are kept: which account pays for them, and how."""

import sqlalchemy as sa
from alembic import op

revision = "0010"
down_revision = "0009"
branch_labels = None
depends_on = None

POLICY = "of_the_organisation"
experiments = sa.table("experiments")


def upgrade() -> None:
    """Go to this version."""
    op.create_table(
        "experiments",
        sa.Column("organisation_id", sa.String(40), nullable=False),
        sa.Column("id", sa.String(40), nullable=False),
        sa.Column("account_id", sa.String(40), nullable=False),
        sa.Column("charged", sa.String(32), nullable=False),
        sa.Column("created_by", sa.String(300), nullable=False),
        sa.Column("created_at", sa.DateTime(timezone=True), nullable=False),
        sa.CheckConstraint("charged IN ('each_run', 'repeat_and_select')", name=op.f("ck_experiments_charged_known")),
        sa.ForeignKeyConstraint(
            ["organisation_id", "account_id"],
            ["accounts.organisation_id", "accounts.id"],
            name=op.f("fk_experiments_organisation_id_account_id"),
        ),
        sa.PrimaryKeyConstraint("organisation_id", "id", name=op.f("pk_experiments")),
        sa.UniqueConstraint("organisation_id", "account_id", name=op.f("uq_experiments_organisation_id_account_id")),
    )
    if op.get_bind().dialect.name == "postgresql":
        op.execute("ALTER TABLE experiments ENABLE ROW LEVEL SECURITY")
        op.execute("ALTER TABLE experiments FORCE ROW LEVEL SECURITY")
        op.execute(
            f"CREATE POLICY {POLICY} ON experiments"
            " USING (organisation_id = current_setting('epsilon_ledger.organisation', true)"
            " OR current_setting('epsilon_ledger.everyone', true) = 'on')"
        )


def downgrade() -> None:
    """Go back to the version before; what the sweeps have spent stays with their accounts."""
    found = op.get_bind().scalar(sa.select(sa.func.count()).select_from(experiments))
    if found:
        raise RuntimeError(
            f"There are {found} experiments, which the version before does not know; nothing was changed."
        )
    op.drop_table("experiments")
