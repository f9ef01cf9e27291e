"""Policies: rules for runs."""

from fastapi import Request, Response

from app.api.problems import READ_ERRORS
from app.api.route import ContextDep, IfMatch, router
from app.api.schemas.policies import AccountPolicy, ReplacePolicy
from app.api.setting_responses import CHANGE_ERRORS, changed_setting, proposed, setting_response
from app.service.governance import policies

routes = router("policies")

_PROPOSED = proposed("It loosens a rule: it takes effect when another person approves it", *CHANGE_ERRORS)


@routes.read("/policy", "Get the policy of the organisation", AccountPolicy, *READ_ERRORS)
def get_organisation_policy(request: Request, context: ContextDep) -> Response:
    """Get the policy of every run of the organisation."""
    return setting_response(request, policies.read_policy(context, None), AccountPolicy.of)


@routes.put(
    "/policy", summary="Replace the policy of the organisation", response_model=AccountPolicy, responses=_PROPOSED
)
def replace_organisation_policy(body: ReplacePolicy, context: ContextDep, if_match: IfMatch = None) -> Response:
    """Replace the policy. Equal or stricter rules apply from the next step, also to active runs (200).

    A looser rule is proposed instead (201).
    """
    changed = policies.change_policy(context, None, body.policy.domain(), body.reason, if_match)
    return changed_setting(changed, AccountPolicy.of)


@routes.read("/accounts/{account_id}/policy", "Get the policy of an account", AccountPolicy, *READ_ERRORS)
def get_account_policy(account_id: str, request: Request, context: ContextDep) -> Response:
    """Get the policy of an account.

    `effective` is the strictest of this policy and all above it; the ETag is of this policy alone.
    """
    return setting_response(request, policies.read_policy(context, account_id), AccountPolicy.of)


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
    changed = policies.change_policy(context, account_id, body.policy.domain(), body.reason, if_match)
    return changed_setting(changed, AccountPolicy.of)
