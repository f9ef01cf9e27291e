"""The end of a plan whose next steps a lowered limit has withdrawn (ADR 0026)."""

from app.ledger.reservations import commit, has_lapsed
from app.persistence.database import Database
from app.service.auth.request_context import RequestContext
from app.service.charging.loading import load_run
from app.service.charging.saving import save
from app.service.reservations.ending import close_reservation


def end_withdrawn(db: Database, call: RequestContext, run_id: str, reservation_id: str) -> None:
    """Commit a plan with the steps that were authorised, and return the rest.

    Whoever asks for the plan's next step says so that it was not executed: its number would be another one's.

    Args:
        db: the run's database.
        call: of the trainer that has asked for the next step.
        run_id: whose plan.
        reservation_id: the plan; if it is no longer active, nothing is done.
    """

    def commit_rest() -> None:
        with db.write(call.organisation_id) as tx:
            work = load_run(tx, call.organisation_id, run_id)
            active = work.reservations.get((call.organisation_id, run_id))
            if active is None or active.id != reservation_id or has_lapsed(active, call.lapsed_by):
                return
            close_reservation(
                work, call.organisation_id, active, commit(active, active.steps_used), call.actor, call.now
            )
            save(work)

    db.retried(commit_rest)
