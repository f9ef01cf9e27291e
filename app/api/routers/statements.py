"""Statements: for those who publish a model, and for those whose data it was trained on."""

from typing import Any, Final

from fastapi import Response

from app.api.problems import READ_ERRORS, responses
from app.api.route import ContextDep, SignerDep, router
from app.api.schemas.statements import Statement
from app.api.statement_html import POLICY, page_of
from app.ledger.hash_chain import canonical
from app.service.audit.statements import population_statement, run_statement
from app.service.signatures import required

routes = router()

_PROBLEMS: Final = responses(*READ_ERRORS, "account_quarantined", "signing_not_configured")
_HTML: Final = {"text/html": {"schema": {"type": "string"}, "example": "<!DOCTYPE html>…"}}
_AS_JSON: Final[dict[str, Any]] = {"tags": ["statements"], "response_model": Statement, "responses": _PROBLEMS}
_AS_PAGE: Final[dict[str, Any]] = {
    "tags": ["statements"],
    "response_class": Response,
    "responses": {200: {"content": _HTML, "description": "OK"}} | _PROBLEMS,
}


@routes.get(
    "/runs/{run_id}/statement",
    operation_id="getRunStatement",
    summary="Get the signed statement of a run",
    **_AS_JSON,
)
def get_run_statement(run_id: str, call: ContextDep, signer: SignerDep) -> Response:
    """Mechanisms, steps, loss by the filter and by the tightest accountant, what is covered and what is not."""
    return _json(run_statement(call, run_id, required(signer)))


@routes.get(
    "/runs/{run_id}/statement.html",
    operation_id="getRunStatementHtml",
    summary="Get the statement of a run as HTML",
    **_AS_PAGE,
)
def get_run_statement_html(run_id: str, call: ContextDep, signer: SignerDep) -> Response:
    """The same as JSON says, to be read and printed."""
    return _page(run_statement(call, run_id, required(signer)))


@routes.get(
    "/populations/{population_id}/statement",
    operation_id="getPopulationStatement",
    summary="Get the signed statement of a population",
    **_AS_JSON,
)
def get_population_statement(population_id: str, call: ContextDep, signer: SignerDep) -> Response:
    """These people have lost at most this much, to these models."""
    return _json(population_statement(call, population_id, required(signer)))


@routes.get(
    "/populations/{population_id}/statement.html",
    operation_id="getPopulationStatementHtml",
    summary="Get the statement of a population as HTML",
    **_AS_PAGE,
)
def get_population_statement_html(population_id: str, call: ContextDep, signer: SignerDep) -> Response:
    """The same as JSON says, to be read and printed."""
    return _page(population_statement(call, population_id, required(signer)))


def _json(document: dict[str, Any]) -> Response:
    return Response(canonical(document), media_type="application/json")


def _page(document: dict[str, Any]) -> Response:
    return Response(page_of(document), 200, {"Content-Security-Policy": POLICY}, "text/html; charset=utf-8")
