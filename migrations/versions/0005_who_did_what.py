"""Who did what: keys have scopes and ends, decisions name who asked, and an organisation's acts are chained."""

from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Any

import sqlalchemy as sa
from alembic import op

from app.ledger.hash_chain import AuditEntry, audit_entry_hash, audit_genesis, canonical
from app.persistence.repositories.accounts import planned_sha256, read_planned

revision = "0005"
down_revision = "0004"
branch_labels = None
depends_on = None

ID = sa.String(length=40)
ACTOR = sa.String(length=300)
REQUEST_ID = sa.String(length=64)
MOMENT = sa.DateTime(timezone=True)
ROLES_BEFORE = "role IN ('admin', 'trainer', 'viewer')"
ROLES = "role IN ('viewer', 'trainer', 'planner', 'budget_admin', 'privacy_officer', 'auditor', 'admin')"
STATUSES_BEFORE = "status IN (201, 403)"
STATUSES = "status IN (200, 201, 202, 403)"
NEW_OF_KEYS: dict[str, sa.types.TypeEngine[Any]] = {
    "name": sa.String(length=100),
    "scope_id": ID,
    "created_by": ACTOR,
    "expires_at": MOMENT,
    "revoked_at": MOMENT,
    "last_used_at": MOMENT,
}
SEARCHED = ("action", "actor", "subject")

CHANGED = 200
"""The status of a reply to a change that holds at once."""

replies = sa.table("replies", sa.column("status"))
api_keys = sa.table("api_keys", sa.column("role"))
decisions = sa.table("decisions", sa.column("actor"))
"""What an earlier version could not read."""

accounts = sa.table(
    "accounts",
    *map(
        sa.column,
        (
            *(
                "organisation_id",
                "id",
                "kind",
                "parent_id",
                "path",
                "epsilon_limit",
                "delta_limit",
                "filter",
                "planned",
            ),
            *("grid_version", "depth", "limit_revision"),
        ),
    ),
)
populations = sa.table(
    "populations",
    *map(sa.column, ("organisation_id", "account_id", "privacy_unit", "neighboring_relation", "size")),
)
runs = sa.table("runs", *map(sa.column, ("organisation_id", "account_id", "event_fingerprint", "status")))
organisations = sa.table("organisations", sa.column("id"))
audit_entries = sa.table(
    "audit_entries",
    *map(
        sa.column,
        (
            *("organisation_id", "position", "actor", "action", "subject", "before", "after", "reason", "request_id"),
            "entry_hash",
        ),
    ),
    sa.column("created_at", MOMENT),
)


def upgrade() -> None:
    """Go to this version."""
    op.create_table(
        "audit_entries",
        sa.Column("organisation_id", ID, nullable=False),
        sa.Column("position", sa.BigInteger(), nullable=False),
        sa.Column("actor", ACTOR, nullable=False),
        sa.Column("action", sa.String(length=64), nullable=False),
        sa.Column("subject", ACTOR, nullable=False),
        *(sa.Column(name, sa.Text(), nullable=True) for name in ("before", "after", "reason")),
        sa.Column("request_id", REQUEST_ID, nullable=True),
        sa.Column("entry_hash", sa.LargeBinary(length=32), nullable=False),
        sa.Column("created_at", MOMENT, nullable=False),
        sa.PrimaryKeyConstraint("organisation_id", "position", name=op.f("pk_audit_entries")),
        sa.ForeignKeyConstraint(
            ["organisation_id"], ["organisations.id"], name=op.f("fk_audit_entries_organisation_id")
        ),
        sa.CheckConstraint("position >= 0", name=op.f("ck_audit_entries_position_counts")),
        sa.CheckConstraint("length(entry_hash) = 32", name=op.f("ck_audit_entries_entry_hash_is_sha256")),
    )
    for column in SEARCHED:
        name = op.f(f"ix_audit_entries_organisation_id_{column}_position")
        op.create_index(name, "audit_entries", ["organisation_id", column, "position"], unique=False)
    op.add_column("decisions", sa.Column("actor", ACTOR, nullable=True))
    op.add_column("decisions", sa.Column("request_id", REQUEST_ID, nullable=True))
    for column, kind in NEW_OF_KEYS.items():
        op.add_column("api_keys", sa.Column(column, kind, nullable=True))
    with op.batch_alter_table("api_keys") as batch:
        batch.drop_constraint(op.f("ck_api_keys_role_known"), type_="check")
        batch.create_check_constraint(op.f("ck_api_keys_role_known"), ROLES)
        batch.create_foreign_key(
            op.f("fk_api_keys_organisation_id_scope_id"),
            "accounts",
            ["organisation_id", "scope_id"],
            ["organisation_id", "id"],
        )
    _let_limits_change()
    _sign_history()
    _adopt()


