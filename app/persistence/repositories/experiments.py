"""Sweeps and the accounts that they charge."""

from collections.abc import Sequence
from typing import Any

from sqlalchemy import Connection, Row, func, insert, select

from app.ledger.experiments import ChargingMode, Experiment
from app.persistence.repositories.locks import descendant_ids
from app.persistence.tables import account_ancestors, experiments, run_budgets

_COLUMNS = [column for column in experiments.c if column is not experiments.c.organisation_id]


def add(tx: Connection, organisation_id: str, experiment: Experiment) -> None:
    """Add an experiment."""
    values = {column.name: getattr(experiment, column.name) for column in _COLUMNS}
    tx.execute(
        insert(experiments).values(
            organisation_id=organisation_id, **values | {"charging_mode": str(experiment.charging_mode)}
        )
    )


def find(tx: Connection, organisation_id: str, experiment_id: str) -> Experiment | None:
    """Find an experiment by id."""
    here = (experiments.c.organisation_id == organisation_id) & (experiments.c.id == experiment_id)
    row = tx.execute(select(*_COLUMNS).where(here)).one_or_none()
    return None if row is None else _experiment(row)


def newest_id(tx: Connection, organisation_id: str) -> str | None:
    """Get the greatest id of an organisation's experiments."""
    return tx.execute(
        select(func.max(experiments.c.id)).where(experiments.c.organisation_id == organisation_id)
    ).scalar()


def page(
    tx: Connection, organisation_id: str, *, beneath: list[str], after: str | None, limit: int
) -> list[Experiment]:
    """List experiments after an id, under all the given accounts."""
    found = select(*_COLUMNS).where(experiments.c.organisation_id == organisation_id)
    for account_id in beneath:
        found = found.where(experiments.c.account_id.in_(descendant_ids(organisation_id, account_id)))
    if after is not None:
        found = found.where(experiments.c.id > after)
    return [_experiment(row) for row in tx.execute(found.order_by(experiments.c.id).limit(limit))]


def above(tx: Connection, organisation_id: str, account_id: str) -> list[Experiment]:
    """List the experiments of an account or its ancestors."""
    on_path = select(account_ancestors.c.ancestor_id).where(
        account_ancestors.c.organisation_id == organisation_id, account_ancestors.c.account_id == account_id
    )
    found = select(*_COLUMNS).where(
        experiments.c.organisation_id == organisation_id, experiments.c.account_id.in_(on_path)
    )
    return [_experiment(row) for row in tx.execute(found.order_by(experiments.c.id))]


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


def _experiment(row: Row[Any]) -> Experiment:
    return Experiment(row.id, row.account_id, ChargingMode(row.charging_mode), row.created_by, row.created_at)
