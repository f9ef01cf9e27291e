"""The rows of runs besides their accounts."""

import json
from collections.abc import Iterable, Sequence
from dataclasses import asdict
from datetime import datetime
from functools import lru_cache
from typing import Any, Final

from sqlalchemy import Connection, Row, bindparam, func, insert, select

from app.accounting.events import fingerprint
from app.ledger.audit import canonical
from app.ledger.pages import Page, PageRequest
from app.ledger.runs.deviations import Deviation, DeviationKind
from app.ledger.runs.list_filters import RunFilter
from app.ledger.runs.run import DECLARED, EndReason, Run, RunStatus, declaration_of
from app.persistence.bulk import BulkStatement
from app.persistence.repositories import run_origins
from app.persistence.repositories.account_metadata import matching
from app.persistence.repositories.dp_events import read_event, remember
from app.persistence.repositories.expressions import (
    RUN,
    in_period,
    join_on,
    matches,
    of_last_decision,
    owned_by,
    values_of,
)
from app.persistence.repositories.keysets import read_page, read_sorted_page
from app.persistence.repositories.locks import within
from app.persistence.tables import account_metadata, accounts, attempts, decisions, dp_events, run_budgets, runs

RunChange = tuple[str, Run, Run]
"""The organisation's id, and a run before and after a change."""

_OWNED: Final = decisions.c.organisation_id == bindparam("of_organisation")
_RUNS = (
    select(
        runs,
        attempts.c.first_step.label("attempt_first_step"),
        dp_events.c.canonical_json,
        of_last_decision(decisions.c.created_at, _OWNED).label("last_decided_at"),
        of_last_decision(decisions.c.actor, _OWNED).label("last_actor"),
    )
    .join(attempts, join_on(attempts, runs, run_id="account_id", attempt="attempt"))
    .outerjoin(dp_events, join_on(dp_events, runs, fingerprint="event_fingerprint"))
)

# Hot-path statements are built once: building one costs as much as executing it.
_MANY = _RUNS.where(
    runs.c.organisation_id == bindparam("of_organisation"), runs.c.account_id.in_(bindparam("of_runs", expanding=True))
)
_SAME: Final = ("status", "attempt", "next_step", "chain_head", "reservation_id")
"""Columns of a run's state that have the names of its fields."""
# A run is written only if it is still in the state that its decisions follow: nothing else was decided meanwhile.
_BEFORE: Final = ("organisation_id", "account_id", "status", "attempt", "chain_head")
_SAVED = BulkStatement(
    runs,
    [
        *("status", "attempt", "next_step", "decision_count", "chain_head", "reservation_id", "deviations"),
        *("end_reason", "ended_at"),
    ],
    _BEFORE,
)
# Naming a column of a foreign key would check the key again.
_ADVANCED = BulkStatement(runs, ["next_step", "decision_count", "chain_head"], _BEFORE)


def add(tx: Connection, organisation_id: str, run: Run, now: datetime) -> None:
    """Add a run and its first attempt, after its account."""
    if run.event is not None:
        remember(tx, organisation_id, [run.event])
    tx.execute(
        insert(runs).values(
            organisation_id=organisation_id,
            **values_of(run, (*_SAME, "account_id")),
            **{name: getattr(run.declaration, name) for name in DECLARED},
            event_fingerprint=run.event and fingerprint(run.event),
            decision_count=run.decisions,
        )
    )
    run_origins.add(tx, organisation_id, run)
    add_attempt(tx, organisation_id, run, now)


def add_attempt(tx: Connection, organisation_id: str, run: Run, now: datetime) -> None:
    """Add a run's current attempt."""
    tx.execute(
        insert(attempts).values(
            organisation_id=organisation_id,
            run_id=run.account_id,
            attempt=run.attempt,
            first_step=run.attempt_first_step,
            created_at=now,
        )
    )


def get(tx: Connection, organisation_id: str, run_id: str) -> Run:
    """Get an existing run."""
    [run] = get_many(tx, organisation_id, [run_id])
    return run


def get_many(tx: Connection, organisation_id: str, run_ids: Sequence[str]) -> list[Run]:
    """List the existing ones of some runs."""
    return [_run(row) for row in tx.execute(_MANY, {"of_organisation": organisation_id, "of_runs": run_ids})]


