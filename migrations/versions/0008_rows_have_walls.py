"""PostgreSQL shows and changes the rows of the one organisation only that a transaction says it is about."""

import sqlalchemy as sa
from alembic import op

revision = "0008"
down_revision = "0006"
branch_labels = None
depends_on = None

POLICY = "of_the_organisation"

OWNED = sa.text(
    "SELECT table_name FROM information_schema.columns"
    " WHERE table_schema = current_schema() AND column_name = 'organisation_id' ORDER BY table_name"
)


def upgrade() -> None:
    """Go to this version."""
    for table, column in _walled():
        # Forced, since the service is the owner of its tables, whom policies would let through.
        op.execute(f"ALTER TABLE {table} ENABLE ROW LEVEL SECURITY")
        op.execute(f"ALTER TABLE {table} FORCE ROW LEVEL SECURITY")
        op.execute(
            f"CREATE POLICY {POLICY} ON {table} USING ({column} = current_setting('epsilon_ledger.organisation', true)"
            " OR current_setting('epsilon_ledger.everyone', true) = 'on')"
        )


def downgrade() -> None:
    """Go back to the version before."""
    for table, _ in _walled():
        op.execute(f"DROP POLICY {POLICY} ON {table}")
        op.execute(f"ALTER TABLE {table} NO FORCE ROW LEVEL SECURITY")
        op.execute(f"ALTER TABLE {table} DISABLE ROW LEVEL SECURITY")


def _walled() -> list[tuple[str, str]]:
    """Each table that holds rows of organisations, and the column that says whose."""
    if op.get_bind().dialect.name != "postgresql":
        return []
    return [("organisations", "id"), *((table, "organisation_id") for table in op.get_bind().scalars(OWNED))]
