"""Runs whose trainer has not been heard of for too long end as lost."""

from datetime import datetime, timedelta
from typing import Final

from sqlalchemy import Connection

from app.ledger.audit import AuditAction
from app.ledger.runs.run import EndReason, RunStatus, status_payload
from app.persistence.database import Database
from app.persistence.repositories import periodic_queries
from app.service.auth.request_context import RequestContext, service_context
from app.service.auth.use_cases import use_case
from app.service.background import repeat
from app.service.charging.loading import load_run
from app.service.charging.saving import save_transition
from app.service.periodic_work import find_due, isolated
from app.service.scheduling.endings import waiting_of

LOOK_SECONDS: Final = 600.0
"""Interval between looks for lost runs."""

PAGE: Final = 100
"""Maximum number of runs that one look ends."""


async def run_lost_check(db: Database, silence: timedelta) -> None:
    """End lost runs periodically until cancelled; failures are logged and retried."""
    failure = "The check for lost runs failed, and is tried again"
    await repeat("lost-runs", failure, LOOK_SECONDS, lambda: end_lost_runs(db, db.clock.moment().earliest, silence))


def end_lost_runs(db: Database, now: datetime, silence: timedelta) -> int:
    """End active runs without a decision, a renewal or another change for some time; return their number."""
    before = now - silence
    ended = 0
    for organisation_id, run_id in find_due(
        db, lambda tx, among: periodic_queries.silent_runs(tx, before, PAGE, among)
    ):
        with isolated("Run %s is lost and could not be ended", run_id):
            ended += _end(service_context(db, organisation_id, now), run_id, before)
    return ended


@use_case()
def _end(tx: Connection, context: RequestContext, run_id: str, before: datetime) -> bool:
    """End a run as lost, unless it was heard of since `before`, or waits."""
    work = load_run(tx, context.organisation_id, run_id)
    run, own = work.run(run_id), work.record(run_id)
    heard = max(filter(None, (own.updated_at, run.last_decided_at)))
    if run.status is not RunStatus.ACTIVE or run.reservation_id is not None or heard >= before:
        return False
    if waiting_of(tx, context.organisation_id, run_id) is not None:
        return False
    after = run.ended(RunStatus.ABORTED, EndReason.LOST, context.now)
    save_transition(tx, work, context.now, after)
    reason = f"Its trainer was last heard of at {heard:%Y-%m-%d %H:%M} UTC."
    context.record(tx, AuditAction.RUN_ABORTED, run_id, status_payload(run), status_payload(after), reason)
    return True
