"""Why a reservation waits, what is before it, and why it was granted."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from math import isfinite
from typing import Any, Final

from sqlalchemy import Connection

from app.ledger.runs.reservations import Reservation, ReservationStatus
from app.ledger.scheduling.queue import Grant, Standing, WaitingReservation
from app.ledger.scheduling.waiting_reasons import Shortage, WaitingReason, estimates, shortages
from app.ledger.settings.allocation import SchedulingRule
from app.service.auth.request_context import RequestContext
from app.service.json_values import json_finite
from app.service.scheduling.queue_snapshots import QueueSnapshot, waiting_reservations, with_runs

SHOWN: Final = 10
"""Maximum number of overtaken reservations that the audit log names."""


MOST_ESTIMATED: Final = 200
"""Maximum number of reservations in a line for which estimates are computed: each needs all of them."""


@dataclass(frozen=True, slots=True)
class WaitingDetail:
    """The place of a waiting reservation, and what it waits for.

    Args:
        rule: by which the reservations of its population are served.
        position: from 1, among the reservations that would charge one of its accounts.
        waiting: number of those reservations.
        aged: whether no younger reservation may delay it any more.
        score: by the rule, the least first; None: by arrival.
        shortages: of its accounts; none: it fits, and reservations before it are served first.
        estimated_at: when it will be granted if nothing changes but what time unlocks and opens; None: unknown.
    """

    rule: SchedulingRule
    position: int
    waiting: int
    aged: bool
    score: float | None
    shortages: tuple[Shortage, ...]
    estimated_at: datetime | None


def explain(
    tx: Connection,
    organisation_id: str,
    snapshot: QueueSnapshot,
    reservations: Sequence[WaitingReservation],
    until: datetime,
) -> list[WaitingDetail]:
    """Explain why reservations wait; an estimate looks up to a time."""
    details: list[WaitingDetail] = []
    timely: dict[str, list[WaitingReservation]] = {}
    for reservation in reservations:
        home, line = snapshot.queue_of[reservation.id][0], snapshot.line_of(reservation.id)
        few = len(line.reservations) <= MOST_ESTIMATED
        with_runs(tx, organisation_id, snapshot.ledgers, line.reservations.values() if few else [reservation])
        rivals = line.order(line.through(each for each in reservation.path[:-1]), snapshot.ledgers, snapshot.now)
        place = next(place for place, each in enumerate(rivals) if each.reservation.id == reservation.id)
        lacking = tuple(shortages(reservation, snapshot.ledgers, snapshot.now))
        if few and _may_change(lacking):
            timely.setdefault(home, []).append(reservation)
        score = next(iter(rivals[place].score), None)
        details.append(
            WaitingDetail(line.rule, place + 1, len(rivals), rivals[place].aged, score, lacking, estimated_at=None)
        )
    expected: dict[str, datetime] = {}
    for home, theirs in timely.items():
        expected |= estimates(theirs, snapshot.lines[home], snapshot.ledgers, snapshot.now, until)
    return [
        replace(detail, estimated_at=expected.get(reservation.id))
        for reservation, detail in zip(reservations, details, strict=True)
    ]


def explain_waiting(tx: Connection, context: RequestContext, reservation: Reservation) -> WaitingDetail | None:
    """Explain what a reservation waits for; None: it does not wait."""
    if reservation.status is not ReservationStatus.WAITING:
        return None
    queue = waiting_reservations(context.db, context.organisation_id)
    with queue.lock:
        snapshot = queue.snapshot(tx, context.now, context.lapsed_by, asked=[reservation.id])
        if reservation.id not in snapshot.rows:
            return None
        waits = snapshot.line_of(reservation.id).reservations[reservation.id]
        [detail] = explain(tx, context.organisation_id, snapshot, [waits], reservation.expires_at)
    return detail


def _may_change(lacking: Sequence[Shortage]) -> bool:
    """Check whether time alone may give a reservation all that it lacks."""
    timely = {WaitingReason.CLOSED, WaitingReason.LOCKED, WaitingReason.PROMISED}
    return all(each.reason in timely for each in lacking)


def queue_payload(detail: WaitingDetail) -> dict[str, Any]:
    """Build the part of an audit payload about what a reservation waits for."""
    return {
        "rule": str(detail.rule),
        "position": detail.position,
        "waits_for": [
            {"account": each.account_id, "reason": str(each.reason)}
            | json_finite(requested=each.requested, available=each.available)
            for each in detail.shortages
        ],
    }


def grant_payload(snapshot: QueueSnapshot, one: Grant) -> dict[str, Any]:
    """Build the audit payload of a grant: the rule, its score, and the reservations before it that go on waiting."""
    reservation = one.standing.reservation
    line = snapshot.line_of(reservation.id)
    unlocked = {
        account_id: str(withholding.unlocked)
        for account_id, withholding in snapshot.ledgers.withholdings.items()
        if account_id in reservation.path and withholding.unlocked != 1
    }
    return {
        "rule": str(line.rule),
        **_standing_facts(one.standing),
        "waited_seconds": (snapshot.now - reservation.arrived_at).total_seconds(),
        "overtaken": [{"reservation": each.reservation.id, **_standing_facts(each)} for each in one.overtaken[:SHOWN]],
        "overtaken_count": len(one.overtaken),
        "unlocked": unlocked,
    }


def _standing_facts(standing: Standing) -> dict[str, Any]:
    score = [each if isfinite(each) else "Infinity" for each in standing.score[:SHOWN]]
    return {"priority": standing.reservation.priority, "aged": standing.aged, "score": score}
