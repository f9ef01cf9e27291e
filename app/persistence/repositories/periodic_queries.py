"""Bounded queries over all organisations: for monitoring, and for reservations whose trainer is silent."""

from collections.abc import Collection
from dataclasses import dataclass
from datetime import datetime

from sqlalchemy import ColumnElement, Connection, Subquery, Table, case, exists, func, or_, select

from app.ledger.accounts.alerts import AlertType
from app.ledger.runs.run import TERMINAL, RunStatus
from app.persistence.repositories.expressions import (
    ACTIVE,
    PENDING,
    WAITING,
    columns_of,
    join_on,
    newest_of,
    of_last_decision,
    owned_by_any,
    seconds,
)
from app.persistence.tables import (
    accounts,
    alerts,
    audit_entries,
    checkpoints,
    decisions,
    deliveries,
    organisations,
    receivers,
    reservations,
    run_anchors,
    runs,
)


@dataclass(frozen=True, slots=True)
class Backlog:
    """Deliveries to be acknowledged, and receivers that are disabled or failing.

    `oldest` is when the first pending delivery was created.
    """

    pending: int
    oldest: datetime | None
    disabled: int
    failing: int


@dataclass(frozen=True, slots=True)
class Waiting:
    """Reservations that wait for budget; `oldest` is when the first of them arrived."""

    reservations: int
    oldest: datetime | None


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
    """Count the pending deliveries, and the disabled and failing receivers."""
    pending = select(func.count().label("number"), func.min(deliveries.c.created_at).label("oldest")).where(PENDING)
    waiting = tx.execute(pending).one()
    off = receivers.c.disabled_at.is_not(None)
    failing = _count(tx, receivers, ~off, receivers.c.consecutive_failures > 0)
    return Backlog(waiting.number, waiting.oldest, _count(tx, receivers, off), failing)


def waiting(tx: Connection) -> Waiting:
    """Count the reservations that wait for budget."""
    found = tx.execute(select(func.count(), func.min(reservations.c.created_at)).where(WAITING)).one()
    return Waiting(int(found[0]), found[1])


def signing(tx: Connection) -> Signing:
    """Find the latest signature, and the oldest unsigned entry."""
    signed = _newest_checkpoints()
    owner = audit_entries.c.organisation_id
    act = (
        select(func.min(_created_at(audit_entries, signed.c.audit_length, owner == organisations.c.id)))
        .select_from(organisations)
        .outerjoin(signed, signed.c.organisation_id == organisations.c.id)
    )
    anchored, of_run = run_anchors.c.decision_count, join_on(decisions, runs, run_id="account_id")
    decision = (
        select(func.min(_created_at(decisions, anchored, of_run)))
        .select_from(runs)
        .outerjoin(run_anchors, join_on(run_anchors, runs, run_id="account_id"))
        .where(runs.c.decision_count > func.coalesce(anchored, 0))
    )
    moments = [tx.execute(each).scalar() for each in (act, decision)]
    latest = tx.execute(select(func.max(checkpoints.c.created_at))).scalar()
    return Signing(latest, min((moment for moment in moments if moment is not None), default=None))


def _created_at(chain: Table, length: ColumnElement[int], here: ColumnElement[bool]) -> ColumnElement[datetime]:
    """Select when the entry after the first `length` of a chain was created; None: there is none.

    Columns are compared as they are, as in `of_last_decision`.
    """
    at = select(chain.c.created_at).where(here)
    first, later = at.where(chain.c.position == 0), at.where(chain.c.position == length)
    return case((length.is_(None), first.scalar_subquery()), else_=later.scalar_subquery())


def heads(tx: Connection) -> Heads:
    """Compare the heads of live chains with runs and checkpoints."""
    begun = (runs.c.decision_count > 0) & runs.c.status.not_in(sorted(map(str, TERMINAL)))
    wrong_run = begun & or_(
        (of_last_decision(decisions.c.position) + 1).is_distinct_from(runs.c.decision_count),
        of_last_decision(decisions.c.entry_hash).is_distinct_from(runs.c.chain_head),
    )
    newest = _newest_checkpoints()
    before = join_on(audit_entries, newest) & (audit_entries.c.position < newest.c.audit_length)
    wrong_head = or_(
        (newest_of(audit_entries.c.position, before) + 1).is_distinct_from(newest.c.audit_length),
        newest_of(audit_entries.c.entry_hash, before).is_distinct_from(checkpoints.c.audit_head),
    )
    forked = (
        select(func.count())
        .select_from(newest)
        .join(checkpoints, join_on(checkpoints, newest, audit_length="audit_length"))
        .where(wrong_head)
    )
    return Heads(_count(tx, runs, begun), _count(tx, runs, wrong_run), tx.execute(forked).scalar_one())


