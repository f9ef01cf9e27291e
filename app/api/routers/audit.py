"""Governance: who did what, what was decided, and is the ledger what its charges make it?"""

from typing import Annotated, Literal

from anyio import CapacityLimiter, to_thread
from fastapi import Depends, Query, Request, Response

from app.api.pagination import After, PageLimit, decode_position, decode_position_cursor, encode_position, split_page
from app.api.problems import AUTH_ERRORS, READ_ERRORS, WRITE_ERRORS, cacheable_responses, responses
from app.api.route import ContextDep, etag_response, router
from app.api.schemas.audit import AuditEvent, AuditEventPage, Verification
from app.api.schemas.common import Timestamp
from app.api.schemas.decisions import Decision, DecisionPage
from app.persistence.repositories.audit_entries import AuditFilter
from app.persistence.repositories.decisions import DecisionOutcome
from app.persistence.tables import ACTOR_LENGTH
from app.service.audit import queries
from app.service.audit.queries import DecisionQuery
from app.service.auth.request_context import RequestContext
from app.service.verification import VerificationReport, verify_organisation
from app.service.verification.result_cache import Verifications

routes = router()

VERIFIERS = CapacityLimiter(1)
"""A verification reads everything; the next one waits, and trainers keep their threads."""


@routes.post(
    "/verifications",
    operation_id="createVerification",
    summary="Verify the ledger",
    tags=["verifications"],
    responses=responses(*WRITE_ERRORS),
)
async def create_verification(request: Request, call: ContextDep) -> Verification:
    """Recompute every account of the organisation from its charges; the time grows with their number.

    An account whose balance is not proven is quarantined: writes to it are refused. It stays so, whatever a later
    verification finds, until two persons lift the quarantine: `liftQuarantine`.
    """
    return Verification.of(await verified(request, call))


async def verified(request: Request, call: RequestContext) -> VerificationReport:
    """Verify the caller's organisation, one at a time, and remember what was found.

    Args:
        request: of any kind.
        call: who asks.
    """
    found = await to_thread.run_sync(verify_organisation, call, limiter=VERIFIERS)
    known: Verifications = request.app.state.verifications
    known.keep(call, found)
    return found


Word = Annotated[str | None, Query(min_length=1, max_length=ACTOR_LENGTH)]
When = Annotated[Timestamp | None, Query()]


def _wanted(
    action: Annotated[Word, Query(description="As `budget.created`; `budget.*`: all of that kind.")] = None,
    actor: Annotated[Word, Query(description="Who did it.")] = None,
    subject: Annotated[Word, Query(description="The id of what it was done to.")] = None,
    since: Annotated[When, Query(description="Not before this moment.")] = None,
    until: Annotated[When, Query(description="Before this moment.")] = None,
) -> AuditFilter:
    return AuditFilter(action, actor, subject, since, until)


@routes.get(
    "/audit-events",
    operation_id="listAuditEvents",
    summary="List audit events",
    tags=["audit"],
    response_model=AuditEventPage,
    responses=cacheable_responses(*AUTH_ERRORS, "insufficient_scope", "invalid_request"),
)
def list_audit_events(
    request: Request,
    call: ContextDep,
    wanted: Annotated[AuditFilter, Depends(_wanted)],
    order: Annotated[
        Literal["oldest", "newest"], Query(description="From the chain's beginning, or from its end.")
    ] = "oldest",
    limit: PageLimit = 50,
    after: After = None,
) -> Response:
    """The organisation's own chain: every act of governance, and every key that was tried and opened nothing.

    A key that is bound to an account reads the acts about that account and what lies beneath it, and about keys,
    proposals and experiments of these.
    """
    place = decode_position(after, -1) if after else None
    found = queries.read_acts(call, wanted, after=place, limit=limit + 1, newest_first=order == "newest")
    shown, following = split_page(found, limit, lambda kept: str(kept.entry.position))
    return etag_response(request, AuditEventPage(items=[AuditEvent.of(kept) for kept in shown], next=following))


def _query(
    run: Annotated[str | None, Query(max_length=100, description="Only about this run, by its id.")] = None,
    account: Annotated[
        str | None,
        Query(
            min_length=1,
            max_length=2000,
            description="Only about runs that charge this account (id or path), however deep.",
        ),
    ] = None,
    decision: Annotated[DecisionOutcome | None, Query(description="What became of the steps.")] = None,
    actor: Annotated[Word, Query(description="Who asked.")] = None,
    since: Annotated[When, Query(description="Not before this moment.")] = None,
    until: Annotated[When, Query(description="Before this moment.")] = None,
) -> DecisionQuery:
    return DecisionQuery(run, account, decision, actor, since, until)


@routes.get(
    "/decisions",
    operation_id="listDecisions",
    summary="List step decisions",
    tags=["decisions"],
    response_model=DecisionPage,
    responses=cacheable_responses(*READ_ERRORS),
)
def list_decisions(
    request: Request,
    call: ContextDep,
    query: Annotated[DecisionQuery, Depends(_query)],
    limit: PageLimit = 50,
    after: After = None,
) -> Response:
    """Decisions about all runs that the caller may see, the newest first; of one run, from the end of its chain."""
    found = queries.read_decisions(call, query, before=decode_position_cursor(after), limit=limit + 1)
    shown, following = split_page(found, limit, lambda decided: encode_position(decided.place))
    return etag_response(request, DecisionPage(items=[Decision.of(each) for each in shown], next=following))
