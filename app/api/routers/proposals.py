"""Limits, and what waits for another person's word."""

from typing import Annotated

from fastapi import Header, Query, Request, Response

from app.api.pagination import After, PageLimit, decode_cursor, split_page
from app.api.problems import READ_ERRORS, WRITE_ERRORS, cacheable_responses, responses
from app.api.route import ContextDep, IdempotencyKey, created_response, etag_response, idempotent_request, router
from app.api.schemas.proposals import (
    AccountLimit,
    ChangeLimit,
    LiftQuarantine,
    Proposal,
    ProposalPage,
    ProposalReview,
)
from app.persistence.repositories.proposals import ProposalStatus
from app.service.governance import limit_changes, proposals, quarantines
from app.service.governance.limit_changes import LimitRequest

routes = router()

IfMatch = Annotated[
    str | None,
    Header(alias="If-Match", max_length=500, description="The ETag of the limit that you have seen. It must be sent."),
]


@routes.get(
    "/accounts/{account_id}/limit",
    operation_id="getAccountLimit",
    summary="Get the limit of an account",
    tags=["limits"],
    response_model=AccountLimit,
    responses=cacheable_responses(*READ_ERRORS),
)
def get_account_limit(account_id: str, request: Request, call: ContextDep) -> Response:
    """The limit, and how often it was changed; `/v1/audit-events?subject=…` tells by whom and why."""
    record = limit_changes.read_limit(call, account_id)
    return etag_response(request, AccountLimit.of(record), limit_changes.limit_etag(record))


@routes.post(
    "/accounts/{account_id}/limit",
    operation_id="changeAccountLimit",
    summary="Lower a limit or propose to raise it",
    tags=["limits"],
    response_model=AccountLimit,
    responses={
        201: {"model": Proposal, "description": "Proposed: it takes effect when another person approves it"},
        **responses(
            *WRITE_ERRORS,
            *("not_found", "delta_too_large", "limit_too_small", "idempotency_key_reused"),
            *("policy_violation", "precondition_required", "precondition_failed"),
        ),
    },
)
def change_account_limit(
    account_id: str,
    body: ChangeLimit,
    request: Request,
    call: ContextDep,
    key: IdempotencyKey = None,
    if_match: IfMatch = None,
) -> Response:
    """A limit that lets less through holds at once (200). One that lets more through is proposed (201).

    Refusals that were given stay what they are. What was spent is counted against the new limit from its first step on.
    """
    return created_response(
        limit_changes.change_limit(
            call,
            LimitRequest(account_id, body.limit.domain(), body.reason, if_match),
            idempotent_request(request, body, key),
            lambda record: AccountLimit.of(record).model_dump_json(),
            lambda proposal: Proposal.of(proposal).model_dump_json(),
        )
    )


@routes.post(
    "/accounts/{account_id}/quarantine/lift",
    operation_id="liftQuarantine",
    summary="Propose to lift a quarantine",
    tags=["quarantines"],
    status_code=201,
    response_model=Proposal,
    responses=responses(*WRITE_ERRORS, "not_found", "idempotency_key_reused"),
)
def lift_quarantine(
    account_id: str, body: LiftQuarantine, request: Request, call: ContextDep, key: IdempotencyKey = None
) -> Response:
    """Of the account and of every account under it. Another person approves it.

    The approval verifies the organisation anew. While a fault is found, it is refused: 409 `account_quarantined`.
    """
    return created_response(
        quarantines.propose_lift(
            call,
            account_id,
            body.reason,
            idempotent_request(request, body, key),
            lambda proposal: Proposal.of(proposal).model_dump_json(),
        )
    )


@routes.get(
    "/proposals",
    operation_id="listProposals",
    summary="List proposals",
    tags=["proposals"],
    response_model=ProposalPage,
    responses=cacheable_responses(*READ_ERRORS),
)
def list_proposals(
    request: Request,
    call: ContextDep,
    status: Annotated[ProposalStatus | None, Query(description="Only those in this state.")] = None,
    account: Annotated[
        str | None,
        Query(min_length=1, max_length=2000, description="Only those about this account (id or path), or beneath it."),
    ] = None,
    limit: PageLimit = 50,
    after: After = None,
) -> Response:
    """Proposals within the caller's reach, in the order of their making."""
    found = proposals.list_proposals(call, account, status, after=decode_cursor(after), limit=limit + 1)
    shown, following = split_page(found, limit, lambda proposal: proposal.id)
    return etag_response(request, ProposalPage(items=[Proposal.of(each) for each in shown], next=following))


@routes.get(
    "/proposals/{proposal_id}",
    operation_id="getProposal",
    summary="Get a proposal",
    tags=["proposals"],
    response_model=Proposal,
    responses=cacheable_responses(*READ_ERRORS),
)
def get_proposal(proposal_id: str, request: Request, call: ContextDep) -> Response:
    """What is proposed, by whom and why, and what became of it."""
    return etag_response(request, Proposal.of(proposals.get_proposal(call, proposal_id)))


@routes.post(
    "/proposals/{proposal_id}/approve",
    operation_id="approveProposal",
    summary="Approve a proposal",
    tags=["proposals"],
    responses=responses(
        *WRITE_ERRORS,
        *(
            "not_found",
            "name_taken",
            "proposal_closed",
            "precondition_failed",
            "delta_too_large",
            "limit_too_small",
            "policy_violation",
            "account_quarantined",
        ),
    ),
)
def approve_proposal(proposal_id: str, call: ContextDep, body: ProposalReview | None = None) -> Proposal:
    """Only another person than the proposer can; keys that one issued for the other count as one person's."""
    return Proposal.of(proposals.approve(call, proposal_id, body.reason if body else None))


@routes.post(
    "/proposals/{proposal_id}/reject",
    operation_id="rejectProposal",
    summary="Reject or withdraw a proposal",
    tags=["proposals"],
    responses=responses(*WRITE_ERRORS, "not_found", "proposal_closed"),
)
def reject_proposal(proposal_id: str, call: ContextDep, body: ProposalReview | None = None) -> Proposal:
    """It comes to nothing. The proposer may do so, too: then it is `withdrawn`."""
    return Proposal.of(proposals.reject(call, proposal_id, body.reason if body else None))
