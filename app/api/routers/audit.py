"""Verification, audit events and decisions."""

from typing import Annotated, Literal

from anyio import CapacityLimiter, to_thread
from fastapi import Depends, Query, Request, Response

from app.api.pagination import After, PageLimit, decode_position, decode_position_cursor, encode_position, split_page
from app.api.problems import AUTH_ERRORS, READ_ERRORS, WRITE_ERRORS, cacheable_responses, responses
from app.api.route import ContextDep, etag_response, router
from app.api.schemas.audit import AuditEvent, AuditEventPage, Verification
from app.api.schemas.common import Timestamp
from app.api.schemas.decisions import Decision, DecisionPage
from app.ledger.audit import AuditFilter
from app.ledger.decisions import DecisionOutcome
from app.ledger.names import ACTOR_LENGTH
from app.service.audit import queries
from app.service.audit.queries import DecisionQuery
from app.service.auth.request_context import RequestContext
from app.service.verification import VerificationReport, Verifications, verify_organisation

routes = router()

VERIFIERS = CapacityLimiter(1)
"""Runs one verification at a time, which reads everything, so that steps get threads."""


@routes.post(
    "/verifications",
    summary="Verify the ledger",
    tags=["verifications"],
    responses=responses(*WRITE_ERRORS),
)
async def create_verification(request: Request, context: ContextDep) -> Verification:
    """Recompute every account of the organisation from its charges; the time grows with their number.

    An account whose balance is not proven is quarantined: writes to it are refused until two persons lift the
    quarantine (`liftQuarantine`), whatever later verifications find.
    """
    return Verification.of(await verified(request, context))


async def verified(request: Request, context: RequestContext) -> VerificationReport:
    """Verify the caller's organisation, one at a time, and cache the report."""
    found = await to_thread.run_sync(verify_organisation, context, limiter=VERIFIERS)
    known: Verifications = request.app.state.verifications
    known.keep(context, found)
    return found


Word = Annotated[str | None, Query(min_length=1, max_length=ACTOR_LENGTH)]
When = Annotated[Timestamp | None, Query()]


def _wanted(
    action: Annotated[Word, Query(description="Such as `budget.created`; `budget.*` matches the prefix.")] = None,
    actor: Annotated[Word, Query(description="Only events of this actor.")] = None,
    subject: Annotated[Word, Query(description="Id of the affected object.")] = None,
    since: Annotated[When, Query(description="From this time on.")] = None,
    until: Annotated[When, Query(description="Before this time.")] = None,
) -> AuditFilter:
    return AuditFilter(action, actor, subject, since, until)


@routes.get(
    "/audit-events",
    summary="List audit events",
    tags=["audit"],
    response_model=AuditEventPage,
    responses=cacheable_responses(*AUTH_ERRORS, "insufficient_scope", "invalid_request"),
)
def list_audit_events(
    request: Request,
    context: ContextDep,
    wanted: Annotated[AuditFilter, Depends(_wanted)],
    order: Annotated[Literal["oldest", "newest"], Query(description="Order of the events.")] = "oldest",
    limit: PageLimit = 50,
    after: After = None,
) -> Response:
    """List the organisation's audit log: changes of accounts, keys and policies, and rejected API keys.

    A key with the scope of an account lists the events of that account and of accounts under it, and of their keys,
    proposals and experiments.
    """
    place = decode_position(after, -1) if after else None
    found = queries.read_audit_entries(context, wanted, after=place, limit=limit + 1, newest_first=order == "newest")
    shown, following = split_page(found, limit, lambda kept: str(kept.entry.position))
    return etag_response(request, AuditEventPage(items=[AuditEvent.of(kept) for kept in shown], next=following))


def _query(
    run: Annotated[str | None, Query(max_length=100, description="Only decisions on this run (id).")] = None,
    account: Annotated[
        str | None,
        Query(
            min_length=1,
            max_length=2000,
            description="Only decisions on runs under this account (id or path), at any depth.",
        ),
    ] = None,
    decision: Annotated[DecisionOutcome | None, Query(description="Only decisions with this outcome.")] = None,
    actor: Annotated[Word, Query(description="Actor of the request.")] = None,
    since: Annotated[When, Query(description="From this time on.")] = None,
    until: Annotated[When, Query(description="Before this time.")] = None,
) -> DecisionQuery:
    return DecisionQuery(run, account, decision, actor, since, until)


@routes.get(
    "/decisions",
    summary="List step decisions",
    tags=["decisions"],
    response_model=DecisionPage,
    responses=cacheable_responses(*READ_ERRORS),
)
def list_decisions(
    request: Request,
    context: ContextDep,
    query: Annotated[DecisionQuery, Depends(_query)],
    limit: PageLimit = 50,
    after: After = None,
) -> Response:
    """List the decisions on runs in the caller's scope, newest first; on one run, from the end of its chain."""
    found = queries.read_decisions(context, query, before=decode_position_cursor(after), limit=limit + 1)
    shown, following = split_page(found, limit, lambda decided: encode_position(decided.place))
    return etag_response(request, DecisionPage(items=[Decision.of(each) for each in shown], next=following))
