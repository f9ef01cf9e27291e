"""Block schedules: data blocks that the service opens by itself."""

from http import HTTPStatus
from typing import Annotated

from fastapi import Query, Request, Response

from app.api.problems import READ_ERRORS, WRITE_ERRORS, responses
from app.api.route import ContextDep, IfMatch, etag_response, router
from app.api.schemas.block_schedules import AccountBlockSchedule, ReplaceBlockSchedule
from app.api.schemas.common import Reason
from app.service.governance import block_schedules

routes = router("budgets")

_CHANGING = (*WRITE_ERRORS, "not_found", "precondition_required", "precondition_failed")
_OPENING = ("account_archived", "delta_too_large", "limit_too_small", "name_taken", "policy_violation")


@routes.read(
    "/accounts/{account_id}/block-schedule", "Get the block schedule of an account", AccountBlockSchedule, *READ_ERRORS
)
def get_block_schedule(account_id: str, request: Request, context: ContextDep) -> Response:
    """Get the block schedule of a population or a budget, and why a block was not opened, if one is missing."""
    found = block_schedules.get_schedule(context, account_id)
    return etag_response(request, AccountBlockSchedule.of(found), found.tag)


@routes.put(
    "/accounts/{account_id}/block-schedule",
    summary="Replace the block schedule of an account",
    response_model=AccountBlockSchedule,
    responses=responses(*_CHANGING, *_OPENING),
)
def replace_block_schedule(
    account_id: str, body: ReplaceBlockSchedule, context: ContextDep, if_match: IfMatch = None
) -> Response:
    """Open a budget for each week, month or quarter of data when it begins (UTC), from the first period on.

    Those that have begun are opened with this request, all or none. The account must be composed in parallel.
    """
    changed = block_schedules.replace_schedule(context, account_id, body.schedule.domain(), body.reason, if_match)
    content = AccountBlockSchedule.of(changed).model_dump_json()
    return Response(content, headers={"ETag": changed.tag}, media_type="application/json")


@routes.delete(
    "/accounts/{account_id}/block-schedule",
    summary="Remove the block schedule of an account",
    status_code=204,
    responses=responses(*_CHANGING),
)
def remove_block_schedule(
    account_id: str, reason: Annotated[Reason, Query()], context: ContextDep, if_match: IfMatch = None
) -> Response:
    """Remove the block schedule of an account. The blocks that it has opened stay."""
    block_schedules.remove_schedule(context, account_id, reason, if_match)
    return Response(status_code=HTTPStatus.NO_CONTENT)
