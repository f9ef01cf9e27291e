"""Policies: what runs may do."""

from typing import Annotated

from fastapi import Header, Request, Response

from app.api.problems import READING, WRITING, reads, responses
from app.api.route import Asked, router, tagged
from app.api.schemas.policies import PolicyChangeIn, PolicyOut
from app.service.governance import policies
from app.service.governance.policies import PolicyRequest

routes = router()

IfMatch = Annotated[
    str | None,
    Header(alias="If-Match", max_length=500, description="The ETag of the policy that you have seen. It must be sent."),
]
_CHANGING = (*WRITING, "precondition_required", "version_conflict")


@routes.get(
    "/policies",
    operation_id="getPolicies",
    summary="Read the organisation's policy",
    tags=["governance"],
    response_model=PolicyOut,
    responses=reads(*READING),
)
def get_policies(request: Request, call: Asked) -> Response:
    """What holds for every run of the organisation, whatever the policies beneath say besides."""
    record = policies.read_policy(call, None)
    return tagged(request, PolicyOut.of(record, account=False), record.tag)


@routes.put(
    "/policies",
    operation_id="putPolicies",
    summary="Change the organisation's policy",
    tags=["governance"],
    responses=responses(*_CHANGING),
)
def put_policies(body: PolicyChangeIn, call: Asked, if_match: IfMatch = None) -> PolicyOut:
    """It takes the place of the one before, and holds from the next step on, for runs that are under way, too."""
    asked = PolicyRequest(None, body.policy.domain(), body.reason, if_match)
    return PolicyOut.of(policies.change_policy(call, asked), account=False)


@routes.get(
    "/accounts/{account_id}/policy",
    operation_id="getPolicy",
    summary="Read the policy of a population or a budget, and what holds there",
    tags=["governance"],
    response_model=PolicyOut,
    responses=reads(*READING),
)
def get_policy(account_id: str, request: Request, call: Asked) -> Response:
    """`effective` is the strictest of this policy and of all above it. The ETag is of this policy alone."""
    record = policies.read_policy(call, account_id)
    return tagged(request, PolicyOut.of(record, account=True), record.tag)


@routes.put(
    "/accounts/{account_id}/policy",
    operation_id="putPolicy",
    summary="Change the policy of a population or a budget and of all beneath it",
    tags=["governance"],
    responses=responses(*_CHANGING, "not_found"),
)
def put_policy(account_id: str, body: PolicyChangeIn, call: Asked, if_match: IfMatch = None) -> PolicyOut:
    """It takes the place of the one before. It can only make stricter what holds above: looser rules change nothing."""
    asked = PolicyRequest(account_id, body.policy.domain(), body.reason, if_match)
    return PolicyOut.of(policies.change_policy(call, asked), account=True)
