"""What a run has besides its account, and the DpEvents that runs refer to."""

from dataclasses import dataclass
from typing import Any

from sqlalchemy import Connection, Row, Select, bindparam, func, insert, select, update

from app.accounting.events import fingerprint
from app.ledger.runs import Run, RunStatus
from app.persistence.repositories import events
from app.persistence.tables import accounts, decisions, dp_events, runs

_RUNS = select(runs, dp_events.c.canonical).outerjoin(
    dp_events,
    (dp_events.c.organisation_id == runs.c.organisation_id) & (dp_events.c.fingerprint == runs.c.event_fingerprint),
)

# Statements of the hot path are built once: building one costs as much as executing it.
_THIS = (runs.c.organisation_id == bindparam("of_organisation")) & (runs.c.account_id == bindparam("of_run"))
_ONE = _RUNS.where(_THIS)
_SAVED = (
    update(runs)
    .where(_THIS)
    .values(status=bindparam("status"), next_step=bindparam("next_step"), decisions=bindparam("decisions"))
)


def add(tx: Connection, organisation_id: str, run: Run) -> None:
    """Append a run; its account must be there."""
    if run.event is not None:
        events.remember(tx, organisation_id, [run.event])
    tx.execute(
        insert(runs).values(
            organisation_id=organisation_id,
            account_id=run.account_id,
            status=str(run.status),
            event_fingerprint=run.event and fingerprint(run.event),
            attempt=run.attempt,
            next_step=run.next_step,
            decisions=run.decisions,
        )
    )


def get(tx: Connection, organisation_id: str, run_id: str) -> Run:
    """The run with this id; the caller has found its account."""
    return _run(tx.execute(_ONE, {"of_organisation": organisation_id, "of_run": run_id}).one())


def page(
    tx: Connection,
    organisation_id: str,
    *,
    budget_id: str | None,
    status: RunStatus | None,
    after: str | None,
    limit: int,
) -> list[Run]:
    """Runs in the order of their registration, those after an id only."""
    found = _of(organisation_id)
    if budget_id is not None:
        found = found.join(
            accounts,
            (accounts.c.organisation_id == runs.c.organisation_id) & (accounts.c.id == runs.c.account_id),
        ).where(accounts.c.parent_id == budget_id)
    if status is not None:
        found = found.where(runs.c.status == str(status))
    if after is not None:
        found = found.where(runs.c.account_id > after)
    return [_run(row) for row in tx.execute(found.order_by(runs.c.account_id).limit(limit))]


@dataclass(frozen=True, slots=True)
class Progress:
    """How far a run says that it is, and how many decisions are kept of it."""

    organisation_id: str
    account_id: str
    next_step: int
    decisions: int
    kept_decisions: int


def progress(tx: Connection) -> list[Progress]:
    """How far every run of every organisation is."""
    kept = (
        select(decisions.c.organisation_id, decisions.c.run_id, func.count().label("kept"))
        .group_by(decisions.c.organisation_id, decisions.c.run_id)
        .subquery()
    )
    found = select(runs, func.coalesce(kept.c.kept, 0).label("kept")).outerjoin(
        kept, (kept.c.organisation_id == runs.c.organisation_id) & (kept.c.run_id == runs.c.account_id)
    )
    return [
        Progress(row.organisation_id, row.account_id, row.next_step, row.decisions, row.kept)
        for row in tx.execute(found)
    ]


def save(tx: Connection, organisation_id: str, run: Run) -> None:
    """Write a run's state, its next step and the number of its decisions."""
    tx.execute(
        _SAVED,
        {
            "of_organisation": organisation_id,
            "of_run": run.account_id,
            "status": str(run.status),
            "next_step": run.next_step,
            "decisions": run.decisions,
        },
    )


def _of(organisation_id: str) -> Select[Any]:
    return _RUNS.where(runs.c.organisation_id == organisation_id)


def _run(row: Row[Any]) -> Run:
    return Run(
        account_id=row.account_id,
        status=RunStatus(row.status),
        event=None if row.canonical is None else events.read_event(row.canonical, row.event_fingerprint),
        attempt=row.attempt,
        next_step=row.next_step,
        decisions=row.decisions,
    )
