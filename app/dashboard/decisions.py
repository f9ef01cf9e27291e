"""Pages of decisions."""

from datetime import UTC, datetime
from typing import Annotated, Final
from urllib.parse import urlencode

from fastapi import Path, Request, Response
from pydantic import AfterValidator, Field

from app.accounting.events import event_to_dict
from app.api.pagination import MAX_DIGITS, decode_position_cursor, encode_position, split_page
from app.api.schemas.steps import refusal_facts, refusal_text
from app.dashboard.forms import Fields, read_fields
from app.dashboard.page_context import PageDep, router
from app.ledger.decisions import Decision, DecisionOutcome, DecisionWithPath
from app.ledger.errors import InsufficientScopeError, InvalidInputError, NotFoundError
from app.ledger.names import ACTOR_LENGTH
from app.service.audit.queries import DecisionQuery, read_decision, read_decisions
from app.service.queries.overview import read_change_token

routes = router()

PAGE: Final = 50
MOST_EVENTS: Final = 100
"""Events shown of one decision; an export has all of them."""


def _in_utc(at: datetime) -> datetime:
    try:
        return at.replace(tzinfo=UTC) if at.tzinfo is None else at.astimezone(UTC)
    except OverflowError:
        raise ValueError("must be between the years 1 and 9999") from None


Moment = Annotated[datetime | None, AfterValidator(lambda at: None if at is None else _in_utc(at))]
"""A time as HTML fields write it; UTC unless it has a zone."""

Word = Annotated[str | None, Field(max_length=ACTOR_LENGTH)]


class DecisionFields(Fields):
    """Filters of the page, those of `GET /v1/decisions`."""

    account: Annotated[str | None, Field(max_length=2000)] = None
    run: Annotated[str | None, Field(max_length=100)] = None
    decision: DecisionOutcome | None = None
    actor: Word = None
    since: Moment = None
    until: Moment = None

    def query(self) -> DecisionQuery:
        """Convert to the service's filter."""
        return DecisionQuery(self.run, self.account, self.decision, self.actor, self.since, self.until)


@routes.get("/decisions")
def show_decisions(request: Request, page: PageDep, after: str = "") -> Response:
    """Show decisions of all visible runs, newest first."""
    # A refusal by a replica whose clock is behind moves nothing else: so this is at most a minute old.
    tag = page.etag(page.minute, read_change_token(page.call))
    unchanged = page.not_modified(tag)
    if unchanged is not None:
        return unchanged
    given = dict(request.query_params)
    fields, faults = read_fields(DecisionFields, given)
    found: list[DecisionWithPath] = []
    before = decode_position_cursor(after)
    try:
        if fields is not None:
            found = read_decisions(page.call, fields.query(), before=before, limit=PAGE + 1)
    except (NotFoundError, InsufficientScopeError) as error:
        faults = {"run" if fields is not None and fields.run else "account": error.detail}
    except InvalidInputError as error:
        faults = {"until": error.detail}
    shown, following = split_page(found, PAGE, lambda each: encode_position(each.place))
    filters = {name: text for name, text in given.items() if name in DecisionFields.model_fields and text.strip()}
    return page.render(
        "decisions.html",
        tag=tag,
        values=filters,
        faults=faults,
        found=shown,
        outcomes=list(DecisionOutcome),
        why=why,
        older=following and f"/decisions?{urlencode(filters | {'after': following})}",
        newest=f"/decisions?{urlencode(filters)}" if after else None,
    )


@routes.get("/decisions/{run_id}/{position}")
def show_decision(page: PageDep, run_id: str, position: Annotated[int, Path(ge=0, lt=10**MAX_DIGITS)]) -> Response:
    """Show one decision: its events, its numbers, and its hash in the run's chain."""
    found = read_decision(page.call, run_id, position)
    decision = found.decision
    return page.render(
        "decision.html",
        found=found,
        decision=decision,
        events=[(event_to_dict(step.event), step.count) for step in decision.steps[:MOST_EVENTS]],
        hidden=max(0, len(decision.steps) - MOST_EVENTS),
        facts=refusal_facts(decision) if decision.refusal_details is not None else None,
        why=why,
    )


def why(decision: Decision) -> str:
    """Explain a decision in a few sentences, where there is something to explain."""
    if decision.refusal_details is not None:
        return refusal_text(refusal_facts(decision), decision.binding_account_path, decision.step_count)
    if decision.outcome is DecisionOutcome.REPORTED and decision.steps_remaining is None:
        return f"These steps were reported after they ran, and took {decision.binding_account_path} over its limit."
    if decision.requested_count > decision.step_count:
        return f"These are the steps that fitted, of {decision.requested_count} requested."
    return ""
