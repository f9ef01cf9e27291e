"""Organisations, populations and budgets have policies; runs may wait for an approval, and declare their steps."""

from typing import Any

import sqlalchemy as sa
from alembic import op

revision = "0009"
down_revision = "0008"
branch_labels = None
depends_on = None

CHECKS = {
    "policy_revision_counts": "policy_revision >= 0",
    "policy_above_runs": "kind <> 'run' OR policy IS NULL",
    "house_policy_of_populations": "kind = 'population' OR house_policy IS NULL",
}

NEW_OF_RUNS: dict[str, sa.types.TypeEngine[Any]] = {
    "declared_steps": sa.BigInteger(),
    "declared_steps_per_hour": sa.Float(precision=53),
    "deviations": sa.Text(),
}
CHECKS_OF_RUNS = {
    "declared_steps_count": "declared_steps >= 1",
    "declared_steps_per_hour_count": "declared_steps_per_hour > 0",
}
STATUSES_BEFORE = "status IN ('active', 'paused', 'completed', 'aborted', 'overdrawn')"
STATUSES = "status IN ('pending', 'active', 'paused', 'completed', 'aborted', 'overdrawn')"
NOT_BEGUN = "status <> 'pending' OR (attempt = 1 AND reservation_id IS NULL)"

runs = sa.table("runs", sa.column("status"))
organisations = sa.table("organisations", sa.column("policy"))
accounts = sa.table("accounts", sa.column("policy"))


def upgrade() -> None:
    """Go to this version."""
    for table, columns in (("organisations", ["policy"]), ("accounts", ["policy", "house_policy"])):
        for column in columns:
            op.add_column(table, sa.Column(column, sa.Text(), nullable=True))
        op.add_column(table, sa.Column("policy_revision", sa.Integer(), nullable=False, server_default="0"))
    with op.batch_alter_table("organisations") as batch:
        batch.create_check_constraint(op.f("ck_organisations_policy_revision_counts"), "policy_revision >= 0")
    with op.batch_alter_table("accounts") as batch:
        for name, check in CHECKS.items():
            batch.create_check_constraint(op.f(f"ck_accounts_{name}"), check)
    for name, kind in NEW_OF_RUNS.items():
        op.add_column("runs", sa.Column(name, kind, nullable=True))
    with op.batch_alter_table("runs") as batch:
        for name, check in CHECKS_OF_RUNS.items():
            batch.create_check_constraint(op.f(f"ck_runs_{name}"), check)
        batch.drop_constraint(op.f("ck_runs_status_known"), type_="check")
        batch.create_check_constraint(op.f("ck_runs_status_known"), STATUSES)
        batch.create_check_constraint(op.f("ck_runs_pending_has_not_begun"), NOT_BEGUN)


def downgrade() -> None:
    """Go back to the version before, which knows no policies and would let through what they forbid."""
    bind = op.get_bind()
    for table in (organisations, accounts):
        found = bind.scalar(sa.select(sa.func.count()).select_from(table).where(table.c.policy.is_not(None)))
        if found:
            raise RuntimeError(
                f"There are {found} policies in {table.name}, which the version before does not enforce; "
                "nothing was changed."
            )
    pending = bind.scalar(sa.select(sa.func.count()).select_from(runs).where(runs.c.status == "pending"))
    if pending:
        raise RuntimeError(f"There are {pending} runs that wait for an approval; nothing was changed.")
    with op.batch_alter_table("runs") as batch:
        batch.drop_constraint(op.f("ck_runs_pending_has_not_begun"), type_="check")
        batch.drop_constraint(op.f("ck_runs_status_known"), type_="check")
        batch.create_check_constraint(op.f("ck_runs_status_known"), STATUSES_BEFORE)
        for name in CHECKS_OF_RUNS:
            batch.drop_constraint(op.f(f"ck_runs_{name}"), type_="check")
        for name in NEW_OF_RUNS:
            batch.drop_column(name)
    with op.batch_alter_table("accounts") as batch:
        for name in CHECKS:
            batch.drop_constraint(op.f(f"ck_accounts_{name}"), type_="check")
        for column in ("policy", "house_policy", "policy_revision"):
            batch.drop_column(column)
    with op.batch_alter_table("organisations") as batch:
        batch.drop_constraint(op.f("ck_organisations_policy_revision_counts"), type_="check")
        for column in ("policy", "policy_revision"):
            batch.drop_column(column)
