"""An account's curves lie apart from its row, which says what was charged since they were written."""

import json
from typing import Any

import numpy as np
import sqlalchemy as sa
from alembic import op

from app.accounting.orders import orders

revision = "0004"
down_revision = "0003"
branch_labels = None
depends_on = None

ID = sa.String(length=40)
LARGEST = 2**63 - 1
CURVES = "length(spent) % 8 = 0 AND length(held) % 8 = 0 AND (length(spent) = 0 OR length(held) IN (0, length(spent)))"
CURVES_BEFORE = "length(spent) > 0 AND length(spent) % 8 = 0 AND length(held) IN (0, length(spent))"

MOVED = ("spent", "held", "spent_delta", "held_delta")
accounts = sa.table(
    "accounts", *map(sa.column, ("organisation_id", "id", "population_id", "grid_version", "charged_since", *MOVED))
)
balances = sa.table("balances", *map(sa.column, ("organisation_id", "account_id", *MOVED)))
populations = sa.table("populations", *map(sa.column, ("organisation_id", "account_id", "neighboring_relation")))
event_curves = sa.table(
    "event_curves",
    *map(
        sa.column,
        ("organisation_id", "event_fingerprint", "neighboring_relation", "grid_version", "curve", "curve_delta"),
    ),
)


def upgrade() -> None:
    """Go to this version."""
    op.create_table(
        "balances",
        sa.Column("organisation_id", ID, nullable=False),
        sa.Column("account_id", ID, nullable=False),
        sa.Column("spent", sa.LargeBinary(), nullable=False),
        sa.Column("held", sa.LargeBinary(), nullable=False),
        sa.Column("spent_delta", sa.BigInteger(), nullable=False),
        sa.Column("held_delta", sa.BigInteger(), nullable=False),
        sa.PrimaryKeyConstraint("organisation_id", "account_id", name=op.f("pk_balances")),
        sa.ForeignKeyConstraint(
            ["organisation_id", "account_id"],
            ["accounts.organisation_id", "accounts.id"],
            name=op.f("fk_balances_organisation_id_account_id"),
        ),
        sa.CheckConstraint(CURVES, name=op.f("ck_balances_curves_whole")),
        sa.CheckConstraint("spent_delta >= 0", name=op.f("ck_balances_spent_delta_counts")),
        sa.CheckConstraint("held_delta >= 0", name=op.f("ck_balances_held_delta_counts")),
    )
    moved = sa.select(accounts.c.organisation_id, accounts.c.id, *(accounts.c[name] for name in MOVED))
    op.get_bind().execute(balances.insert().from_select(("organisation_id", "account_id", *MOVED), moved))
    op.add_column("accounts", sa.Column("charged_since", sa.Text(), nullable=False, server_default="{}"))
    # The row is written in another way than a process may remember it.
    op.execute("UPDATE accounts SET version = version + 1")
    with op.batch_alter_table("accounts") as batch:
        for name in ("curves_whole", "spent_delta_counts", "held_delta_counts"):
            batch.drop_constraint(op.f(f"ck_accounts_{name}"), type_="check")
        for name in MOVED:
            batch.drop_column(name)


def downgrade() -> None:
    """Go back to the version before, whose accounts have whole curves in their rows."""
    for name in ("spent", "held"):
        op.add_column("accounts", sa.Column(name, sa.LargeBinary(), nullable=True))
        op.add_column("accounts", sa.Column(f"{name}_delta", sa.BigInteger(), nullable=False, server_default="0"))
    _write_whole()
    with op.batch_alter_table("accounts") as batch:
        for name in ("spent", "held"):
            batch.alter_column(name, nullable=False)
            batch.create_check_constraint(op.f(f"ck_accounts_{name}_delta_counts"), f"{name}_delta >= 0")
        batch.create_check_constraint(op.f("ck_accounts_curves_whole"), CURVES_BEFORE)
        batch.drop_column("charged_since")
    op.drop_table("balances")


def _write_whole() -> None:
    """Write what every account has spent and holds into its row: the curves, and what was charged since."""
    bind = op.get_bind()
    found = sa.select(
        *(accounts.c[name] for name in ("organisation_id", "id", "grid_version", "charged_since")),
        populations.c.neighboring_relation,
        *(balances.c[name] for name in MOVED),
    ).where(
        balances.c.organisation_id == accounts.c.organisation_id,
        balances.c.account_id == accounts.c.id,
        populations.c.organisation_id == accounts.c.organisation_id,
        populations.c.account_id == accounts.c.population_id,
    )
    for row in bind.execute(found).all():
        size = len(orders(row.grid_version))
        spent, held = _read(row.spent, row.spent_delta, size), _read(row.held, row.held_delta, size)
        for fingerprint, (times, taken) in json.loads(row.charged_since).items():
            price = _price(row, fingerprint)
            spent = np.minimum(spent + price * times, LARGEST)
            held = held - price * taken
        here = (accounts.c.organisation_id == row.organisation_id) & (accounts.c.id == row.id)
        written = {
            "spent": spent[1:].astype("<i8").tobytes(),
            "spent_delta": int(spent[0]),
            "held": held[1:].astype("<i8").tobytes() if held.any() else b"",
            "held_delta": int(held[0]),
        }
        bind.execute(accounts.update().where(here).values(written))


def _read(values: bytes, delta: int, size: int) -> Any:  # noqa: ANN401 - an array of whole numbers of any size
    """A delta, and a curve behind it."""
    curve = np.frombuffer(values, dtype="<i8") if values else np.zeros(size, dtype=np.int64)
    return np.array([delta, *curve.tolist()], dtype=object)


def _price(row: Any, fingerprint: str) -> Any:  # noqa: ANN401 - a row; an array of whole numbers of any size
    price = op.get_bind().execute(
        sa.select(event_curves.c.curve, event_curves.c.curve_delta).where(
            event_curves.c.organisation_id == row.organisation_id,
            event_curves.c.event_fingerprint == fingerprint,
            event_curves.c.neighboring_relation == row.neighboring_relation,
            event_curves.c.grid_version == row.grid_version,
        )
    )
    found = price.one()
    return _read(found.curve, found.curve_delta, 0)
