"""Allocations of accounts, and the reservations that wait for them."""

from functools import partial

from fastapi import Request, Response

from app.api.problems import COSTING_ERRORS, READ_ERRORS, WRITE_ERRORS
from app.api.route import ContextDep, IfMatch, etag_response, router
from app.api.schemas.allocations import AccountAllocation, ReplaceAllocation
from app.api.schemas.queues import AccountQueue, PreviewWait, WaitPreview
from app.api.setting_responses import CHANGE_ERRORS, SettingEndpoint, proposed
from app.service.governance.allocations import ALLOCATIONS, build_allocation
from app.service.scheduling import requests, what_if

routes = router("allocations")

_ALLOCATION = SettingEndpoint(ALLOCATIONS, AccountAllocation.of)


@routes.read("/accounts/{account_id}/allocation", "Get the allocation of an account", AccountAllocation, *READ_ERRORS)
def get_allocation(account_id: str, request: Request, context: ContextDep) -> Response:
    """Get how a population or budget shares out its limit among reservations, and what of it is usable now."""
    return _ALLOCATION.get(request, context, account_id)


@routes.put(
    "/accounts/{account_id}/allocation",
    summary="Replace the allocation of an account",
    response_model=AccountAllocation,
    responses=proposed("Proposed: another person approves it.", *CHANGE_ERRORS),
)
def replace_allocation(
    account_id: str, body: ReplaceAllocation, context: ContextDep, if_match: IfMatch = None
) -> Response:
    """Replace how an account shares out its limit. What is reserved stays reserved; the limit stays as it is.

    An account with an allocation admits reserved steps only. An allocation that may unlock the limit earlier is
    proposed instead (201).
    """
    terms = None if body.allocation is None else body.allocation.domain(context.lapsed_by)
    build = partial(build_allocation, context, terms)
    return _ALLOCATION.replace(context, account_id, build, body.reason, if_match)


@routes.read(
    "/accounts/{account_id}/queue", "List the reservations that wait for an account", AccountQueue, *READ_ERRORS
)
def get_queue(account_id: str, request: Request, context: ContextDep) -> Response:
    """List the reservations that wait for an account or for one under it, the next one first, with what they lack."""
    return etag_response(request, AccountQueue.of(requests.list_queue(context, account_id)))


@routes.change(
    "/accounts/{account_id}/queue/what-if",
    "Preview the wait of a reservation",
    *(*WRITE_ERRORS, *COSTING_ERRORS, "not_found", "account_closed", "policy_violation"),
)
def preview_wait(account_id: str, body: PreviewWait, context: ContextDep) -> WaitPreview:
    """Preview a reservation of a new run: whether it would be granted at once, or its place and its wait.

    It is judged as a reservation with `wait_until` that arrives now. Nothing is recorded or reserved.
    """
    return WaitPreview.of(what_if.preview_wait(context, account_id, body.steps()))
