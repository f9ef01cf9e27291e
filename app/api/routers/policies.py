"""Policies: rules for runs."""

from fastapi import Request, Response

from app.api.problems import READ_ERRORS
from app.api.route import ContextDep, IfMatch, router
from app.api.schemas.policies import AccountPolicy, ReplacePolicy
from app.api.setting_responses import CHANGE_ERRORS, SettingEndpoint, proposed
from app.service.governance.policies import POLICIES

routes = router("policies")

_POLICY = SettingEndpoint(POLICIES, AccountPolicy.of)
_PROPOSED = proposed("It loosens a rule: it takes effect when another person approves it", *CHANGE_ERRORS)


@routes.read("/policy", "Get the policy of the organisation", AccountPolicy, *READ_ERRORS)
def get_organisation_policy(request: Request, context: ContextDep) -> Response:
    """Get the policy of every run of the organisation."""
    return _POLICY.get(request, context, None)


@routes.put(
    "/policy", summary="Replace the policy of the organisation", response_model=AccountPolicy, responses=_PROPOSED
)
def replace_organisation_policy(body: ReplacePolicy, context: ContextDep, if_match: IfMatch = None) -> Response:
    """Replace the policy. Equal or stricter rules apply from the next step, also to active runs (200).

    A looser rule is proposed instead (201).
    """
    policy = body.policy.domain()
    return _POLICY.replace(context, None, lambda *_: policy, body.reason, if_match)


@routes.read("/accounts/{account_id}/policy", "Get the policy of an account", AccountPolicy, *READ_ERRORS)
def get_account_policy(account_id: str, request: Request, context: ContextDep) -> Response:
    """Get the policy of an account.

    `effective` is the strictest of this policy and all above it; the ETag is of this policy alone.
    """
    return _POLICY.get(request, context, account_id)


@routes.put(
    "/accounts/{account_id}/policy",
    summary="Replace the policy of an account",
    response_model=AccountPolicy,
    responses=_PROPOSED,
)
def replace_account_policy(
    account_id: str, body: ReplacePolicy, context: ContextDep, if_match: IfMatch = None
) -> Response:
    """Replace the policy, which can only tighten the rules above. Looser rules are proposed instead (201)."""
    policy = body.policy.domain()
    return _POLICY.replace(context, account_id, lambda *_: policy, body.reason, if_match)
