"""Decisions are chained by hashes; runs have attempts and reservations, accounts can be quarantined."""

import hashlib
import json
from collections.abc import Mapping
from datetime import UTC, datetime
from math import isinf
from typing import Any

import sqlalchemy as sa
from alembic import op
from alembic.operations import BatchOperations

revision = "0003"
down_revision = "0002"
branch_labels = None
depends_on = None

PAGE = 1000
"""Decisions that are hashed at once."""

CREATED = 201
"""The status of every reply that the version before could keep."""

MOMENT = sa.DateTime(timezone=True)
ID = sa.String(length=40)

runs = sa.table(
    "runs", *map(sa.column, ("organisation_id", "account_id", "chain_head", "next_step", "status", "attempt"))
)
accounts = sa.table(
    "accounts",
    *map(sa.column, ("organisation_id", "id", "spent", "held", "held_delta", "quarantine")),
    sa.column("created_at", MOMENT),
)
attempts = sa.table(
    "attempts", *map(sa.column, ("organisation_id", "run_id", "attempt", "first_step")), sa.column("created_at", MOMENT)
)
reservations = sa.table("reservations", sa.column("id"))
replies = sa.table("replies", sa.column("status"))
decisions = sa.table(
    "decisions",
    *map(
        sa.column,
        (
            *("organisation_id", "run_id", "position", "attempt", "outcome", "idempotency_key", "request_fingerprint"),
            *("first_step", "step_count", "requested_count", "follows_step", "opens_step", "reservation_id"),
            *("epsilon", "delta", "epsilon_limit", "steps_remaining", "binding_account_id", "refusal", "entry_hash"),
        ),
    ),
    sa.column("created_at", MOMENT),
)
step_events = sa.table(
    "step_events",
    *map(sa.column, ("organisation_id", "run_id", "position", "item", "event_fingerprint", "count")),
)

OUTCOME_BEFORE = (
    "(outcome = 'admitted' AND next_step IS NOT NULL AND next_step = first_step + step_count AND COALESCE(follows_step, 0) = first_step AND refusal IS NULL AND steps_remaining IS NOT NULL AND steps_remaining >= 0)"
    " OR (outcome = 'refused' AND next_step IS NULL AND follows_step IS NULL AND refusal IS NOT NULL AND steps_remaining IS NULL)"
)
OUTCOME = (
    "(outcome IN ('admitted', 'reported') AND next_step IS NOT NULL AND next_step = first_step + step_count AND (follows_step IS NULL) <> (opens_step IS NULL) AND COALESCE(follows_step, opens_step) = first_step AND refusal IS NULL AND (outcome = 'reported' OR steps_remaining IS NOT NULL))"
    " OR (outcome = 'refused' AND next_step IS NULL AND follows_step IS NULL AND opens_step IS NULL AND refusal IS NOT NULL AND steps_remaining IS NULL)"
    " OR (outcome = 'forfeited' AND next_step IS NULL AND follows_step IS NULL AND opens_step IS NULL AND refusal IS NULL AND steps_remaining IS NULL AND reservation_id IS NOT NULL AND idempotency_key IS NULL)"
)
CURVES_BEFORE = "length(spent) > 0 AND length(spent) % 8 = 0 AND length(held) = length(spent)"
CURVES = "length(spent) > 0 AND length(spent) % 8 = 0 AND length(held) IN (0, length(spent))"
STATUS_BEFORE = "status IN ('active', 'paused', 'completed', 'aborted')"
STATUS = "status IN ('active', 'paused', 'completed', 'aborted', 'overdrawn')"

