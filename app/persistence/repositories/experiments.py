"""Sweeps and the accounts that they charge."""

from collections.abc import Sequence
from typing import Any

from sqlalchemy import Connection, Row, func, insert, select

from app.ledger.experiments import ChargingMode, Experiment
from app.ledger.pages import Page, PageRequest
from app.persistence.repositories import expressions
from app.persistence.repositories.expressions import columns_of, owned_by, read_page, values_of
from app.persistence.repositories.locks import descendant_ids
from app.persistence.tables import account_ancestors, experiments, run_budgets

_COLUMNS = columns_of(experiments, Experiment)


def add(tx: Connection, organisation_id: str, experiment: Experiment) -> None:
    """Add an experiment."""
    tx.execute(insert(experiments).values(organisation_id=organisation_id, **values_of(experiment)))


def find(tx: Connection, organisation_id: str, experiment_id: str) -> Experiment | None:
    """Find an experiment by id."""
    here = owned_by(experiments, organisation_id, id=experiment_id)
    row = tx.execute(select(*_COLUMNS).where(here)).one_or_none()
    return None if row is None else _experiment(row)


def newest_id(tx: Connection, organisation_id: str) -> str | None:
    """Get the greatest id of an organisation's experiments."""
    return expressions.newest_id(tx, experiments, organisation_id, "exp")


def page(tx: Connection, organisation_id: str, within: list[str], request: PageRequest) -> Page[Experiment]:
    """List experiments under all the given accounts, newest first."""
    found = select(*_COLUMNS).where(experiments.c.organisation_id == organisation_id)
    for account_id in within:
        found = found.where(experiments.c.account_id.in_(descendant_ids(organisation_id, account_id)))
    return read_page(tx, found, experiments.c.id, request, _experiment)


def above(tx: Connection, organisation_id: str, account_id: str) -> list[Experiment]:
    """List the experiments of an account or its ancestors."""
    on_path = select(account_ancestors.c.ancestor_id).where(
        owned_by(account_ancestors, organisation_id, account_id=account_id)
    )
    mine = experiments.c.organisation_id == organisation_id
    found = select(*_COLUMNS).where(mine, experiments.c.account_id.in_(on_path))
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
    return Experiment(**row._asdict() | {"charging_mode": ChargingMode(row.charging_mode)})
