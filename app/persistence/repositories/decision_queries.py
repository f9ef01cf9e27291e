"""List decisions across runs, newest first."""

from typing import Any

from sqlalchemy import Connection, Select, and_, or_, select

from app.ledger.decisions import DecisionCursor, DecisionFilter, DecisionOutcome, DecisionWithPath
from app.persistence.repositories.decisions import read_decision
from app.persistence.repositories.partial_indexes import NOT_ADMITTED
from app.persistence.tables import account_ancestors, accounts, decisions

_NEWEST_FIRST = ("created_at", "run_id", "position")
_CHAIN_BACKWARDS = ("position",)
"""For one run, its primary key's order: the clocks of replicas may differ slightly."""


def page(
    tx: Connection, organisation_id: str, wanted: DecisionFilter, *, before: DecisionCursor | None, limit: int
) -> list[DecisionWithPath]:
    """List decisions before a cursor, newest first, or back along a chain."""
    found = _filtered(select(decisions).where(decisions.c.organisation_id == organisation_id), wanted)
    if before is not None:
        found = _behind(found, before, within_run=wanted.follows_a_chain)
    order = _CHAIN_BACKWARDS if wanted.follows_a_chain else _NEWEST_FIRST
    # Paths are joined after the limit: a join before it may read all decisions.
    cut = found.order_by(*(decisions.c[name].desc() for name in order)).limit(limit).subquery()
    run, binding = accounts.alias("run"), accounts.alias("binding")
    rows = tx.execute(
        select(cut, run.c.path.label("run_path"), binding.c.path.label("binding_account_path"))
        .join(run, and_(run.c.organisation_id == cut.c.organisation_id, run.c.id == cut.c.run_id))
        .join(
            binding,
            and_(binding.c.organisation_id == cut.c.organisation_id, binding.c.id == cut.c.binding_account_id),
        )
        .order_by(*(cut.c[name].desc() for name in order))
    )
    return [DecisionWithPath(read_decision(row, ()), row.run_path) for row in rows]


def _filtered(found: Select[Any], wanted: DecisionFilter) -> Select[Any]:
    if wanted.run_id is not None:
        found = found.where(decisions.c.run_id == wanted.run_id)
    if wanted.beneath is not None:
        found = found.where(
            select(account_ancestors.c.depth)
            .where(
                account_ancestors.c.organisation_id == decisions.c.organisation_id,
                account_ancestors.c.account_id == decisions.c.run_id,
                account_ancestors.c.ancestor_id == wanted.beneath,
            )
            .exists()
        )
    if wanted.outcome is not None:
        found = found.where(decisions.c.outcome == str(wanted.outcome))
        if wanted.outcome is not DecisionOutcome.ADMITTED:
            found = found.where(NOT_ADMITTED)
    if wanted.actor is not None:
        found = found.where(decisions.c.actor == wanted.actor)
    if wanted.since is not None:
        found = found.where(decisions.c.created_at >= wanted.since)
    if wanted.until is not None:
        found = found.where(decisions.c.created_at < wanted.until)
    return found


def _behind(found: Select[Any], place: DecisionCursor, *, within_run: bool) -> Select[Any]:
    at, run_id, position = decisions.c.created_at, decisions.c.run_id, decisions.c.position
    if within_run:
        return found.where(position < place.position)
    same_run = and_(run_id == place.run_id, position < place.position)
    # The first condition is a range of the index; the second resolves equal times.
    return found.where(at <= place.created_at, or_(at < place.created_at, run_id < place.run_id, same_run))