def downgrade() -> None:
    """Go back to the version before, which knows three roles, and no chain of acts."""
    bind = op.get_bind()
    roles = sa.select(sa.func.count()).where(api_keys.c.role.not_in(["admin", "trainer", "viewer"]))
    asked = sa.select(sa.func.count()).where(decisions.c.actor.is_not(None))
    changed = sa.select(sa.func.count()).where(accounts.c.limit_revision > 0)
    too_new = {
        "keys of newer roles": roles,
        "decisions that name who asked": asked,
        "accounts whose limit was changed": changed,
        "replies to changes": sa.select(sa.func.count()).where(replies.c.status == CHANGED),
    }
    for what, count in too_new.items():
        found = bind.scalar(count)
        if found:
            raise RuntimeError(f"There are {found} {what}, which the version before cannot read; nothing was changed.")
    with op.batch_alter_table("api_keys") as batch:
        batch.drop_constraint(op.f("fk_api_keys_organisation_id_scope_id"), type_="foreignkey")
        batch.drop_constraint(op.f("ck_api_keys_role_known"), type_="check")
        batch.create_check_constraint(op.f("ck_api_keys_role_known"), ROLES_BEFORE)
        for name in NEW_OF_KEYS:
            batch.drop_column(name)
    with op.batch_alter_table("decisions") as batch:
        batch.drop_column("request_id")
        batch.drop_column("actor")
    with op.batch_alter_table("accounts") as batch:
        batch.drop_constraint(op.f("ck_accounts_limit_revision_counts"), type_="check")
        batch.drop_column("limit_revision")
    _allow_replies(STATUSES_BEFORE)
    for table in ("run_anchors", "checkpoints", "proposals"):
        op.drop_table(table)
    op.drop_table("audit_entries")


def _let_limits_change() -> None:
    """Limits have revisions, and proposals wait for another person's word."""
    op.add_column("accounts", sa.Column("limit_revision", sa.Integer(), nullable=False, server_default="0"))
    with op.batch_alter_table("accounts") as batch:
        batch.create_check_constraint(op.f("ck_accounts_limit_revision_counts"), "limit_revision >= 0")
    _allow_replies(STATUSES)
    op.create_table(
        "proposals",
        *(sa.Column(name, ID, nullable=False) for name in ("organisation_id", "id")),
        sa.Column("kind", sa.String(length=16), nullable=False),
        sa.Column("account_id", ID, nullable=True),
        sa.Column("facts", sa.Text(), nullable=False),
        sa.Column("status", sa.String(length=16), nullable=False),
        sa.Column("reason", sa.Text(), nullable=False),
        sa.Column("proposed_by", ACTOR, nullable=False),
        sa.Column("proposed_at", MOMENT, nullable=False),
        sa.Column("decided_by", ACTOR, nullable=True),
        sa.Column("decided_at", MOMENT, nullable=True),
        sa.Column("decision_reason", sa.Text(), nullable=True),
        sa.PrimaryKeyConstraint("organisation_id", "id", name=op.f("pk_proposals")),
        sa.ForeignKeyConstraint(
            ["organisation_id", "account_id"],
            ["accounts.organisation_id", "accounts.id"],
            name=op.f("fk_proposals_organisation_id_account_id"),
        ),
        sa.CheckConstraint(
            "kind IN ('limit', 'run', 'policy', 'population', 'quarantine')", name=op.f("ck_proposals_kind_known")
        ),
        sa.CheckConstraint(
            "kind IN ('policy', 'population') OR account_id IS NOT NULL", name=op.f("ck_proposals_account_given")
        ),
        sa.CheckConstraint(
            "status IN ('open', 'approved', 'rejected', 'withdrawn', 'superseded')",
            name=op.f("ck_proposals_status_known"),
        ),
        sa.CheckConstraint("(status = 'open') = (decided_by IS NULL)", name=op.f("ck_proposals_decided_once")),
        sa.CheckConstraint("(decided_by IS NULL) = (decided_at IS NULL)", name=op.f("ck_proposals_decision_whole")),
    )
    is_open = sa.text("status = 'open'")
    op.create_index(
        "uq_proposals_open",
        "proposals",
        ["organisation_id", "account_id", "kind"],
        unique=True,
        sqlite_where=is_open,
        postgresql_where=is_open,
    )