TOO_NEW = {
    "accounts that are quarantined": sa.select(sa.func.count()).where(accounts.c.quarantine.is_not(None)),
    "runs that are overdrawn": sa.select(sa.func.count()).where(runs.c.status == "overdrawn"),
    "attempts after a run's first": sa.select(sa.func.count()).where(
        (attempts.c.attempt > 1) | (attempts.c.first_step > 0)
    ),
    "refused reservations": sa.select(sa.func.count()).where(replies.c.status != CREATED),
    "reservations": sa.select(sa.func.count()).select_from(reservations),
    "decisions that are neither a whole admission nor a refusal": sa.select(sa.func.count()).where(
        decisions.c.outcome.not_in(["admitted", "refused"]) | (decisions.c.requested_count != decisions.c.step_count)
    ),
}


def upgrade() -> None:
    """Go to this version.

    SQLite rebuilds a table to change a check: foreign keys must be off (`app.persistence.schema.upgrade` sees to it).
    """
    _create_tables()
    op.add_column("accounts", sa.Column("quarantine", sa.Text(), nullable=True))
    with op.batch_alter_table("accounts") as batch:
        _change_check(batch, "accounts", "curves_whole", CURVES)
        batch.create_check_constraint(op.f("ck_accounts_quarantine_said"), "quarantine <> ''")
    op.add_column("runs", sa.Column("chain_head", sa.LargeBinary(length=32), nullable=True))
    op.add_column("runs", sa.Column("reservation_id", ID, nullable=True))
    for column in ("requested_count", "opens_step"):
        op.add_column("decisions", sa.Column(column, sa.BigInteger(), nullable=True))
    op.add_column("decisions", sa.Column("reservation_id", ID, nullable=True))
    op.add_column("decisions", sa.Column("entry_hash", sa.LargeBinary(length=32), nullable=True))
    _fill_in()
    with op.batch_alter_table("runs") as batch:
        batch.alter_column("chain_head", nullable=False)
        _change_check(batch, "runs", "status_known", STATUS)
        batch.create_check_constraint(op.f("ck_runs_chain_head_is_sha256"), "length(chain_head) = 32")
        batch.create_foreign_key(
            "fk_runs_reservation",
            "reservations",
            ["organisation_id", "account_id", "reservation_id"],
            ["organisation_id", "run_id", "id"],
        )
    _drop_first_step_index()
    with op.batch_alter_table("decisions") as batch:
        batch.alter_column("requested_count", nullable=False)
        batch.alter_column("entry_hash", nullable=False)
        _change_check(batch, "decisions", "outcome_whole", OUTCOME)
        batch.create_check_constraint(op.f("ck_decisions_requested_count_covers"), "requested_count >= step_count")
        batch.create_check_constraint(op.f("ck_decisions_steps_remaining_count"), "steps_remaining >= 0")
        batch.create_check_constraint(op.f("ck_decisions_entry_hash_is_sha256"), "length(entry_hash) = 32")
        batch.create_foreign_key(
            "fk_decisions_opens",
            "attempts",
            ["organisation_id", "run_id", "attempt", "opens_step"],
            ["organisation_id", "run_id", "attempt", "first_step"],
        )
        batch.create_foreign_key(
            "fk_decisions_reservation",
            "reservations",
            ["organisation_id", "run_id", "reservation_id"],
            ["organisation_id", "run_id", "id"],
        )
    _create_first_step_index("outcome IN ('admitted', 'reported')")
    op.execute(
        "ALTER TABLE replies ADD COLUMN status INTEGER DEFAULT 201 NOT NULL "
        "CONSTRAINT ck_replies_status_known CHECK (status IN (201, 403))"
    )


