"""Limits, and proposals that need approval."""

from http import HTTPStatus
from typing import Annotated

from fastapi import Query, Request, Response

from app.api.idempotency import IdempotencyDep
from app.api.lists import ListEndpoint, add_list
from app.api.problems import READ_ERRORS, WRITE_ERRORS
from app.api.route import ContextDep, IfMatch, etag_response, router
from app.api.schemas.proposals import (
    AccountLimit,
    ChangeLimit,
    LiftQuarantine,
    LimitEquivalents,
    Proposal,
    ProposalReview,
)
from app.api.setting_responses import CHANGE_ERRORS, SettingEndpoint, changed_or_proposed, proposed
from app.ledger.governance.proposals import ProposalFilter
from app.service.accounts.equivalents import read_equivalents
from app.service.governance import limit_changes, proposals, quarantines

routes = router()

DeltaQuery = Annotated[
    float | None,
    Query(ge=0, lt=1, description="At which epsilon holds; by default that of the account."),
]

_LIMIT = SettingEndpoint(limit_changes.LIMITS, lambda record: AccountLimit.of(record.account))


@routes.read("/accounts/{account_id}/limit", "Get the limit of an account", AccountLimit, *READ_ERRORS, tag="limits")
def get_account_limit(account_id: str, request: Request, context: ContextDep) -> Response:
    """Get the limit and its number of changes; `/v1/audit-events?subject=…` lists their actors and reasons."""
    return _LIMIT.get(request, context, account_id)


@routes.read(
    "/accounts/{account_id}/equivalents",
    "Get the equivalents of a limit",
    LimitEquivalents,
    *READ_ERRORS,
    "invalid_request",
    tag="limits",
)
def get_limit_equivalents(account_id: str, request: Request, context: ContextDep, delta: DeltaQuery = None) -> Response:
    """Get what a limit implies: epsilon at a delta, rho and mu where they follow, and the risk of an attack."""
    return etag_response(request, LimitEquivalents.of(read_equivalents(context, account_id, delta)))


@routes.post(
    "/accounts/{account_id}/limit",
    summary="Lower a limit or propose to raise it",
    tags=["limits"],
    response_model=AccountLimit,
    responses=proposed(
        "Proposed: it takes effect when another person approves it",
        *(*CHANGE_ERRORS, "account_archived", "delta_too_large", "limit_too_small", "idempotency_key_reused"),
        *("account_state_conflict", "unsupported_event", "policy_violation", "computation_limit_exceeded"),
    ),
)
def change_account_limit(
    account_id: str, body: ChangeLimit, context: ContextDep, idempotency: IdempotencyDep, if_match: IfMatch = None
) -> Response:
    """Change a limit: a stricter limit applies at once (200); a looser one is proposed (201).

    Earlier refusals stay. All spending counts against the new limit. Its unit can change only while nothing is spent or
    reserved, as a looser limit.
    """
    effect = limit_changes.change_limit.effect(context, account_id, body.limit.domain(), body.reason, if_match)
    response = idempotency.respond(effect, lambda result: changed_or_proposed(result, _LIMIT.render), body)
    if response.status_code == HTTPStatus.OK:
        changed = AccountLimit.model_validate_json(bytes(response.body))
        response.headers["ETag"] = limit_changes.limit_etag(changed.account, changed.revision)
    return response


@routes.create(
    "/accounts/{account_id}/quarantine/lift",
    "Propose to lift a quarantine",
    Proposal,
    *(*WRITE_ERRORS, "not_found", "idempotency_key_reused"),
    tag="quarantines",
)
def lift_quarantine(
    account_id: str, body: LiftQuarantine, context: ContextDep, idempotency: IdempotencyDep
) -> Response:
    """Propose to lift the quarantine of the account and of every account under it; another person approves it.

    Approval verifies the organisation again. While a discrepancy remains, it fails: 409 `account_quarantined`.
    """
    return idempotency.respond(quarantines.propose_lift.effect(context, account_id, body.reason), Proposal.of, body)


add_list(routes, ListEndpoint("proposals", ProposalFilter, proposals.list_proposals, Proposal))


@routes.read("/proposals/{proposal_id}", "Get a proposal", Proposal, *READ_ERRORS, tag="proposals")
def get_proposal(proposal_id: str, request: Request, context: ContextDep) -> Response:
    """Get a proposal, its author and reason, and its outcome."""
    return etag_response(request, Proposal.of(proposals.get_proposal(context, proposal_id)))


@routes.change(
    "/proposals/{proposal_id}/approve",
    "Approve a proposal",
    *(*WRITE_ERRORS, "not_found", "name_taken", "proposal_closed", "precondition_failed"),
    *("delta_too_large", "limit_too_small", "policy_violation", "account_archived", "account_quarantined"),
    "computation_limit_exceeded",
    tag="proposals",
)
def approve_proposal(proposal_id: str, context: ContextDep, body: ProposalReview | None = None) -> Proposal:
    """Approve another person's proposal; keys that one issued for the other count as one person's."""
    return Proposal.of(proposals.approve(context, proposal_id, body.reason if body else None))


@routes.change(
    "/proposals/{proposal_id}/reject",
    "Reject or withdraw a proposal",
    *(*WRITE_ERRORS, "not_found", "proposal_closed"),
    tag="proposals",
)
def reject_proposal(proposal_id: str, context: ContextDep, body: ProposalReview | None = None) -> Proposal:
    """Reject a proposal; its own author thereby retracts it."""
    return Proposal.of(proposals.reject(context, proposal_id, body.reason if body else None))