def _sign_history() -> None:
    """Checkpoints are kept, and how far runs are tied to the chain."""
    op.create_table(
        "checkpoints",
        sa.Column("organisation_id", ID, nullable=False),
        sa.Column("acts", sa.BigInteger(), nullable=False),
        sa.Column("head", sa.LargeBinary(length=32), nullable=False),
        sa.Column("document", sa.Text(), nullable=False),
        sa.Column("created_at", MOMENT, nullable=False),
        sa.PrimaryKeyConstraint("organisation_id", "acts", name=op.f("pk_checkpoints")),
        sa.ForeignKeyConstraint(["organisation_id"], ["organisations.id"], name=op.f("fk_checkpoints_organisation_id")),
        sa.CheckConstraint("acts >= 1", name=op.f("ck_checkpoints_acts_count")),
        sa.CheckConstraint("length(head) = 32", name=op.f("ck_checkpoints_head_is_sha256")),
    )
    op.create_table(
        "run_anchors",
        sa.Column("organisation_id", ID, nullable=False),
        sa.Column("run_id", ID, nullable=False),
        sa.Column("decisions", sa.BigInteger(), nullable=False),
        sa.PrimaryKeyConstraint("organisation_id", "run_id", name=op.f("pk_run_anchors")),
        sa.ForeignKeyConstraint(
            ["organisation_id", "run_id"],
            ["runs.organisation_id", "runs.account_id"],
            name=op.f("fk_run_anchors_organisation_id_run_id"),
        ),
        sa.CheckConstraint("decisions >= 1", name=op.f("ck_run_anchors_decisions_count")),
    )


def _allow_replies(statuses: str) -> None:
    with op.batch_alter_table("replies") as batch:
        batch.drop_constraint(op.f("ck_replies_status_known"), type_="check")
        batch.create_check_constraint(op.f("ck_replies_status_known"), statuses)


def _adopt() -> None:
    """Begin every organisation's chain with the accounts as they are found, so that later changes of them show."""
    bind = op.get_bind()
    now = datetime.now(UTC)
    for owner in bind.execute(sa.select(organisations.c.id).order_by(organisations.c.id)).scalars().all():
        head = audit_genesis(owner)
        for position, (subject, facts) in enumerate(_found(bind, owner)):
            entry = AuditEntry(
                organisation_id=owner,
                position=position,
                actor="cli",
                action="account.adopted",
                subject=subject,
                before=None,
                after=canonical(facts),
                reason=None,
                request_id=None,
                created_at=now,
            )
            head = audit_entry_hash(head, entry)
            values = {name: getattr(entry, name) for name in AuditEntry.__dataclass_fields__}
            bind.execute(audit_entries.insert().values(**values, entry_hash=head))


def _found(bind: sa.Connection, owner: str) -> Iterator[tuple[str, dict[str, object]]]:
    """Every account of an organisation, and what decides what it lets through."""
    rows = (
        sa.select(
            accounts,
            populations.c.privacy_unit,
            populations.c.neighboring_relation,
            populations.c.size,
            runs.c.event_fingerprint,
            runs.c.status,
        )
        .outerjoin(
            populations,
            (populations.c.organisation_id == accounts.c.organisation_id) & (populations.c.account_id == accounts.c.id),
        )
        .outerjoin(runs, (runs.c.organisation_id == accounts.c.organisation_id) & (runs.c.account_id == accounts.c.id))
        .where(accounts.c.organisation_id == owner)
        .order_by(accounts.c.depth, accounts.c.id)
    )
    for row in bind.execute(rows):
        facts: dict[str, object] = {
            "path": row.path,
            "parent": row.parent_id,
            "limit": row.epsilon_limit and {"epsilon": row.epsilon_limit, "delta": row.delta_limit},
            "filter": row.filter,
            "planned_sha256": planned_sha256(read_planned(row.planned)),
            "grid_version": row.grid_version,
        }
        if row.kind == "population":
            facts |= {name: getattr(row, name) for name in ("privacy_unit", "neighboring_relation", "size")}
        if row.kind == "run":
            facts |= {"event": row.event_fingerprint, "status": row.status}
        yield row.id, facts