def downgrade() -> None:
    """Go back to the version before, which knows neither attempts nor reservations.

    Hashes are forgotten: an upgrade computes the same ones again, from the same decisions.
    """
    bind = op.get_bind()
    for what, count in TOO_NEW.items():
        found = bind.execute(count).scalar_one()
        if found:
            raise RuntimeError(f"There are {found} {what}, which the version before cannot hold.")
    _drop_first_step_index()
    with op.batch_alter_table("decisions") as batch:
        batch.drop_constraint("fk_decisions_reservation", type_="foreignkey")
        batch.drop_constraint("fk_decisions_opens", type_="foreignkey")
        batch.drop_constraint(op.f("ck_decisions_requested_count_covers"), type_="check")
        batch.drop_constraint(op.f("ck_decisions_steps_remaining_count"), type_="check")
        batch.drop_constraint(op.f("ck_decisions_entry_hash_is_sha256"), type_="check")
        _change_check(batch, "decisions", "outcome_whole", OUTCOME_BEFORE)
        for column in ("requested_count", "opens_step", "reservation_id", "entry_hash"):
            batch.drop_column(column)
    _create_first_step_index("outcome = 'admitted'")
    with op.batch_alter_table("runs") as batch:
        batch.drop_constraint("fk_runs_reservation", type_="foreignkey")
        batch.drop_constraint(op.f("ck_runs_chain_head_is_sha256"), type_="check")
        _change_check(batch, "runs", "status_known", STATUS_BEFORE)
        for column in ("chain_head", "reservation_id"):
            batch.drop_column(column)
    for length in _lengths_of_curves():
        empty = (sa.func.length(accounts.c.held) == 0) & (sa.func.length(accounts.c.spent) == length)
        bind.execute(accounts.update().where(empty).values(held=bytes(length)))
    with op.batch_alter_table("accounts") as batch:
        batch.drop_constraint(op.f("ck_accounts_quarantine_said"), type_="check")
        _change_check(batch, "accounts", "curves_whole", CURVES_BEFORE)
        batch.drop_column("quarantine")
    for table in ("reservation_items", "reservations", "attempts"):
        op.drop_table(table)
    with op.batch_alter_table("replies") as batch:
        batch.drop_constraint(op.f("ck_replies_status_known"), type_="check")
        batch.drop_column("status")


def _change_check(batch: BatchOperations, table: str, name: str, condition: str) -> None:
    batch.drop_constraint(op.f(f"ck_{table}_{name}"), type_="check")
    batch.create_check_constraint(op.f(f"ck_{table}_{name}"), condition)


def _drop_first_step_index() -> None:
    op.drop_index("uq_decisions_first_step", table_name="decisions")


def _create_first_step_index(condition: str) -> None:
    op.create_index(
        "uq_decisions_first_step",
        "decisions",
        ["organisation_id", "run_id", "attempt", "first_step"],
        unique=True,
        sqlite_where=sa.text(condition),
        postgresql_where=sa.text(condition),
    )


