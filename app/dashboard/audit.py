"""Pages of decisions, and of the audit log and its integrity."""

from typing import Annotated, Any, Final
from urllib.parse import urlencode

from fastapi import Path, Request, Response
from pydantic import Field
from starlette.concurrency import run_in_threadpool

from app.accounting.events import event_to_dict
from app.api.pagination import decode_cursor, encode_cursor
from app.api.routers.verifications import verify_now
from app.api.schemas.refusals import refusal_facts
from app.api.session_cookies import require_own_page
from app.dashboard.alternatives import Advice
from app.dashboard.audit_messages import SENTENCES, actors_in, describe_event, ids_in, is_known
from app.dashboard.form_fields import Fields, Moment, read_fields
from app.dashboard.formatting import actors_of
from app.dashboard.page_context import PageContext, PageDep, router
from app.ledger.audit import AuditEntry, AuditFilter
from app.ledger.errors import InvalidInputError, NotFoundError, PermissionDeniedError
from app.ledger.names import ACTOR_LENGTH
from app.ledger.pages import MAX_DIGITS, Page, PageRequest
from app.ledger.permissions import Permission
from app.ledger.runs.decisions import DecisionFilter, DecisionOutcome, DecisionWithPath
from app.service.audit.queries import (
    read_audit_entries,
    read_changed_limits,
    read_decision,
    read_decisions,
    read_health,
)
from app.service.queries.overview import account_titles_of, read_change_token
from app.service.verification.requests import list_verifications

routes = router()

PAGE: Final = 50
MOST_EVENTS: Final = 100
"""Events shown of one decision; an export has all of them."""

SHOWN_VERIFICATIONS: Final = 5


Word = Annotated[str | None, Field(max_length=ACTOR_LENGTH)]


class DecisionFields(Fields):
    """Filters of the page, those of `GET /v1/decisions`."""

    account: Annotated[str | None, Field(max_length=2000)] = None
    run: Annotated[str | None, Field(max_length=100)] = None
    decision: DecisionOutcome | None = None
    actor: Word = None
    since: Moment = None
    until: Moment = None


@routes.get("/decisions")
def show_decisions(page: PageDep) -> Response:
    """Show decisions of all visible runs, newest first."""
    # A refusal by a replica whose clock is behind moves nothing else: so this is at most a minute old.
    page.check_etag(page.minute, read_change_token(page.context))
    fields, faults = read_fields(DecisionFields, page.query)
    found: Page[DecisionWithPath] = Page((), None)
    place = PageRequest(PAGE, decode_cursor(page.query.get("after")))
    try:
        if fields is not None:
            wanted = DecisionFilter(
                fields.run, fields.account, fields.decision, fields.actor, fields.since, fields.until
            )
            found = read_decisions(page.context, wanted, place)
    except (NotFoundError, PermissionDeniedError) as error:
        faults = {"run" if fields is not None and fields.run else "account": error.detail}
    except InvalidInputError as error:
        faults = {"until": error.detail}
    return page.render(
        "decisions.html",
        **_search(page, DecisionFields, found.next),
        faults=faults,
        found=found.items,
        outcomes=list(DecisionOutcome),
        actors=[actor for each in found.items for actor in actors_of(each.decision)],
    )


def _search(page: PageContext, fields: type[Fields], next_place: str | None) -> dict[str, Any]:
    """Get the given filters of a search as texts, and links to its older and to its newest entries."""
    values = {name: text for name, text in page.query.items() if name in fields.model_fields and text.strip()}
    older = next_place and f"{page.section}?{urlencode(values | {'after': encode_cursor(next_place)})}"
    newest = f"{page.section}?{urlencode(values)}" if page.query.get("after") else None
    return {"values": values, "older": older, "newest": newest}


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


class AuditFields(Fields):
    """Filters of the page, those of `GET /v1/audit-events`."""

    action: Word = None
    actor: Word = None
    subject: Annotated[str | None, Field(max_length=2000)] = None
    since: Moment = None
    until: Moment = None


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
    fields, faults = read_fields(AuditFields, page.query)
    found: Page[AuditEntry] = Page((), None)
    try:
        if fields is not None:
            place = PageRequest(PAGE, decode_cursor(page.query.get("after")))
            found = read_audit_entries(page.context, AuditFilter(**fields.model_dump()), place)
    except InvalidInputError as error:
        faults = {"until": error.detail}
    paths = account_titles_of(page.context, ids_in(found.items))
    page.read_actors([*actors_in(found.items), *(each.actor for each in verifications)])
    return page.render(
        "audit.html",
        health=read_health(page.context) if whole else None,
        verifications=verifications,
        verified_now=verified_now,
        signs=whole and page.state.signer is not None,
        may_verify=whole and page.has_permission(Permission.LEDGER_VERIFY),
        **_search(page, AuditFields, found.next),
        faults=faults,
        found=[(entry, describe_event(entry, paths, page.actor)) for entry in found.items],
        paths=paths,
        actions=ACTIONS,
        unknown=fields is not None and fields.action is not None and not is_known(fields.action),
    )
