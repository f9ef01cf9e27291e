"""Keep where each decision came from, and labels of runs: a sample, which no ledger has."""

import sqlalchemy as sa
from alembic import op

revision = "0002"
down_revision = "0001"
branch_labels = None
depends_on = None

decisions = sa.table("decisions", sa.column("source"))


def upgrade() -> None:
    """Rebuild a table that has rows, and fill a new one."""
    with op.batch_alter_table("decisions") as batch:
        batch.add_column(sa.Column("source", sa.String(16), nullable=False, server_default="api"))
        batch.create_check_constraint("source_known", "source IN ('api', 'import')")
    op.create_table(
        "run_labels",
        sa.Column("organisation_id", sa.BigInteger, nullable=False),
        sa.Column("run_id", sa.BigInteger, nullable=False),
        sa.Column("label", sa.String(100), nullable=False),
        sa.PrimaryKeyConstraint("organisation_id", "run_id"),
        sa.ForeignKeyConstraint(["organisation_id", "run_id"], ["runs.organisation_id", "runs.account_id"]),
    )
    op.execute(
        "INSERT INTO run_labels SELECT organisation_id, id, CAST(upper(name) AS VARCHAR(100)) FROM accounts"
        " WHERE kind = 'run'"
    )


def downgrade() -> None:
    """Go back, unless rows say what the version before cannot keep."""
    imported = sa.select(sa.func.count()).select_from(decisions).where(decisions.c.source != "api")
    if op.get_bind().scalar(imported):
        raise RuntimeError("There are imported decisions; nothing was changed.")
    op.drop_table("run_labels")
    with op.batch_alter_table("decisions") as batch:
        batch.drop_constraint("source_known", type_="check")
        batch.drop_column("source")