def _create_tables() -> None:
    op.create_table(
        "attempts",
        sa.Column("organisation_id", ID, nullable=False),
        sa.Column("run_id", ID, nullable=False),
        sa.Column("attempt", sa.Integer(), nullable=False),
        sa.Column("first_step", sa.BigInteger(), nullable=False),
        sa.Column("created_at", MOMENT, nullable=False),
        sa.CheckConstraint("attempt >= 1", name=op.f("ck_attempts_attempt_counts")),
        sa.CheckConstraint("first_step >= 0", name=op.f("ck_attempts_first_step_counts")),
        sa.ForeignKeyConstraint(
            ["organisation_id", "run_id"],
            ["runs.organisation_id", "runs.account_id"],
            name=op.f("fk_attempts_organisation_id_run_id"),
        ),
        sa.PrimaryKeyConstraint("organisation_id", "run_id", "attempt", name=op.f("pk_attempts")),
        sa.UniqueConstraint(
            *("organisation_id", "run_id", "attempt", "first_step"),
            name=op.f("uq_attempts_organisation_id_run_id_attempt_first_step"),
        ),
    )
    op.create_table(
        "reservations",
        sa.Column("organisation_id", ID, nullable=False),
        sa.Column("id", ID, nullable=False),
        sa.Column("run_id", ID, nullable=False),
        sa.Column("attempt", sa.Integer(), nullable=False),
        sa.Column("status", sa.String(length=16), nullable=False),
        sa.Column("reserved", sa.LargeBinary(), nullable=False),
        sa.Column("reserved_delta", sa.BigInteger(), nullable=False),
        sa.Column("lease_seconds", sa.Integer(), nullable=False),
        sa.Column("expires_at", MOMENT, nullable=False),
        sa.Column("created_at", MOMENT, nullable=False),
        sa.Column("closed_at", MOMENT, nullable=True),
        sa.Column("steps_executed", sa.BigInteger(), nullable=True),
        sa.CheckConstraint(
            "status IN ('active', 'committed', 'voided', 'forfeited')", name=op.f("ck_reservations_status_known")
        ),
        sa.CheckConstraint("(status = 'active') = (closed_at IS NULL)", name=op.f("ck_reservations_closed_once")),
        sa.CheckConstraint(
            "(status = 'committed') = (steps_executed IS NOT NULL)", name=op.f("ck_reservations_attested_if_committed")
        ),
        sa.CheckConstraint("steps_executed >= 0", name=op.f("ck_reservations_steps_executed_count")),
        sa.CheckConstraint(
            "length(reserved) > 0 AND length(reserved) % 8 = 0", name=op.f("ck_reservations_curve_whole")
        ),
        sa.CheckConstraint("reserved_delta >= 0", name=op.f("ck_reservations_reserved_delta_counts")),
        sa.CheckConstraint("lease_seconds >= 1", name=op.f("ck_reservations_lease_counts")),
        sa.ForeignKeyConstraint(
            ["organisation_id", "run_id", "attempt"],
            ["attempts.organisation_id", "attempts.run_id", "attempts.attempt"],
            name=op.f("fk_reservations_organisation_id_run_id_attempt"),
        ),
        sa.PrimaryKeyConstraint("organisation_id", "id", name=op.f("pk_reservations")),
        sa.UniqueConstraint("organisation_id", "run_id", "id", name=op.f("uq_reservations_organisation_id_run_id_id")),
    )
    op.create_index(
        "uq_reservations_active",
        "reservations",
        ["organisation_id", "run_id"],
        unique=True,
        sqlite_where=sa.text("status = 'active'"),
        postgresql_where=sa.text("status = 'active'"),
    )
    op.create_table(
        "reservation_items",
        sa.Column("organisation_id", ID, nullable=False),
        sa.Column("reservation_id", ID, nullable=False),
        sa.Column("item", sa.Integer(), nullable=False),
        sa.Column("event_fingerprint", sa.String(length=64), nullable=False),
        sa.Column("count", sa.BigInteger(), nullable=False),
        sa.Column("withdrawn", sa.BigInteger(), nullable=False, server_default="0"),
        sa.Column("used", sa.BigInteger(), nullable=False),
        sa.CheckConstraint("item >= 0", name=op.f("ck_reservation_items_item_counts")),
        sa.CheckConstraint("count >= 1 AND count <= 1000000000", name=op.f("ck_reservation_items_count_in_range")),
        sa.CheckConstraint("used >= 0 AND used <= count", name=op.f("ck_reservation_items_used_in_range")),
        sa.CheckConstraint(
            "withdrawn >= 0 AND withdrawn <= count", name=op.f("ck_reservation_items_withdrawn_in_range")
        ),
        sa.ForeignKeyConstraint(
            ["organisation_id", "event_fingerprint"],
            ["dp_events.organisation_id", "dp_events.fingerprint"],
            name=op.f("fk_reservation_items_organisation_id_event_fingerprint"),
        ),
        sa.ForeignKeyConstraint(
            ["organisation_id", "reservation_id"],
            ["reservations.organisation_id", "reservations.id"],
            name=op.f("fk_reservation_items_organisation_id_reservation_id"),
        ),
        sa.PrimaryKeyConstraint("organisation_id", "reservation_id", "item", name=op.f("pk_reservation_items")),
        sa.UniqueConstraint(
            *("organisation_id", "reservation_id", "event_fingerprint"),
            name=op.f("uq_reservation_items_organisation_id_reservation_id_event_fingerprint"),
        ),
    )


