"""Pages of decisions, and of the audit log and its integrity."""

from typing import Annotated, Final

from fastapi import Path, Request, Response
from starlette.concurrency import run_in_threadpool

from app.accounting.events import event_to_dict
from app.api.routers.audit import AUDIT_EVENTS, DECISIONS
from app.api.routers.verifications import verify_now
from app.api.schemas.refusals import refusal_facts
from app.api.session_cookies import require_own_page
from app.dashboard.alternatives import Advice
from app.dashboard.audit_messages import SENTENCES, actors_in, describe_event, ids_in, is_known
from app.dashboard.formatting import actors_of
from app.dashboard.page_context import PageContext, PageDep, router
from app.dashboard.searches import SearchForm
from app.ledger.pages import MAX_DIGITS, PageRequest
from app.ledger.permissions import Permission
from app.service.audit.queries import (
    read_changed_limits,
    read_decision,
    read_health,
)
from app.service.queries.overview import account_titles_of, read_change_token
from app.service.verification.requests import list_verifications

routes = router()

MOST_EVENTS: Final = 100
"""Events shown of one decision; an export has all of them."""

SHOWN_VERIFICATIONS: Final = 5


DECISION_FORM: Final = SearchForm("/decisions", DECISIONS)


@routes.get("/decisions")
def show_decisions(page: PageDep) -> Response:
    """Show decisions of all visible runs, newest first."""
    # A refusal by a replica whose clock is behind moves nothing else: so this is at most a minute old.
    page.check_etag(page.minute, read_change_token(page.context))
    search = DECISION_FORM.read(page, DECISIONS.read)
    actors = [actor for each in search.found.items for actor in actors_of(each.decision)]
    return page.render("decisions.html", search=search, actors=actors)


@routes.get("/decisions/{run_id}/{position}")
def show_decision(page: PageDep, run_id: str, position: Annotated[int, Path(ge=0, lt=10**MAX_DIGITS)]) -> Response:
    """Show one decision: its events, its numbers, and its hash in the run's chain."""
    found = read_decision(page.context, run_id, position)
    decision = found.decision
    return page.render(
        "decision.html",
        found=found,
        decision=decision,
        actors=actors_of(decision),
        events=[(event_to_dict(step.event), step.count) for step in decision.steps[:MOST_EVENTS]],
        hidden=max(0, len(decision.steps) - MOST_EVENTS),
        facts=None if decision.refusal_details is None else refusal_facts(decision),
        advice=Advice.of(decision, read_changed_limits(page.context, decision)),
    )


ACTIONS: Final = sorted({*SENTENCES, *(f"{action.partition('.')[0]}.*" for action in SENTENCES)})
"""Known actions and, before them, their kinds such as "run.*"."""


AUDIT_FORM: Final = SearchForm("/audit", AUDIT_EVENTS)


@routes.get("/audit")
async def show_audit(request: Request, page: PageDep, verify: bool = False) -> Response:  # noqa: FBT001, FBT002 - a field
    """Show audit entries, with `verify` after verifying the ledger; a script's poll never verifies."""
    now = verify and not page.part
    if now:
        require_own_page(request)
        await verify_now(page.context)
    return await run_in_threadpool(_shown, page, now)


def _shown(page: PageContext, verified_now: bool) -> Response:  # noqa: FBT001 - as said
    page.context.require_permission(Permission.AUDIT_READ)
    whole = page.context.principal.scope is None
    verifications = list_verifications(page.context, PageRequest(SHOWN_VERIFICATIONS)).items if whole else ()
    newest = verifications[0].id if verifications else None
    page.check_etag(page.minute, newest, verified_now, read_change_token(page.context))
    search = AUDIT_FORM.read(page, AUDIT_EVENTS.read)
    found, action = search.found.items, page.query.get("action", "").strip()
    paths = account_titles_of(page.context, ids_in(found))
    page.read_actors([*actors_in(found), *(each.actor for each in verifications)])
    return page.render(
        "audit.html",
        health=read_health(page.context) if whole else None,
        verifications=verifications,
        verified_now=verified_now,
        signs=whole and page.state.signer is not None,
        may_verify=whole and page.has_permission(Permission.LEDGER_VERIFY),
        search=search,
        described=[(entry, describe_event(entry, paths, page.actor)) for entry in found],
        paths=paths,
        actions=ACTIONS,
        unknown=bool(action) and not is_known(action),
    )
