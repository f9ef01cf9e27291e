"""Policies: what runs may do."""

from typing import Annotated, Any

from fastapi import Header, Request, Response

from app.api.problems import READ_ERRORS, WRITE_ERRORS, cacheable_responses, responses
from app.api.route import ContextDep, etag_response, router
from app.api.schemas.policies import AccountPolicy, ReplacePolicy
from app.api.schemas.proposals import Proposal
from app.persistence.repositories.proposals import Proposal as DomainProposal
from app.service.auth.request_context import RequestContext
from app.service.governance import policies
from app.service.governance.policies import PolicyRequest
from app.service.idempotency import CREATED

routes = router()

IfMatch = Annotated[
    str | None,
    Header(alias="If-Match", max_length=500, description="The ETag of the policy that you have seen. It must be sent."),
]
_CHANGING: dict[int | str, dict[str, Any]] = {
    201: {"model": Proposal, "description": "It loosens a rule: it takes effect when another person approves it"},
    **responses(*WRITE_ERRORS, "not_found", "precondition_required", "precondition_failed"),
}


@routes.get(
    "/policy",
    operation_id="getOrganisationPolicy",
    summary="Get the policy of the organisation",
    tags=["policies"],
    response_model=AccountPolicy,
    responses=cacheable_responses(*READ_ERRORS),
)
def get_organisation_policy(request: Request, call: ContextDep) -> Response:
    """What holds for every run of the organisation, whatever the policies beneath say besides."""
    record = policies.read_policy(call, None)
    return etag_response(request, AccountPolicy.of(record, account=False), record.tag)


@routes.put(
    "/policy",
    operation_id="replaceOrganisationPolicy",
    summary="Replace the policy of the organisation",
    tags=["policies"],
    response_model=AccountPolicy,
    responses=_CHANGING,
)
def replace_organisation_policy(body: ReplacePolicy, call: ContextDep, if_match: IfMatch = None) -> Response:
    """What is as strict as before, or stricter, holds from the next step on, for runs that are under way, too (200).

    What loosens any rule is proposed (201).
    """
    return _changed(call, PolicyRequest(None, body.policy.domain(), body.reason, if_match))


@routes.get(
    "/accounts/{account_id}/policy",
    operation_id="getAccountPolicy",
    summary="Get the policy of an account",
    tags=["policies"],
    response_model=AccountPolicy,
    responses=cacheable_responses(*READ_ERRORS),
)
def get_account_policy(account_id: str, request: Request, call: ContextDep) -> Response:
    """`effective` is the strictest of this policy and of all above it. The ETag is of this policy alone."""
    record = policies.read_policy(call, account_id)
    return etag_response(request, AccountPolicy.of(record, account=True), record.tag)


@routes.put(
    "/accounts/{account_id}/policy",
    operation_id="replaceAccountPolicy",
    summary="Replace the policy of an account",
    tags=["policies"],
    response_model=AccountPolicy,
    responses=_CHANGING,
)
def replace_account_policy(
    account_id: str, body: ReplacePolicy, call: ContextDep, if_match: IfMatch = None
) -> Response:
    """It can only make stricter what holds above. What is looser than this policy was before is proposed (201)."""
    return _changed(call, PolicyRequest(account_id, body.policy.domain(), body.reason, if_match))


def _changed(call: RequestContext, asked: PolicyRequest) -> Response:
    """Change a policy; the reply is the policy, or the proposal of it."""
    changed = policies.change_policy(call, asked)
    if isinstance(changed, DomainProposal):
        return Response(Proposal.of(changed).model_dump_json(), CREATED, media_type="application/json")
    told = AccountPolicy.of(changed, account=asked.account is not None)
    return Response(told.model_dump_json(), media_type="application/json")
