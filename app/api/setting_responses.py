"""Responses to changes that one person makes, or that are proposed to another one."""

from collections.abc import Callable
from http import HTTPStatus
from typing import Any, TypeVar

from fastapi import Request, Response
from pydantic import BaseModel

from app.api.idempotency import as_response
from app.api.problems import WRITE_ERRORS, responses
from app.api.route import etag_response
from app.api.schemas import proposals
from app.ledger.governance.proposals import Proposal
from app.service.idempotency import StoredResponse
from app.service.setting_changes import SettingRecord

T = TypeVar("T")
R = TypeVar("R", bound=SettingRecord[Any])


def proposed(description: str, *problems: str, status: int = 201) -> dict[int | str, dict[str, Any]]:
    """Describe the responses of a route whose change may be proposed instead."""
    return {status: {"model": proposals.Proposal, "description": description}, **responses(*problems)}


CHANGE_ERRORS = (*WRITE_ERRORS, "not_found", "precondition_required", "precondition_failed")


def changed_or_proposed(
    result: T | Proposal,
    render: Callable[[T], BaseModel],
    *,
    done: HTTPStatus = HTTPStatus.OK,
    status: HTTPStatus = HTTPStatus.CREATED,
) -> StoredResponse:
    """Build the response of a change with status `done`, or that of its proposal."""
    if isinstance(result, Proposal):
        return as_response(proposals.Proposal.of(result), status)
    return as_response(render(result), done)


def changed_setting(result: R | Proposal, render: Callable[[R], BaseModel]) -> Response:
    """Respond with a changed setting and its entity tag, or with the proposal of the change."""
    response = changed_or_proposed(result, render)
    headers = {} if isinstance(result, Proposal) else {"ETag": result.tag}
    return Response(response.body, response.status, headers, "application/json")


def setting_response(request: Request, record: R, render: Callable[[R], BaseModel]) -> Response:
    """Respond with a setting and its entity tag, or 304."""
    return etag_response(request, render(record), record.tag)
