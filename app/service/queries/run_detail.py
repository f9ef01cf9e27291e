"""The page of a run."""

from dataclasses import dataclass
from itertools import accumulate
from typing import Final

from sqlalchemy import Connection

from app.accounting.conversion import spread
from app.ledger.accounts.account import Account
from app.ledger.admission.admission import governing_of
from app.ledger.audit import AuditAction, AuditFilter
from app.ledger.governance.proposals import Proposal
from app.ledger.pages import PageRequest
from app.ledger.runs.decisions import Decision, DecisionFilter, DecisionOutcome
from app.ledger.runs.reservations import Reservation
from app.ledger.step_events import MAX_COUNT, StepEvent
from app.persistence.repositories import (
    account_metadata,
    audit,
    decisions,
    overview_queries,
    proposals,
    reservations,
    waiting,
)
from app.persistence.repositories.overview_queries import Attempt
from app.service.accounts.epsilons import read_epsilons
from app.service.auth.request_context import RequestContext
from app.service.costing import cost_steps
from app.service.queries.lineage import lineage_token
from app.service.queries.outdated_alternatives import ChangedLimit, limits_changed_since
from app.service.queries.runs import RunRecord, read_run
from app.service.scheduling.explanations import WaitingDetail, explain_waiting

POINTS: Final = 200
"""Number of decisions in a chart; more are evenly thinned out."""

LATEST: Final = 20
"""Number of refusals, limit requests, attempts and reservations listed."""

AHEAD: Final = 3
"""Length of a projection as a multiple of the steps taken, so that the past stays visible. A run without steps is
projected to its end."""

_PROJECTED: Final = 24


@dataclass(frozen=True, slots=True)
class RunDetail:
    """Contents of a run's page; lists begin with the newest.

    Args:
        points: its decisions, evenly thinned out.
        limit_requests: newest proposals of its own limit, and of limits of its path that were requested for it.
        limits_changed: those of its path that were changed after its latest refusal.
        limits_waiting: ids of the accounts of its path whose limit somebody has proposed to change.
        waiting: the place of its waiting reservation, and what that waits for; None: none waits.
        governing: the account whose limit governs it: its own, or the nearest above.
        projected: further steps of its default event, and the epsilon after them; empty: no such event, or no steps
            left.
    """

    record: RunRecord
    points: tuple[Decision, ...]
    refusals: tuple[Decision, ...]
    attempts: tuple[Attempt, ...]
    reservations: tuple[Reservation, ...]
    limit_requests: tuple[Proposal, ...]
    limits_waiting: frozenset[str]
    limits_changed: tuple[ChangedLimit, ...]
    registered_by: str | None
    waiting: tuple[Reservation, WaitingDetail] | None
    governing: Account
    projected: tuple[tuple[int, float], ...]


def run_change_token(context: RequestContext, run_id: str) -> tuple[object, ...]:
    """Get a token that changes with the contents of a run's page, time aside."""
    with context.read() as tx:
        about = account_metadata.find_many(tx, context.organisation_id, [run_id])
        waits = waiting.of_runs(tx, context.organisation_id, [run_id])
        return (
            waits,
            # Others' reservations change its place.
            *(overview_queries.change_token(tx, context.organisation_id) if waits else ()),
            *overview_queries.path_change_token(tx, context.organisation_id, run_id),
            *proposals.path_change_token(tx, context.organisation_id, run_id),
            about.get(run_id),
            *lineage_token(tx, context, run_id),
        )


def get_run_detail(context: RequestContext, run_id: str) -> RunDetail:
    """Get a run's page."""
    with context.read() as tx:
        return context.run_with_costs(lambda: _seen(tx, context, run_id))


def _seen(tx: Connection, context: RequestContext, run_id: str) -> RunDetail:
    organisation_id = context.organisation_id
    record = read_run(tx, context, run_id)
    wanted = spread(0, record.run.decisions, POINTS)
    refused = DecisionFilter(run_id=run_id, outcome=DecisionOutcome.REFUSED)
    found = decisions.page(tx, organisation_id, refused, PageRequest(LATEST)).items
    creation = AuditFilter(action=AuditAction.RUN_CREATED, subject=run_id)
    registered = audit.list_entries(tx, organisation_id, creation, PageRequest(1)).items
    return RunDetail(
        record=record,
        points=tuple(decisions.at_positions(tx, organisation_id, run_id, wanted)),
        refusals=tuple(each.decision for each in found),
        attempts=tuple(overview_queries.newest_attempts(tx, organisation_id, run_id, LATEST)),
        reservations=tuple(reservations.newest_of(tx, organisation_id, run_id, LATEST)),
        limit_requests=_limit_requests(tx, context, record),
        limits_changed=(limits_changed_since(tx, organisation_id, record.path, found[0].decision) if found else ()),
        limits_waiting=frozenset(proposals.open_limits_along(tx, organisation_id, run_id)),
        registered_by=registered[0].actor if registered else None,
        waiting=_waiting(tx, context, record),
        governing=governing_of([each.account for each in record.path]),
        projected=_projected(tx, context, record),
    )


def _waiting(tx: Connection, context: RequestContext, record: RunRecord) -> tuple[Reservation, WaitingDetail] | None:
    found = None if record.waiting is None else reservations.find(tx, context.organisation_id, record.waiting)
    detail = None if found is None else explain_waiting(tx, context, found)
    return None if found is None or detail is None else (found, detail)


def _limit_requests(tx: Connection, context: RequestContext, record: RunRecord) -> tuple[Proposal, ...]:
    """List the limits requested for a run: the caller's own, and those in the caller's scope."""
    seen_by = context.principal.actor, context.principal.scope
    return tuple(proposals.newest_limits_for(tx, context.organisation_id, record.run.account_id, seen_by, LATEST))


def _projected(tx: Connection, context: RequestContext, record: RunRecord) -> tuple[tuple[int, float], ...]:
    """Project epsilon for the default event, up to where no further step fits or the chart ends."""
    if record.run.event is None or not record.steps_remaining:
        return ()
    path = [each.account for each in record.path]
    [one] = cost_steps(tx, context.organisation_id, path[0], [StepEvent(record.run.event, 1)], context.costs)
    taken = record.run.next_step
    last = min(record.steps_remaining, AHEAD * taken if taken else MAX_COUNT)
    # Epsilon rises most with the first steps: powers of two sample them densely.
    steps = {*spread(0, last + 1, _PROJECTED), *(2**power for power in range(last.bit_length()))}
    own, further = record.own, sorted(steps)
    later = [own.with_charged(StepEvent(record.run.event, each), one.curve) if each else own for each in further]
    found = read_epsilons(tx, context.organisation_id, [(each, record.delta) for each in later])
    return tuple(zip(further, accumulate(found, max), strict=True))
