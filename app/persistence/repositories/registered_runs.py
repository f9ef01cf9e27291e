"""What runs that have not ended declared when they were registered, by the accounts that they charge."""

from collections.abc import Iterator
from typing import Any, Final

from sqlalchemy import Connection, Row, Select, and_, bindparam, exists, func, select

from app.ledger.governance.registered_steps import MOST_RUNS, registered_steps
from app.ledger.governance.steps_lost import RegisteredGroup
from app.ledger.runs.run import TERMINAL
from app.ledger.step_events import StepEvent
from app.persistence.repositories.account_values import read_planned
from app.persistence.repositories.dp_events import read_event
from app.persistence.repositories.expressions import join_on
from app.persistence.tables import account_ancestors, accounts, dp_events, runs

_ENDED: Final = [str(status) for status in sorted(TERMINAL)]
_UNDER: Final = join_on(account_ancestors, runs, account_id="account_id")
_OWNED: Final = account_ancestors.c.organisation_id == bindparam("of_organisation")
_DECLARED: Final = (runs.c.event_fingerprint, runs.c.expected_steps, accounts.c.planned_events)
_EVENT: Final = join_on(dp_events, runs, fingerprint="event_fingerprint")
_OPEN: Final = runs.c.status.not_in(_ENDED)

_FIRST = (
    select(runs.c.organisation_id, runs.c.account_id)
    .join(account_ancestors, _UNDER)
    .where(_OWNED, account_ancestors.c.ancestor_id == bindparam("of_account"), _OPEN)
    .order_by(runs.c.account_id)
    .limit(MOST_RUNS)
    .subquery()
)
_STEPS: Final[Select[Any]] = (
    select(runs.c.account_id, *_DECLARED, dp_events.c.canonical_json)
    .join(_FIRST, join_on(_FIRST, runs, account_id="account_id"))
    .join(accounts, join_on(accounts, runs, id="account_id"))
    .outerjoin(dp_events, _EVENT)
    .order_by(runs.c.account_id)
)
_PART, _WAY = accounts.alias("part"), account_ancestors.alias("way")
_PARTS = (
    select(_WAY.c.account_id, _WAY.c.ancestor_id)
    .join(_FIRST, join_on(_FIRST, _WAY, account_id="account_id"))
    .join(_PART, and_(join_on(_PART, _WAY, id="ancestor_id"), _PART.c.parent_id == bindparam("of_account")))
    .order_by(_WAY.c.account_id, _WAY.c.ancestor_id)
)

_ABOVE, _BETWEEN = accounts.alias("above"), account_ancestors.alias("between")
_IN_PARTS = exists().where(
    join_on(_BETWEEN, runs, account_id="account_id"),
    join_on(_ABOVE, _BETWEEN, id="ancestor_id"),
    _ABOVE.c.max_partitions_per_unit.is_not(None),
    _BETWEEN.c.depth >= account_ancestors.c.depth,
)
_GROUPS: Final[Select[Any]] = (
    select(
        account_ancestors.c.ancestor_id,
        *_DECLARED,
        dp_events.c.canonical_json,
        func.count().label("number"),
        func.sum(runs.c.next_step).label("taken"),
    )
    .join(account_ancestors, _UNDER)
    .join(accounts, join_on(accounts, runs, id="account_id"))
    .outerjoin(dp_events, _EVENT)
    .where(
        _OWNED,
        account_ancestors.c.ancestor_id.in_(bindparam("of_accounts", expanding=True)),
        runs.c.account_id.not_in(bindparam("without", expanding=True)),
        runs.c.expected_steps.is_not(None),
        runs.c.next_step < runs.c.expected_steps,
        _OPEN,
        ~_IN_PARTS,
    )
    .group_by(account_ancestors.c.ancestor_id, *_DECLARED, dp_events.c.canonical_json)
    .order_by(account_ancestors.c.ancestor_id, func.min(runs.c.account_id))
)


def steps_by_run(tx: Connection, organisation_id: str, account_id: str) -> dict[str, tuple[StepEvent, ...]]:
    """List the steps that the first runs under an account declared, by run in order of registration."""
    asked = {"of_organisation": organisation_id, "of_account": account_id}
    return {row.account_id: _steps(row) for row in tx.execute(_STEPS, asked)}


def parts_of_runs(tx: Connection, organisation_id: str, account_id: str) -> dict[str, list[str]]:
    """List which children of a parallel account those runs charge."""
    asked = {"of_organisation": organisation_id, "of_account": account_id}
    found: dict[str, list[str]] = {}
    for row in tx.execute(_PARTS, asked):
        found.setdefault(row.account_id, []).append(row.ancestor_id)
    return found


def list_groups(
    tx: Connection, organisation_id: str, account_ids: list[str], without: str | None = None
) -> Iterator[RegisteredGroup]:
    """Iterate over the runs under accounts that expect further steps, except those in disjoint parts under them.

    Args:
        tx: a connection.
        organisation_id: of the accounts.
        account_ids: of the accounts.
        without: id of a run to leave out.
    """
    asked = {
        "of_organisation": organisation_id,
        "of_accounts": account_ids,
        "without": [] if without is None else [without],
    }
    for row in tx.execute(_GROUPS, asked):
        yield RegisteredGroup(row.ancestor_id, _steps(row), row.expected_steps * row.number, int(row.taken))


def _steps(row: Row[Any]) -> tuple[StepEvent, ...]:
    event = None if row.canonical_json is None else read_event(row.canonical_json, row.event_fingerprint)
    return registered_steps(read_planned(row.planned_events), event, row.expected_steps)
