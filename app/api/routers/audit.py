"""Audit events and decisions."""

from typing import Annotated

from fastapi import Depends, Query, Request, Response

from app.api.pagination import NamedAccount, PageRequestDep, page_response
from app.api.problems import LIST_ERRORS, READ_ERRORS
from app.api.route import ContextDep, router
from app.api.schemas.audit import AuditEvent, AuditEventPage, Decision, DecisionPage
from app.api.schemas.common import Timestamp
from app.ledger.audit import AuditFilter, AuditOrder
from app.ledger.names import ACTOR_LENGTH
from app.ledger.runs.decisions import DecisionFilter, DecisionOutcome
from app.service.audit import queries

routes = router()

Word = Annotated[str | None, Query(min_length=1, max_length=ACTOR_LENGTH)]
When = Annotated[Timestamp | None, Query()]


AuditOrderParameter = Annotated[AuditOrder, Query(description="`oldest` reads the log forward.")]


def audit_filter(
    action: Annotated[Word, Query(description="Such as `budget.created`; `budget.*` matches the prefix.")] = None,
    actor: Annotated[Word, Query(description="Only events of this actor.")] = None,
    subject: Annotated[Word, Query(description="Id of the affected object.")] = None,
    since: Annotated[When, Query(description="From this time on.")] = None,
    until: Annotated[When, Query(description="Before this time.")] = None,
) -> AuditFilter:
    """Read the filter of audit events from the query."""
    return AuditFilter(action, actor, subject, since, until)


@routes.read("/audit-events", "List audit events", AuditEventPage, *LIST_ERRORS, tag="audit")
def list_audit_events(
    request: Request,
    context: ContextDep,
    wanted: Annotated[AuditFilter, Depends(audit_filter)],
    page: PageRequestDep,
    order: AuditOrderParameter = AuditOrder.NEWEST,
) -> Response:
    """List the organisation's audit log: changes of accounts, keys and policies, and rejected API keys.

    A key with the scope of an account lists the events of that account and of accounts under it, and of their keys,
    proposals and experiments.
    """
    found = queries.read_audit_entries(context, wanted, page, oldest_first=order is AuditOrder.OLDEST)
    return page_response(request, found, AuditEventPage, AuditEvent.of)


def decision_filter(
    run: Annotated[str | None, Query(max_length=100, description="Only decisions on this run (id).")] = None,
    account: Annotated[
        NamedAccount, Query(description="Only decisions on runs under this account (id or path), at any depth.")
    ] = None,
    decision: Annotated[DecisionOutcome | None, Query(description="Only decisions with this outcome.")] = None,
    actor: Annotated[Word, Query(description="Actor of the request.")] = None,
    since: Annotated[When, Query(description="From this time on.")] = None,
    until: Annotated[When, Query(description="Before this time.")] = None,
) -> DecisionFilter:
    """Read the filter of decisions from the query."""
    return DecisionFilter(run, account, decision, actor, since, until)


@routes.read("/decisions", "List step decisions", DecisionPage, *READ_ERRORS, tag="decisions")
def list_decisions(
    request: Request,
    context: ContextDep,
    wanted: Annotated[DecisionFilter, Depends(decision_filter)],
    page: PageRequestDep,
) -> Response:
    """List the decisions on runs in the caller's scope, newest first."""
    return page_response(request, queries.read_decisions(context, wanted, page), DecisionPage, Decision.of)
