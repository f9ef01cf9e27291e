"""Sessions of people in browsers are kept, so that every replica knows them and signing out ends them everywhere."""

import sqlalchemy as sa
from alembic import op

revision = "0012"
down_revision = "0011"
branch_labels = None
depends_on = None

POLICY = "of_the_organisation"


def upgrade() -> None:
    """Go to this version."""
    op.create_table(
        "sessions",
        sa.Column("organisation_id", sa.String(40), nullable=False),
        sa.Column("id", sa.String(40), nullable=False),
        sa.Column("secret_hash", sa.LargeBinary(32), nullable=False),
        sa.Column("actor", sa.String(300), nullable=False),
        sa.Column("role", sa.String(16), nullable=True),
        sa.Column("scope_id", sa.String(40), nullable=True),
        sa.Column("thumbprint", sa.String(64), nullable=True),
        sa.Column("created_at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("expires_at", sa.DateTime(timezone=True), nullable=False),
        sa.CheckConstraint("length(secret_hash) = 32", name=op.f("ck_sessions_secret_hash_is_sha256")),
        sa.CheckConstraint("(role IS NULL) = (thumbprint IS NULL)", name=op.f("ck_sessions_person_whole")),
        sa.CheckConstraint("role IS NOT NULL OR scope_id IS NULL", name=op.f("ck_sessions_keys_keep_their_scope")),
        sa.CheckConstraint("expires_at > created_at", name=op.f("ck_sessions_lasts")),
        sa.ForeignKeyConstraint(["organisation_id"], ["organisations.id"], name=op.f("fk_sessions_organisation_id")),
        sa.ForeignKeyConstraint(
            ["organisation_id", "scope_id"],
            ["accounts.organisation_id", "accounts.id"],
            name=op.f("fk_sessions_organisation_id_scope_id"),
        ),
        sa.PrimaryKeyConstraint("organisation_id", "id", name=op.f("pk_sessions")),
        sa.UniqueConstraint("id", name=op.f("uq_sessions_id")),
    )
    if op.get_bind().dialect.name == "postgresql":
        op.execute("ALTER TABLE sessions ENABLE ROW LEVEL SECURITY")
        op.execute("ALTER TABLE sessions FORCE ROW LEVEL SECURITY")
        op.execute(
            f"CREATE POLICY {POLICY} ON sessions"
            " USING (organisation_id = current_setting('epsilon_ledger.organisation', true)"
            " OR current_setting('epsilon_ledger.everyone', true) = 'on')"
        )


def downgrade() -> None:
    """Go back to the version before; who is signed in has to do so again."""
    op.drop_table("sessions")
