"""Block schedules: data blocks that the service opens by itself."""

from http import HTTPStatus
from typing import Annotated

from fastapi import Query, Request, Response

from app.api.problems import READ_ERRORS, responses
from app.api.route import ContextDep, IfMatch, router
from app.api.schemas.block_schedules import AccountBlockSchedule, ReplaceBlockSchedule
from app.api.schemas.common import Reason
from app.api.setting_responses import CHANGE_ERRORS, SettingEndpoint
from app.service.governance.block_schedules import SCHEDULES, remove_schedule, replace_schedule

routes = router("budgets")

_SCHEDULE = SettingEndpoint(SCHEDULES, AccountBlockSchedule.of)
_OPENING = ("account_archived", "delta_too_large", "limit_too_small", "name_taken", "policy_violation")


@routes.read(
    "/accounts/{account_id}/block-schedule", "Get the block schedule of an account", AccountBlockSchedule, *READ_ERRORS
)
def get_block_schedule(account_id: str, request: Request, context: ContextDep) -> Response:
    """Get the block schedule of a population or a budget, and why a block was not opened, if one is missing."""
    return _SCHEDULE.get(request, context, account_id)


@routes.put(
    "/accounts/{account_id}/block-schedule",
    summary="Replace the block schedule of an account",
    response_model=AccountBlockSchedule,
    responses=responses(*CHANGE_ERRORS, *_OPENING),
)
def replace_block_schedule(
    account_id: str, body: ReplaceBlockSchedule, context: ContextDep, if_match: IfMatch = None
) -> Response:
    """Open a budget for each week, month or quarter of data when it begins (UTC), from the first period on.

    Those that have begun are opened with this request, all or none. The account must be composed in parallel.
    """
    return _SCHEDULE.changed(replace_schedule(context, account_id, body.schedule.domain(), body.reason, if_match))


@routes.delete(
    "/accounts/{account_id}/block-schedule",
    summary="Remove the block schedule of an account",
    status_code=204,
    responses=responses(*CHANGE_ERRORS),
)
def remove_block_schedule(
    account_id: str, reason: Annotated[Reason, Query()], context: ContextDep, if_match: IfMatch = None
) -> Response:
    """Remove the block schedule of an account. The blocks that it has opened stay."""
    remove_schedule(context, account_id, reason, if_match)
    return Response(status_code=HTTPStatus.NO_CONTENT)
