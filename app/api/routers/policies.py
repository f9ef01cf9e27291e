"""Policies: rules for runs."""

from http import HTTPStatus
from typing import Any

from fastapi import Request, Response

from app.api.problems import READ_ERRORS, WRITE_ERRORS, responses
from app.api.route import ContextDep, IfMatch, etag_response, router
from app.api.schemas.policies import AccountPolicy, ReplacePolicy
from app.api.schemas.proposals import Proposal
from app.ledger.governance.proposals import Proposal as DomainProposal
from app.service.auth.request_context import RequestContext
from app.service.governance import policies

routes = router("policies")

_CHANGING: dict[int | str, dict[str, Any]] = {
    201: {"model": Proposal, "description": "It loosens a rule: it takes effect when another person approves it"},
    **responses(*WRITE_ERRORS, "not_found", "precondition_required", "precondition_failed"),
}


@routes.read("/policy", "Get the policy of the organisation", AccountPolicy, *READ_ERRORS)
def get_organisation_policy(request: Request, context: ContextDep) -> Response:
    """Get the policy of every run of the organisation."""
    record = policies.read_policy(context, None)
    return etag_response(request, AccountPolicy.of(record), record.tag)


@routes.put(
    "/policy", summary="Replace the policy of the organisation", response_model=AccountPolicy, responses=_CHANGING
)
def replace_organisation_policy(body: ReplacePolicy, context: ContextDep, if_match: IfMatch = None) -> Response:
    """Replace the policy. Equal or stricter rules apply from the next step, also to active runs (200).

    A looser rule is proposed instead (201).
    """
    return _changed(context, None, body, if_match)


@routes.read("/accounts/{account_id}/policy", "Get the policy of an account", AccountPolicy, *READ_ERRORS)
def get_account_policy(account_id: str, request: Request, context: ContextDep) -> Response:
    """Get the policy of an account.

    `effective` is the strictest of this policy and all above it; the ETag is of this policy alone.
    """
    record = policies.read_policy(context, account_id)
    return etag_response(request, AccountPolicy.of(record), record.tag)


@routes.put(
    "/accounts/{account_id}/policy",
    summary="Replace the policy of an account",
    response_model=AccountPolicy,
    responses=_CHANGING,
)
def replace_account_policy(
    account_id: str, body: ReplacePolicy, context: ContextDep, if_match: IfMatch = None
) -> Response:
    """Replace the policy, which can only tighten the rules above. Looser rules are proposed instead (201)."""
    return _changed(context, account_id, body, if_match)


def _changed(context: RequestContext, account_id: str | None, body: ReplacePolicy, if_match: str | None) -> Response:
    """Change a policy; respond with the policy or its proposal."""
    changed = policies.change_policy(context, account_id, body.policy.domain(), body.reason, if_match)
    if isinstance(changed, DomainProposal):
        return Response(Proposal.of(changed).model_dump_json(), HTTPStatus.CREATED, media_type="application/json")
    content = AccountPolicy.of(changed).model_dump_json()
    return Response(content, headers={"ETag": changed.tag}, media_type="application/json")
