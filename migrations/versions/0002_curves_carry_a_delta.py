"""Curves carry a delta, of mechanisms that have one of their own; prices carry the version of their formula."""

from alembic import op

revision = "0002"
down_revision = "0001"
branch_labels = None
depends_on = None

COLUMNS = (("accounts", "spent_delta"), ("accounts", "held_delta"), ("event_curves", "curve_delta"))


def upgrade() -> None:
    """Go to this version.

    SQLite and PostgreSQL both take a check together with a new column; so no table is rebuilt, and rows that others
    refer to are no obstacle.
    """
    for table, name in COLUMNS:
        op.execute(
            f"ALTER TABLE {table} ADD COLUMN {name} BIGINT DEFAULT 0 NOT NULL "
            f"CONSTRAINT ck_{table}_{name}_counts CHECK ({name} >= 0)"
        )
    op.execute(
        "ALTER TABLE event_curves ADD COLUMN formula_version INTEGER DEFAULT 1 NOT NULL "
        "CONSTRAINT ck_event_curves_formula_version_counts CHECK (formula_version >= 1)"
    )


def downgrade() -> None:
    """Go back to the version before, which cannot hold what was charged with a delta of its own."""
    for table, name in COLUMNS:
        charged = op.get_bind().exec_driver_sql(f"SELECT count(*) FROM {table} WHERE {name} > 0").scalar_one()  # noqa: S608 - the names are above
        if charged:
            raise RuntimeError(f"{charged} rows of {table} have a {name}, which the version before cannot hold.")
    for table, name in (*COLUMNS, ("event_curves", "formula_version")):
        # A table that a later version has rebuilt has its checks beside its columns, where SQLite drops none with them.
        with op.batch_alter_table(table) as batch:
            batch.drop_constraint(op.f(f"ck_{table}_{name}_counts"), type_="check")
            batch.drop_column(name)
