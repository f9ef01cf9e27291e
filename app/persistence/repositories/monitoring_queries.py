"""Bounded queries for monitoring a whole ledger."""

from dataclasses import dataclass
from datetime import datetime

from sqlalchemy import ColumnElement, Connection, Subquery, Table, func, or_, select

from app.ledger.runs import TERMINAL
from app.persistence.repositories.expressions import PENDING, join_on
from app.persistence.tables import (
    accounts,
    audit_entries,
    checkpoints,
    decisions,
    deliveries,
    organisations,
    run_anchors,
    runs,
    webhooks,
)


@dataclass(frozen=True, slots=True)
class Backlog:
    """Webhook deliveries to be acknowledged, and webhooks that are disabled or failing.

    `oldest` is when the first pending delivery was created.
    """

    pending: int
    oldest: datetime | None
    disabled: int
    failing: int


@dataclass(frozen=True, slots=True)
class Signing:
    """When a checkpoint was last signed, and since when entries are unsigned."""

    latest: datetime | None
    unsigned_since: datetime | None


@dataclass(frozen=True, slots=True)
class Heads:
    """Live runs, those whose chain head is wrong, and wrong latest checkpoints."""

    runs: int
    wrong_runs: int
    wrong_checkpoints: int


def quarantined(tx: Connection) -> int:
    """Count the quarantined accounts."""
    return _count(tx, accounts, accounts.c.quarantine_reason.is_not(None))


def runs_by_status(tx: Connection) -> dict[str, int]:
    """Count the runs by status."""
    found = select(runs.c.status, func.count().label("number")).group_by(runs.c.status)
    return {row.status: row.number for row in tx.execute(found)}


def organisations_of(tx: Connection) -> int:
    """Count the organisations."""
    return _count(tx, organisations)


def backlog(tx: Connection) -> Backlog:
    """Count the pending deliveries, and the disabled and failing webhooks."""
    pending = select(func.count().label("number"), func.min(deliveries.c.created_at).label("oldest")).where(PENDING)
    waiting = tx.execute(pending).one()
    off = webhooks.c.disabled_at.is_not(None)
    failing = _count(tx, webhooks, ~off, webhooks.c.consecutive_failures > 0)
    return Backlog(waiting.number, waiting.oldest, _count(tx, webhooks, off), failing)


def signing(tx: Connection) -> Signing:
    """Find the latest signature, and the oldest unsigned entry."""
    signed = _newest_checkpoints()
    owner = audit_entries.c.organisation_id
    act = (
        select(func.min(audit_entries.c.created_at))
        .select_from(organisations)
        .outerjoin(signed, signed.c.organisation_id == organisations.c.id)
        .join(
            audit_entries,
            (owner == organisations.c.id) & (audit_entries.c.position == func.coalesce(signed.c.audit_length, 0)),
        )
    )
    anchored = func.coalesce(run_anchors.c.decision_count, 0)
    decision = (
        select(func.min(decisions.c.created_at))
        .select_from(runs)
        .outerjoin(run_anchors, join_on(run_anchors, runs, run_id="account_id"))
        .join(decisions, join_on(decisions, runs, run_id="account_id") & (decisions.c.position == anchored))
        .where(runs.c.decision_count > anchored)
    )
    moments = [tx.execute(each).scalar() for each in (act, decision)]
    latest = tx.execute(select(func.max(checkpoints.c.created_at))).scalar()
    return Signing(latest, min((moment for moment in moments if moment is not None), default=None))


def heads(tx: Connection) -> Heads:
    """Compare the heads of live chains with runs and checkpoints."""
    last = join_on(decisions, runs, run_id="account_id") & (decisions.c.position == runs.c.decision_count - 1)
    begun = (runs.c.decision_count > 0) & runs.c.status.not_in(sorted(map(str, TERMINAL)))
    wrong = (
        select(func.count())
        .select_from(runs)
        .outerjoin(decisions, last)
        .where(begun, or_(decisions.c.entry_hash.is_(None), decisions.c.entry_hash != runs.c.chain_head))
    )
    newest = _newest_checkpoints()
    forked = (
        select(func.count())
        .select_from(newest)
        .join(checkpoints, join_on(checkpoints, newest, audit_length="audit_length"))
        .outerjoin(
            audit_entries, join_on(audit_entries, newest) & (audit_entries.c.position == newest.c.audit_length - 1)
        )
        .where(or_(audit_entries.c.entry_hash.is_(None), audit_entries.c.entry_hash != checkpoints.c.audit_head))
    )
    return Heads(_count(tx, runs, begun), tx.execute(wrong).scalar_one(), tx.execute(forked).scalar_one())


def _newest_checkpoints() -> Subquery:
    newest = select(checkpoints.c.organisation_id, func.max(checkpoints.c.audit_length).label("audit_length"))
    return newest.group_by(checkpoints.c.organisation_id).subquery()


def _count(tx: Connection, table: Table, *conditions: ColumnElement[bool]) -> int:
    return int(tx.execute(select(func.count()).select_from(table).where(*conditions)).scalar_one())
