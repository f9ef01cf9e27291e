"""Why a plan waits, what is before it, and why it was granted."""

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
from app.service.scheduling.queue_snapshots import Look, waiting_reservations, with_runs

SHOWN: Final = 10
"""Maximum number of overtaken plans that the audit log names."""


MOST_ESTIMATED: Final = 200
"""Maximum number of plans in a line for which estimates are computed: each needs all of them."""


@dataclass(frozen=True, slots=True)
class WaitingDetail:
    """The place of a waiting plan, and what it waits for.

    Args:
        rule: by which the plans of its population are served.
        position: from 1, among the plans that would charge one of its accounts.
        waiting: number of those plans.
        aged: whether no younger plan may delay it any more.
        score: by the rule, the least first; None: by arrival.
        shortages: of its accounts; none: it fits, and plans before it are served first.
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
    tx: Connection, organisation_id: str, look: Look, plans: Sequence[WaitingReservation], until: datetime
) -> list[WaitingDetail]:
    """Explain why plans wait; an estimate looks up to a time."""
    details: list[WaitingDetail] = []
    timely: dict[str, list[WaitingReservation]] = {}
    for plan in plans:
        home, line = look.homes[plan.id][0], look.line_of(plan.id)
        few = len(line.plans) <= MOST_ESTIMATED
        with_runs(tx, organisation_id, look.books, line.plans.values() if few else [plan])
        rivals = line.order(line.through(each for each in plan.path[:-1]), look.books, look.now)
        place = next(place for place, each in enumerate(rivals) if each.plan.id == plan.id)
        lacking = tuple(shortages(plan, look.books, look.now))
        if few and _may_change(lacking):
            timely.setdefault(home, []).append(plan)
        score = next(iter(rivals[place].score), None)
        details.append(
            WaitingDetail(line.rule, place + 1, len(rivals), rivals[place].aged, score, lacking, estimated_at=None)
        )
    expected: dict[str, datetime] = {}
    for home, theirs in timely.items():
        expected |= estimates(theirs, look.lines[home], look.books, look.now, until)
    return [replace(detail, estimated_at=expected.get(plan.id)) for plan, detail in zip(plans, details, strict=True)]


def explain_waiting(tx: Connection, context: RequestContext, reservation: Reservation) -> WaitingDetail | None:
    """Explain what a reservation waits for; None: it does not wait."""
    if reservation.status is not ReservationStatus.WAITING:
        return None
    plans = waiting_reservations(context.db, context.organisation_id)
    with plans.lock:
        look = plans.look(tx, context.now, context.lapsed_by, asked=[reservation.id])
        if reservation.id not in look.rows:
            return None
        plan = look.line_of(reservation.id).plans[reservation.id]
        [detail] = explain(tx, context.organisation_id, look, [plan], reservation.expires_at)
    return detail


def _may_change(lacking: Sequence[Shortage]) -> bool:
    """Check whether time alone may give a plan all that it lacks."""
    timely = {WaitingReason.CLOSED, WaitingReason.LOCKED, WaitingReason.PROMISED}
    return all(each.reason in timely for each in lacking)


def queue_payload(detail: WaitingDetail) -> dict[str, Any]:
    """Build the part of an audit payload about what a plan waits for."""
    return {
        "rule": str(detail.rule),
        "position": detail.position,
        "waits_for": [
            {"account": each.account_id, "reason": str(each.reason)}
            | json_finite(order=each.order, requested=each.requested, available=each.available)
            for each in detail.shortages
        ],
    }


def grant_payload(look: Look, one: Grant) -> dict[str, Any]:
    """Build the audit payload of a grant: the rule, its score, and the plans before it that go on waiting."""
    plan = one.standing.plan
    line = look.line_of(plan.id)
    unlocked = {
        account_id: str(withholding.unlocked)
        for account_id, withholding in look.books.withholdings.items()
        if account_id in plan.path and withholding.unlocked != 1
    }
    return {
        "rule": str(line.rule),
        **_standing_facts(one.standing),
        "waited_seconds": (look.now - plan.arrived_at).total_seconds(),
        "overtaken": [{"reservation": each.plan.id, **_standing_facts(each)} for each in one.overtaken[:SHOWN]],
        "overtaken_count": len(one.overtaken),
        "unlocked": unlocked,
    }


def _standing_facts(standing: Standing) -> dict[str, Any]:
    score = [each if isfinite(each) else "Infinity" for each in standing.score[:SHOWN]]
    return {"priority": standing.plan.priority, "aged": standing.aged, "score": score}
