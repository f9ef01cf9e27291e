"""Cancel, prioritize and list reservations that wait."""

from dataclasses import dataclass
from typing import Final

from sqlalchemy import Connection

from app.ledger.accounts.account import Account
from app.ledger.audit import AuditAction
from app.ledger.errors import require_found
from app.ledger.permissions import Permission
from app.ledger.runs.reservations import Reservation
from app.ledger.scheduling.queue import WaitingReservation
from app.ledger.scheduling.waiting import LONGEST_WAIT, cancel, prioritize
from app.persistence.repositories import accounts, reservations
from app.service.accounts.lookup import find_parent, require_reach
from app.service.auth.request_context import RequestContext
from app.service.auth.use_cases import use_case
from app.service.scheduling.endings import end_waiting
from app.service.scheduling.explanations import WaitingDetail, explain
from app.service.scheduling.queue_snapshots import waiting_reservations

MAX_LISTED: Final = 100
"""Maximum number of waiting reservations that one list explains."""


@dataclass(frozen=True, slots=True)
class QueueEntry:
    """A reservation that waits, with its run, and what it waits for."""

    reservation: Reservation
    run: Account
    detail: WaitingDetail


@dataclass(frozen=True, slots=True)
class Queue:
    """The reservations that wait for an account, the next one first; `waiting` is their number."""

    account: Account
    entries: tuple[QueueEntry, ...]
    waiting: int


@use_case(Permission.RUN_MANAGE)
def cancel_waiting(tx: Connection, context: RequestContext, reservation_id: str, reason: str) -> Reservation:
    """Cancel a waiting reservation; one that was cancelled before stays so.

    Raises:
        ReservationStateConflictError: it does not wait.
    """
    found = _found(tx, context, reservation_id)
    ended = cancel(found)
    if ended is not found:
        end_waiting(tx, context, ended, reason)
    return ended


@use_case(Permission.ACCOUNT_MANAGE)
def prioritize_waiting(
    tx: Connection, context: RequestContext, reservation_id: str, priority: int, reason: str
) -> Reservation:
    """Move a waiting reservation before or behind others by its priority.

    Raises:
        ReservationStateConflictError: it does not wait.
        InvalidInputError: the priority is out of range.
    """
    found = _found(tx, context, reservation_id)
    [run] = accounts.read_many(tx, context.organisation_id, [found.run_id])
    require_reach(tx, context, run.account.population_id)  # others wait in the same line
    moved = prioritize(found, priority)
    if moved != found:
        reservations.save_waiting(tx, context.organisation_id, moved, context.now)
        before, after = {"priority": found.priority}, {"priority": moved.priority, "run": moved.run_id}
        context.record(tx, AuditAction.RESERVATION_PRIORITIZED, found.id, before, after, reason)
    return moved


def list_queue(context: RequestContext, account: str) -> Queue:
    """List the reservations that wait for an account or for one under it, the next one first."""
    with context.read() as tx:
        return read_queue(tx, context, find_parent(tx, context, account).account, MAX_LISTED)


def read_queue(tx: Connection, context: RequestContext, account: Account, limit: int) -> Queue:
    """Read the queue of an account, of which `limit` reservations are explained."""
    queue = waiting_reservations(context.db, context.organisation_id)
    with queue.lock:
        snapshot = queue.snapshot(tx, context.now, context.lapsed_by)
        found: list[WaitingReservation] = []
        for population in sorted(snapshot.lines):
            line = snapshot.lines[population]
            found += [
                each.reservation for each in line.order(line.through([account.id]), snapshot.ledgers, snapshot.now)
            ]
        shown = found[:limit]
        details = explain(tx, context.organisation_id, snapshot, shown, context.now + LONGEST_WAIT)
    ids = [reservation.id for reservation in shown]
    kept = {each.id: each for each in reservations.get_many(tx, context.organisation_id, ids)}
    runs = accounts.read_many(tx, context.organisation_id, [reservation.path[-1] for reservation in shown])
    by_id = {record.account.id: record.account for record in runs}
    entries = [
        QueueEntry(kept[reservation.id], by_id[reservation.path[-1]], detail)
        for reservation, detail in zip(shown, details, strict=True)
    ]
    return Queue(account, tuple(entries), len(found))


def _found(tx: Connection, context: RequestContext, reservation_id: str) -> Reservation:
    found = reservations.find(tx, context.organisation_id, reservation_id)
    reservation = require_found(found, "reservation", reservation_id)
    require_reach(tx, context, reservation.run_id)
    return reservation