def _newest_checkpoints() -> Subquery:
    newest = select(checkpoints.c.organisation_id, func.max(checkpoints.c.audit_length).label("audit_length"))
    return newest.group_by(checkpoints.c.organisation_id).subquery()


def _count(tx: Connection, table: Table, *conditions: ColumnElement[bool]) -> int:
    return int(tx.execute(select(func.count()).select_from(table).where(*conditions)).scalar_one())


@dataclass(frozen=True, slots=True)
class Lapsed:
    """An active reservation whose lease has expired."""

    organisation_id: str
    run_id: str
    id: str
    expires_at: datetime


def lapsed(
    tx: Connection, now: datetime, limit: int, after: Lapsed | None = None, among: Collection[str] | None = None
) -> list[Lapsed]:
    """List expired active reservations of organisations, None: of all, after a cursor, oldest first."""
    expires_at, reservation_id = reservations.c.expires_at, reservations.c.id
    found = select(*columns_of(reservations, Lapsed)).where(
        ACTIVE, expires_at <= now, owned_by_any(reservations, among)
    )
    if after is not None:
        same_time = (expires_at == after.expires_at) & (reservation_id > after.id)
        found = found.where((expires_at > after.expires_at) | same_time)
    return [Lapsed(*row) for row in tx.execute(found.order_by(expires_at, reservation_id).limit(limit))]


def silent_runs(
    tx: Connection, before: datetime, limit: int, among: Collection[str] | None = None
) -> list[tuple[str, str]]:
    """Find active runs without a change of their account or a decision since a time.

    Only those of some organisations, None: of all. A renewal keeps a reservation active, and a run with one is left to
    its lease. The trainer of a run whose reservation waits has nothing to say. The result has organisation and run ids.
    """
    decided_at = of_last_decision(decisions.c.created_at, owned_by_any(decisions, among))
    waits = exists().where(join_on(reservations, runs, run_id="account_id"), WAITING)
    found = (
        select(runs.c.organisation_id, runs.c.account_id)
        .join(accounts, join_on(accounts, runs, id="account_id"))
        .where(
            owned_by_any(runs, among),
            runs.c.status == str(RunStatus.ACTIVE),
            runs.c.reservation_id.is_(None),
            ~waits,
            accounts.c.updated_at < before,
            accounts.c.quarantine_reason.is_(None),
            func.coalesce(decided_at, accounts.c.updated_at) < before,
        )
        .limit(limit)
    )
    return [(row.organisation_id, row.account_id) for row in tx.execute(found)]


def find_stale(
    tx: Connection, now: datetime, share: float, limit: int, among: Collection[str] | None = None
) -> list[tuple[str, str]]:
    """Find runs with a reservation inactive for a share of its lease.

    Only those of some organisations, None: of all. Those with an alert are excluded. A step, and any other change of
    the run, counts as activity, as a renewal does. The result has organisation and run ids.
    """
    notified = select(alerts.c.id).where(
        join_on(alerts, reservations, account_id="run_id", dedup_key="id"),
        alerts.c.type == str(AlertType.RESERVATION_STALE),
    )
    lease = reservations.c.lease_seconds
    found = (
        select(reservations.c.organisation_id, reservations.c.run_id)
        .join(accounts, join_on(accounts, reservations, id="run_id"))
        .where(
            ACTIVE,
            owned_by_any(reservations, among),
            reservations.c.expires_at > now,
            seconds(tx, now, reservations.c.expires_at) < lease * (1 - share),
            seconds(tx, accounts.c.updated_at, now) > lease * share,
            ~notified.exists(),
        )
        .limit(limit)
    )
    return [(row.organisation_id, row.run_id) for row in tx.execute(found)]
