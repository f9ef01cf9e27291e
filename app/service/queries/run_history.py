"""Get the decisions of a run."""

from dataclasses import dataclass

from app.ledger.decisions import Decision
from app.ledger.permissions import Permission
from app.persistence.repositories import decisions, runs
from app.service.auth.request_context import RequestContext
from app.service.queries.runs import find_path

EVENTS_ROOM = 4 << 20
"""Bytes of events per response; more would take seconds and hundreds of megabytes."""


@dataclass(frozen=True, slots=True)
class History:
    """A run's decisions, evenly thinned out, and the accounts that it charges, root first.

    Args:
        points: always with the first and the last of the range; their steps are truncated to EVENTS_ROOM and are
            complete if they add up to `step_count`.
        decisions: number of all the run's decisions.
    """

    run_id: str
    accounts: tuple[str, ...]
    points: tuple[Decision, ...]
    decisions: int


def read_history(call: RequestContext, run_id: str, *, after: int, max_points: int) -> History:
    """Get a run's decisions after a position (-1: all).

    More than `max_points`, at least 2, are thinned out evenly.
    """
    call.require_permission(Permission.LEDGER_READ)
    with call.db.read(call.organisation_id) as tx:
        path = find_path(tx, call, run_id)
        run = runs.get(tx, call.organisation_id, run_id)
        wanted = spread(after + 1, run.decisions, max_points)
        points = decisions.at_positions(tx, call.organisation_id, run_id, wanted, EVENTS_ROOM)
    return History(run_id, tuple(record.account.id for record in path), tuple(points), run.decisions)


def spread(start: int, stop: int, most: int) -> list[int]:
    """Spread at most `most` integers evenly over [start, stop).

    Both ends are included; a single one is the last.
    """
    length = stop - start
    if length <= most:
        return list(range(start, stop))
    if most == 1:
        return [stop - 1]
    return [start + index * (length - 1) // (most - 1) for index in range(most)]
