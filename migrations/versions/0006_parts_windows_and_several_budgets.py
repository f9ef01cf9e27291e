"""Accounts may be composed of disjoint parts and have windows; a run may charge several budgets."""

import sqlalchemy as sa
from alembic import op

revision = "0006"
down_revision = "0005"
branch_labels = None
depends_on = None

ID = sa.String(length=40)
TABLES = ("run_budgets", "attestations", "blocks")
NEW = ("partitions_per_unit", "opens_at", "closes_at")
CHECKS = {
    "partitions_count": "partitions_per_unit >= 1",
    "runs_have_no_parts": "kind <> 'run' OR partitions_per_unit IS NULL",
    "window_holds_a_moment": "closes_at > opens_at",
}
HELD_BACK = {
    "SELECT count(*) FROM accounts WHERE partitions_per_unit IS NOT NULL": "accounts that are composed in parallel",
    "SELECT count(*) FROM accounts WHERE opens_at IS NOT NULL OR closes_at IS NOT NULL": "accounts that have a window",
    "SELECT count(*) FROM blocks": "blocks",
    "SELECT count(*) FROM run_budgets WHERE place > 0": "further budgets that runs charge",
}


def upgrade() -> None:
    """Go to this version."""
    _create_tables()
    with op.batch_alter_table("accounts") as batch:
        batch.add_column(sa.Column("partitions_per_unit", sa.Integer(), nullable=True))
        batch.add_column(sa.Column("opens_at", sa.DateTime(timezone=True), nullable=True))
        batch.add_column(sa.Column("closes_at", sa.DateTime(timezone=True), nullable=True))
        for name, rule in CHECKS.items():
            batch.create_check_constraint(op.f(f"ck_accounts_{name}"), rule)
    with op.batch_alter_table("account_paths") as batch:  # two accounts above a run may lie equally deep
        batch.drop_constraint(op.f("pk_account_paths"), type_="primary")
        batch.create_primary_key(op.f("pk_account_paths"), ["organisation_id", "account_id", "ancestor_id"])
    op.execute(
        "INSERT INTO run_budgets (organisation_id, run_id, place, budget_id) "
        "SELECT organisation_id, id, 0, parent_id FROM accounts WHERE kind = 'run'"
    )


def downgrade() -> None:
    """Go back to the version before, in which what is spent beneath an account always adds up.

    Raises:
        RuntimeError: the ledger has something that the version before does not know.
    """
    for question, what in HELD_BACK.items():
        found = op.get_bind().scalar(sa.text(question))
        if found:
            raise RuntimeError(f"There are {found} {what}, which the version before cannot hold.")
    with op.batch_alter_table("account_paths") as batch:
        batch.drop_constraint(op.f("pk_account_paths"), type_="primary")
        batch.create_primary_key(op.f("pk_account_paths"), ["organisation_id", "account_id", "depth"])
    with op.batch_alter_table("accounts") as batch:
        for name in CHECKS:
            batch.drop_constraint(op.f(f"ck_accounts_{name}"), type_="check")
        for name in NEW:
            batch.drop_column(name)
    for name in TABLES:
        op.drop_table(name)


def _create_tables() -> None:
    op.create_table(
        "run_budgets",
        sa.Column("organisation_id", ID, nullable=False),
        sa.Column("run_id", ID, nullable=False),
        sa.Column("place", sa.Integer(), nullable=False),
        sa.Column("budget_id", ID, nullable=False),
        sa.PrimaryKeyConstraint("organisation_id", "run_id", "place", name=op.f("pk_run_budgets")),
        sa.UniqueConstraint(
            "organisation_id", "budget_id", "run_id", name=op.f("uq_run_budgets_organisation_id_budget_id_run_id")
        ),
        _of_account("run_budgets", "run_id"),
        _of_account("run_budgets", "budget_id"),
        sa.CheckConstraint("place >= 0", name=op.f("ck_run_budgets_place_counts")),
    )
    op.create_table(
        "attestations",
        sa.Column("organisation_id", ID, nullable=False),
        sa.Column("account_id", ID, nullable=False),
        sa.Column("attestation", sa.Text(), nullable=False),
        sa.Column("replaced_units", sa.String(length=32), nullable=True),
        sa.Column("attested_by", sa.String(length=255), nullable=False),
        sa.Column("attested_at", sa.DateTime(timezone=True), nullable=False),
        sa.PrimaryKeyConstraint("organisation_id", "account_id", name=op.f("pk_attestations")),
        _of_account("attestations", "account_id"),
        sa.CheckConstraint("attestation <> ''", name=op.f("ck_attestations_attestation_given")),
        sa.CheckConstraint(
            "replaced_units IN ('stay_in_their_parts', 'removal_is_bounded')",
            name=op.f("ck_attestations_replaced_units_known"),
        ),
    )
    op.create_table(
        "blocks",
        sa.Column("organisation_id", ID, nullable=False),
        sa.Column("account_id", ID, nullable=False),
        sa.Column("data_from", sa.DateTime(timezone=True), nullable=False),
        sa.Column("data_to", sa.DateTime(timezone=True), nullable=False),
        sa.Column("label", sa.String(length=100), nullable=True),
        sa.PrimaryKeyConstraint("organisation_id", "account_id", name=op.f("pk_blocks")),
        _of_account("blocks", "account_id"),
        sa.CheckConstraint("data_to > data_from", name=op.f("ck_blocks_block_holds_a_moment")),
        sa.CheckConstraint("label <> ''", name=op.f("ck_blocks_label_given")),
    )


def _of_account(table: str, column: str) -> sa.ForeignKeyConstraint:
    return sa.ForeignKeyConstraint(
        ["organisation_id", column],
        ["accounts.organisation_id", "accounts.id"],
        name=op.f(f"fk_{table}_organisation_id_{column}"),
    )
