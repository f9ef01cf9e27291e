"""Counts of charges under an account that is composed of disjoint parts, or has such accounts below."""

from collections.abc import Iterable

from sqlalchemy import Connection, select

from app.accounting.events import NeighboringRelation
from app.ledger.accounts.account import AccountKind, parts_that_count
from app.ledger.accounts.account_records import counts_with
from app.ledger.accounts.part_counts import CountedPart
from app.persistence.repositories.balances import read_counts, read_uncompacted
from app.persistence.repositories.expressions import NO_RUN, join_on, owned_by
from app.persistence.tables import accounts, balances, run_budgets

_COLUMNS = (
    accounts.c.id,
    accounts.c.kind,
    accounts.c.max_partitions_per_unit,
    accounts.c.uncompacted_charges,
    balances.c.charges,
)


def counts_under(
    tx: Connection, organisation_id: str, account_id: str, relation: NeighboringRelation
) -> list[CountedPart]:
    """Read the counts of an account and of those below, down to accounts that are counted, in two statements a level.

    `relation` is the population's.
    """
    balance = join_on(balances, accounts, account_id="id")
    own = select(*_COLUMNS, accounts.c.parent_id.label("above")).outerjoin(balances, balance)
    found: dict[str, CountedPart] = {}
    wanted: Iterable[str] = [account_id]
    rows = tx.execute(own.where(owned_by(accounts, organisation_id, id=account_id))).all()
    while rows:
        for row in rows:
            known = found.get(row.id)
            counts = counts_with(read_counts(row.charges), read_uncompacted(row.uncompacted_charges))
            parents = (row.above,) if known is None else (*known.parents, row.above)
            parts = parts_that_count(row.max_partitions_per_unit, relation)
            found[row.id] = CountedPart(row.id, parents, counts, parts, row.kind == AccountKind.RUN)
        wanted = [row.id for row in rows if found[row.id].counts is None and not found[row.id].is_run]
        if not wanted:
            break
        below = own.where(owned_by(accounts, organisation_id), accounts.c.parent_id.in_(wanted), NO_RUN)
        # A run's parent is only the first of its budgets.
        charging = (
            select(*_COLUMNS, run_budgets.c.budget_id.label("above"))
            .select_from(run_budgets)
            .join(accounts, join_on(accounts, run_budgets, id="run_id"))
            .outerjoin(balances, balance)
            .where(owned_by(run_budgets, organisation_id), run_budgets.c.budget_id.in_(wanted))
        )
        rows = [*tx.execute(below).all(), *tx.execute(charging).all()]
    return list(found.values())
