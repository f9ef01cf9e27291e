"""What a run was told, over its steps."""

from dataclasses import dataclass

from app.ledger.permissions import Permission
from app.persistence.repositories import decisions, runs
from app.persistence.repositories.decisions import Decision
from app.service.auth.request_context import RequestContext
from app.service.queries.runs import find_path

EVENTS_ROOM = 4 << 20
"""Bytes of events that one answer has room for, so that no chart takes seconds and hundreds of megabytes."""


@dataclass(frozen=True, slots=True)
class History:
    """A run's decisions, thinned out evenly to what was asked.

    Args:
        run_id: whose.
        accounts: the ids that every charge of the run touches, root first.
        points: decisions in order; the first and the last of the range are always among them. Their steps are the
            first of what was asked, as many as there is room for; together they are `step_count` if these are all.
        decisions: how many the run has in all.
    """

    run_id: str
    accounts: tuple[str, ...]
    points: tuple[Decision, ...]
    decisions: int


def read_history(call: RequestContext, run_id: str, *, after: int, max_points: int) -> History:
    """Read the history of a run.

    Args:
        call: needs LEDGER_READ.
        run_id: whose.
        after: the position of the last decision already known; -1: none.
        max_points: how many decisions at the most, at least 2.

    Returns:
        Decisions after `after`: all of them, or `max_points` evenly spread over them.

    Raises:
        NotFoundError: the organisation has no such run.
    """
    call.require_permission(Permission.LEDGER_READ)
    with call.db.read(call.organisation_id) as tx:
        path = find_path(tx, call, run_id)
        run = runs.get(tx, call.organisation_id, run_id)
        wanted = spread(after + 1, run.decisions, max_points)
        points = decisions.at_positions(tx, call.organisation_id, run_id, wanted, EVENTS_ROOM)
    return History(run_id, tuple(record.account.id for record in path), tuple(points), run.decisions)


def spread(start: int, stop: int, most: int) -> list[int]:
    """Whole numbers spread evenly over a range, both ends among them.

    Args:
        start: the first.
        stop: one past the last.
        most: how many at the most, at least 1.

    Returns:
        All of the range if it is short enough, else `most` of it; increasing. A single one is the last.
    """
    length = stop - start
    if length <= most:
        return list(range(start, stop))
    if most == 1:
        return [stop - 1]
    return [start + index * (length - 1) // (most - 1) for index in range(most)]
