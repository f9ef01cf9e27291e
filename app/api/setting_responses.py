"""Routes of settings, and responses to changes that are made at once or proposed to another person."""

from collections.abc import Callable
from dataclasses import dataclass
from http import HTTPStatus
from typing import Any, Generic, TypeVar

from fastapi import Request, Response
from pydantic import BaseModel

from app.api.idempotency import as_response
from app.api.problems import WRITE_ERRORS, responses
from app.api.route import etag_response
from app.api.schemas import proposals
from app.ledger.governance.proposals import Proposal
from app.service.auth.request_context import RequestContext
from app.service.idempotency import StoredResponse
from app.service.setting_changes import Build, SettingHandler, SettingRecord, change_setting

T = TypeVar("T")
V = TypeVar("V")
R = TypeVar("R", bound=SettingRecord[Any])

CHANGE_ERRORS = (*WRITE_ERRORS, "not_found", "precondition_required", "precondition_failed")


def proposed(description: str, *problems: str, status: int = 201) -> dict[int | str, dict[str, Any]]:
    """Describe the responses of a route whose change may be proposed instead."""
    return {status: {"model": proposals.Proposal, "description": description}, **responses(*problems)}


def changed_or_proposed(
    result: T | Proposal, render: Callable[[T], BaseModel], done: HTTPStatus = HTTPStatus.OK, status: int = 201
) -> StoredResponse:
    """Build the response of a change with status `done`, or that of its proposal."""
    if isinstance(result, Proposal):
        return as_response(proposals.Proposal.of(result), HTTPStatus(status))
    return as_response(render(result), done)


@dataclass(frozen=True, slots=True)
class SettingEndpoint(Generic[V, R]):
    """The endpoints of a setting, and the schema that renders it."""

    handler: SettingHandler[V, R]
    render: Callable[[R], BaseModel]

    def get(self, request: Request, context: RequestContext, account: str | None) -> Response:
        """Respond with the setting of an account or, for None, the organisation, and its entity tag, or with 304."""
        record = self.handler.read(context, account)
        return etag_response(request, self.render(record), record.tag)

    def replace(
        self, context: RequestContext, account: str | None, build: Build[R, V], reason: str, if_match: str | None
    ) -> Response:
        """Replace the setting, and respond with it, or with the proposal to replace it; see `SettingHandler.change`."""
        return self.changed(change_setting(context, self.handler, account, build, reason=reason, tag=if_match))

    def changed(self, result: R | Proposal) -> Response:
        """Respond with the changed setting and its entity tag, or with the proposal to change it."""
        response = changed_or_proposed(result, self.render)
        headers = {} if isinstance(result, Proposal) else {"ETag": result.tag}
        return Response(response.body, response.status, headers, "application/json")