def page(tx: Connection, organisation_id: str, wanted: RunFilter, request: PageRequest, scope: str | None) -> Page[Run]:
    """List runs within a scope, None: all; accounts of `wanted` are ids."""
    ids, order = runs.c.account_id, wanted.sort
    above = (scope, wanted.population, wanted.within)
    found = (
        select(ids)
        .join(accounts, join_on(accounts, runs, id="account_id"))
        .join(account_metadata, join_on(account_metadata, runs, account_id="account_id"))
        .where(owned_by(runs, organisation_id))
        .where(*(within(ids, organisation_id, each) for each in above if each is not None))
        .where(*matches(accounts, path=wanted.path))
        .where(*in_period(accounts.c.created_at, wanted.created_after, wanted.created_before))
        .where(*in_period(accounts.c.updated_at, wanted.updated_after, None))
        .where(*matching(ids, organisation_id, wanted))
    )
    if wanted.path is not None:
        found = found.where(RUN)
    if wanted.statuses:
        found = found.where(runs.c.status.in_([str(status) for status in wanted.statuses]))
    if wanted.end_reasons:
        found = found.where(runs.c.end_reason.in_([str(reason) for reason in wanted.end_reasons]))
    if wanted.budget is not None:
        charged = owned_by(run_budgets, organisation_id, budget_id=wanted.budget)
        found = found.where(ids.in_(select(run_budgets.c.run_id).where(charged)))
    if order.column == "created_at":
        listed = read_page(tx, found, ids, request, _id_of, oldest_first=not order.descending)
    else:
        sorted_by = func.lower(accounts.c.name) if order.column == "name" else accounts.c.updated_at
        listed = read_sorted_page(tx, found, (sorted_by, ids), request, str(order), descending=order.descending)
    known = {run.account_id: run for run in get_many(tx, organisation_id, listed.items)}
    return Page([known[run_id] for run_id in listed.items], listed.next)


def _id_of(row: Row[Any]) -> str:
    run_id: str = row.account_id
    return run_id


def save_all(tx: Connection, changed: Iterable[RunChange]) -> None:
    """Write the state of several runs; fail if one of them is not in the state before its change."""
    rows = [
        (
            *_key(organisation_id, before),
            *(str(run.status), run.attempt, run.next_step, run.decisions, run.chain_head, run.reservation_id),
            *(deviations_text(run.deviations), run.end_reason and str(run.end_reason), run.ended_at),
        )
        for organisation_id, before, run in changed
    ]
    _SAVED.execute(tx, rows)


def advance_all(tx: Connection, advanced: Iterable[RunChange]) -> None:
    """Write the next steps and chain heads of several runs, of which nothing else changed; raise as `save_all`."""
    rows = [
        (*_key(organisation_id, before), run.next_step, run.decisions, run.chain_head)
        for organisation_id, before, run in advanced
    ]
    _ADVANCED.execute(tx, rows)


def _key(organisation_id: str, before: Run) -> tuple[object, ...]:
    return organisation_id, before.account_id, str(before.status), before.attempt, before.chain_head


def _run(row: Row[Any]) -> Run:
    return Run(
        account_id=row.account_id,
        status=RunStatus(row.status),
        event=None if row.canonical_json is None else read_event(row.canonical_json, row.event_fingerprint),
        attempt=row.attempt,
        next_step=row.next_step,
        decisions=row.decision_count,
        chain_head=row.chain_head,
        reservation_id=row.reservation_id,
        attempt_first_step=row.attempt_first_step,
        declaration=declaration_of(row),
        deviations=read_deviations(row.deviations),
        last_decided_at=row.last_decided_at,
        last_actor=row.last_actor,
        end_reason=row.end_reason and EndReason(row.end_reason),
        ended_at=row.ended_at,
    )


@lru_cache(maxsize=1024)
def deviations_text(found: tuple[Deviation, ...]) -> str | None:
    """Serialize a run's deviations."""
    return canonical([asdict(each) for each in found]) if found else None


@lru_cache(maxsize=1024)
def read_deviations(kept: str | None) -> tuple[Deviation, ...]:
    """Parse a run's stored deviations."""
    found = json.loads(kept) if kept else []
    return tuple(Deviation(**each | {"kind": DeviationKind(each["kind"])}) for each in found)
