"""The arrival of a reservation: it is held at once, or takes its place among those that wait."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from datetime import datetime

from sqlalchemy import Connection

from app.accounting.events import fingerprint
from app.ledger.accounts.account import Account
from app.ledger.admission.admission import Refusal, short_accounts
from app.ledger.audit import AuditAction
from app.ledger.errors import ReservationsWaitingError
from app.ledger.governance.policy_checks import require_open
from app.ledger.runs.reservations import Reservation
from app.ledger.scheduling.queue import Ledgers, WaitingReservation, never_fits
from app.ledger.scheduling.withholding import Withholding
from app.ledger.step_events import PricedStep
from app.persistence.repositories import waiting
from app.service.auth.request_context import RequestContext
from app.service.charging.unit_of_work import UnitOfWork
from app.service.scheduling.explanations import WaitingDetail, explain_waiting, queue_payload
from app.service.scheduling.holding import PricedReservation, hold_priced
from app.service.scheduling.queue_snapshots import QueueSnapshot, grants_in, waiting_reservations
from app.service.scheduling.waiting_reservations import DEFAULT, new_line, weight_of
from app.service.scheduling.withholdings import read_withholdings

NEWCOMER = "newcomer"
"""The id of a reservation that has not been created."""


def hold_in_turn(
    tx: Connection,
    work: UnitOfWork,
    context: RequestContext,
    priced: PricedReservation,
    expected_steps: int | None = None,
    *,
    waits: bool,
) -> tuple[Account, ...] | Refusal | None:
    """Hold a reservation on its locked path, if it fits and no other is served first; nothing is written.

    Returns:
        The accounts, or a refusal. None, only if the reservation `waits`: it does not fit now, other reservations are
        served first, or an account of its path opens later.

    Raises:
        ReservationsWaitingError: other reservations are served first, and the reservation does not wait.
        Also those of `hold_priced`.
    """
    later = waits and opens_later(priced.path, context.now)
    if not later:
        require_open(priced.path, context.now)
    owner, above = context.organisation_id, [account.id for account in priced.path[:-1]]
    withholdings = read_withholdings(tx, owner, priced.path, context.lapsed_by, asking=priced.run_id)
    views = Ledgers({}, withholdings).views if withholdings else tuple
    lacks = later or (waits and short_accounts(priced.path, priced.steps, views))
    if lacks and not never_fits(priced.path, priced.steps, withholdings):
        return None  # no alternatives are searched for
    holding = hold_priced(work, context, priced, expected_steps, views)
    if isinstance(holding, Refusal):
        return holding
    if later:
        return None
    contended = bool(withholdings) or waiting.any_through(tx, owner, above)
    if not contended or _is_next(tx, work, context, priced, withholdings):
        return holding
    if waits:
        return None
    raise ReservationsWaitingError(
        "The reservation fits, but others wait for the same budget and are served before it. Send `wait_until` to "
        "wait for its turn."
    )


def opens_later(path: Sequence[Account], now: datetime) -> bool:
    """Check whether some accounts of a path are closed, and all of these open later."""
    closed = [account.window for account in path if not account.window.holds(now)]
    return bool(closed) and all(window.opens_at is not None and window.opens_at > now for window in closed)


def _is_next(
    tx: Connection,
    work: UnitOfWork,
    context: RequestContext,
    priced: PricedReservation,
    withholdings: Mapping[str, Withholding],
) -> bool:
    """Check whether a reservation that fits is granted if all reservations that wait are tried in their order."""
    queue = waiting_reservations(context.db, context.organisation_id)
    with queue.lock:
        snapshot = queue.snapshot(tx, context.now, context.lapsed_by)
        with newcomer_in(snapshot, priced.path, priced.steps, _locked_accounts(work, priced), withholdings) as seen:
            return is_granted(tx, context.organisation_id, seen)


@contextmanager
def newcomer_in(
    snapshot: QueueSnapshot,
    path: Sequence[Account],
    steps: Sequence[PricedStep],
    accounts: Iterable[Account],
    withholdings: Mapping[str, Withholding],
) -> Iterator[QueueSnapshot]:
    """Let a new reservation stand among those that wait, for a while, as `NEWCOMER`; the caller holds their lock.

    Args:
        snapshot: of the reservations that wait.
        path: of the reservation's run.
        steps: of the reservation.
        accounts: those of the path, and the parts of its parallel ones, without exposures.
        withholdings: of the path.
    """
    known = snapshot.ledgers.accounts | {each.id: each for each in accounts}
    ledgers = Ledgers(known, snapshot.ledgers.withholdings | dict(withholdings), snapshot.ledgers.is_open)
    population = path[-1].population_id
    rule = known[population].allocation or DEFAULT
    line = snapshot.lines.get(population) or new_line(rule)
    team = next((each.id for each in path[:-1] if each.parent_id == population), None)
    weight = weight_of(rule, team)
    ids = tuple(account.id for account in path)
    line.add(WaitingReservation(NEWCOMER, ids, tuple(steps), snapshot.now, weight=weight))
    try:
        lines, queue_of = {**snapshot.lines, population: line}, {**snapshot.queue_of, NEWCOMER: (population, team)}
        yield replace(snapshot, lines=lines, queue_of=queue_of, ledgers=ledgers)
    finally:
        line.remove(NEWCOMER)


def is_granted(tx: Connection, organisation_id: str, snapshot: QueueSnapshot) -> bool:
    """Check whether the newcomer in a snapshot is granted if all are tried in their order; ledgers are changed."""
    path = set(snapshot.line_of(NEWCOMER).reservations[NEWCOMER].path)
    grants = grants_in(tx, organisation_id, snapshot, path, {NEWCOMER}, newcomer=NEWCOMER)
    return any(each.standing.reservation.id == NEWCOMER for each in grants)


def _locked_accounts(work: UnitOfWork, priced: PricedReservation) -> list[Account]:
    """Get the locked accounts of a path, and the parts of its parallel ones, without exposures."""
    parts = [part for account in priced.path for part in work.parts.get(account.id, ())]
    return [work.record(each).account for each in (*(account.id for account in priced.path), *parts)]


def record_queued(tx: Connection, context: RequestContext, reservation: Reservation) -> WaitingDetail:
    """Record that a reservation waits, and for what; return that."""
    detail = explain_waiting(tx, context, reservation)
    assert detail is not None, "it waits"
    assert reservation.wait_until is not None, "it waits"
    after = {
        "status": str(reservation.status),
        "run": reservation.run_id,
        "wait_until": reservation.wait_until.isoformat(),
        "events": [{"event": fingerprint(item.event), "count": item.count} for item in reservation.items],
        **queue_payload(detail),
    }
    context.record(tx, AuditAction.RESERVATION_QUEUED, reservation.id, after=after)
    return detail
