"""Sweeps and the accounts that they charge."""

from collections.abc import Sequence

from sqlalchemy import Connection, func, select

from app.ledger.experiments import ChargingMode, Experiment
from app.ledger.pages import Page, PageRequest
from app.persistence.repositories.expressions import RecordTable, owned_by
from app.persistence.repositories.locks import within
from app.persistence.tables import account_ancestors, experiments, run_budgets

_EXPERIMENTS = RecordTable(experiments, Experiment, charging_mode=ChargingMode)

add = _EXPERIMENTS.add
find = _EXPERIMENTS.find
newest_id = _EXPERIMENTS.newest_id


def page(
    tx: Connection, organisation_id: str, account_ids: Sequence[str | None], request: PageRequest
) -> Page[Experiment]:
    """List experiments under all the given accounts, newest first; None: any account."""
    under = (within(experiments.c.account_id, organisation_id, each) for each in account_ids)
    return _EXPERIMENTS.page(tx, organisation_id, request, *under)


def above(tx: Connection, organisation_id: str, account_id: str) -> list[Experiment]:
    """List the experiments of an account or its ancestors."""
    on_path = select(account_ancestors.c.ancestor_id).where(
        owned_by(account_ancestors, organisation_id, account_id=account_id)
    )
    found = _EXPERIMENTS.select(organisation_id).where(experiments.c.account_id.in_(on_path))
    return [_EXPERIMENTS.read(row) for row in tx.execute(found.order_by(experiments.c.id))]


def charged_at_once(tx: Connection, organisation_id: str, run_ids: Sequence[str]) -> set[str]:
    """Find the runs that are charged for all trials of a sweep."""
    found = select(experiments.c.account_id).where(
        experiments.c.organisation_id == organisation_id, experiments.c.account_id.in_(run_ids)
    )
    return set(tx.execute(found).scalars())


def runs_of(tx: Connection, organisation_id: str, account_ids: list[str]) -> dict[str, int]:
    """Count the runs that charge each of some budgets directly."""
    counted = (
        select(run_budgets.c.budget_id, func.count())
        .where(run_budgets.c.organisation_id == organisation_id, run_budgets.c.budget_id.in_(account_ids))
        .group_by(run_budgets.c.budget_id)
    )
    return dict(map(tuple, tx.execute(counted).all()))
