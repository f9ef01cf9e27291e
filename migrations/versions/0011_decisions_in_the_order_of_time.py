"""Decisions of all runs are found in the order of time; the few that were not admitted, by themselves."""

import sqlalchemy as sa
from alembic import op

revision = "0011"
down_revision = "0010"
branch_labels = None
depends_on = None

BY_TIME = "ix_decisions_organisation_id_created_at"
NOT_ADMITTED = "ix_decisions_not_admitted"


def upgrade() -> None:
    """Go to this version."""
    few = sa.text("outcome <> 'admitted'")
    op.create_index(op.f(BY_TIME), "decisions", ["organisation_id", "created_at"])
    op.create_index(
        NOT_ADMITTED,
        "decisions",
        ["organisation_id", "outcome", "created_at"],
        sqlite_where=few,
        postgresql_where=few,
    )


def downgrade() -> None:
    """Go back to the version before, which lists the decisions of one run at a time."""
    op.drop_index(NOT_ADMITTED, "decisions")
    op.drop_index(op.f(BY_TIME), "decisions")