def _fill_in() -> None:
    """Give the rows that are there what they would have had."""
    bind = op.get_bind()
    for held in bind.execute(sa.select(accounts.c.held).distinct()).scalars().all():
        if not any(held):
            bind.execute(accounts.update().where(accounts.c.held == held).values(held=b""))
    first = sa.select(
        runs.c.organisation_id, runs.c.account_id, sa.literal(1), sa.literal(0), accounts.c.created_at
    ).join(accounts, (accounts.c.organisation_id == runs.c.organisation_id) & (accounts.c.id == runs.c.account_id))
    bind.execute(attempts.insert().from_select([column.name for column in attempts.c], first))
    bind.execute(decisions.update().values(requested_count=decisions.c.step_count))
    opening = (decisions.c.outcome == "admitted") & decisions.c.follows_step.is_(None)
    bind.execute(decisions.update().where(opening).values(opens_step=decisions.c.first_step))
    for run in bind.execute(sa.select(runs.c.organisation_id, runs.c.account_id)).all():
        of_run = (runs.c.organisation_id == run.organisation_id) & (runs.c.account_id == run.account_id)
        head = _chain(bind, run.organisation_id, run.account_id)
        bind.execute(runs.update().where(of_run).values(chain_head=head))


def _chain(bind: sa.Connection, organisation_id: str, run_id: str) -> bytes:
    """Hash a run's decisions in order, and return the last hash."""
    head = hashlib.sha256(_json({"organisation": organisation_id, "run": run_id})).digest()
    theirs = (decisions.c.organisation_id == organisation_id) & (decisions.c.run_id == run_id)
    asked = (step_events.c.organisation_id == organisation_id) & (step_events.c.run_id == run_id)
    position = -1
    while True:
        page = sa.select(decisions).where(theirs, decisions.c.position > position).order_by(decisions.c.position)
        rows = bind.execute(page.limit(PAGE)).mappings().all()
        if not rows:
            return head
        within = step_events.c.position.between(rows[0]["position"], rows[-1]["position"])
        items: dict[int, list[list[object]]] = {}
        in_order = sa.select(step_events).where(asked, within).order_by(step_events.c.position, step_events.c.item)
        for item in bind.execute(in_order).mappings():
            items.setdefault(item["position"], []).append([item["event_fingerprint"], item["count"]])
        hashes = []
        for row in rows:
            position = row["position"]
            head = hashlib.sha256(head + _canonical(row, items.get(position, []))).digest()
            hashes.append({"at": position, "hash": head})
        here = theirs & (decisions.c.position == sa.bindparam("at"))
        bind.execute(decisions.update().where(here).values(entry_hash=sa.bindparam("hash")), hashes)


def _canonical(row: Mapping[Any, Any], items: list[list[object]]) -> bytes:
    """What is hashed of a decision, as the ledger's own code did when this version was made."""
    made: datetime = row["created_at"]
    made = made.replace(tzinfo=UTC) if made.tzinfo is None else made.astimezone(UTC)
    same = (
        *("organisation_id", "run_id", "position", "attempt", "outcome", "idempotency_key", "request_fingerprint"),
        *("first_step", "step_count", "requested_count", "reservation_id", "steps_remaining", "binding_account_id"),
        "refusal",
    )
    return _json(
        {
            **{name: row[name] for name in same},
            "items": items,
            "epsilon": None if isinf(row["epsilon"]) else float(row["epsilon"]),
            "delta": float(row["delta"]),
            "epsilon_limit": float(row["epsilon_limit"]),
            "created_at": made.isoformat(timespec="microseconds"),
        }
    )


def _json(content: dict[str, object]) -> bytes:
    return json.dumps(content, sort_keys=True, separators=(",", ":"), ensure_ascii=True).encode()


def _lengths_of_curves() -> list[int]:
    lengths = sa.select(sa.func.length(accounts.c.spent)).distinct()
    return list(op.get_bind().execute(lengths).scalars())
