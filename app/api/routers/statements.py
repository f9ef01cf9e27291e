"""Signed privacy statements of models and populations."""

from typing import Any, Final

from fastapi import Response

from app.api.problems import READ_ERRORS, responses
from app.api.route import ContextDep, SignerDep, router
from app.api.schemas.checkpoints import Statement
from app.api.statement_html import POLICY, page_of
from app.ledger.audit import canonical
from app.service.audit.statements import population_statement, run_statement

routes = router("statements")

_PROBLEMS: Final = responses(*READ_ERRORS, "account_quarantined", "signing_not_configured")
_HTML: Final = {"text/html": {"schema": {"type": "string"}, "example": "<!DOCTYPE html>…"}}
_AS_JSON: Final[dict[str, Any]] = {"response_model": Statement, "responses": _PROBLEMS}
_AS_PAGE: Final[dict[str, Any]] = {
    "response_class": Response,
    "responses": {200: {"content": _HTML, "description": "OK"}} | _PROBLEMS,
}


@routes.get("/runs/{run_id}/statement", summary="Get the signed statement of a run", **_AS_JSON)
def get_run_statement(run_id: str, context: ContextDep, signer: SignerDep) -> Response:
    """Get a run's mechanisms, steps, and loss by the filter and by the tightest accountant, with their assumptions."""
    return _json(run_statement(context, run_id, signer))


@routes.get("/runs/{run_id}/statement.html", summary="Get the statement of a run as HTML", **_AS_PAGE)
def get_run_statement_html(run_id: str, context: ContextDep, signer: SignerDep) -> Response:
    """Get the same statement as a printable page."""
    return _page(run_statement(context, run_id, signer))


@routes.get("/populations/{population_id}/statement", summary="Get the signed statement of a population", **_AS_JSON)
def get_population_statement(population_id: str, context: ContextDep, signer: SignerDep) -> Response:
    """Get the maximum loss of a population, and the models that it was spent on."""
    return _json(population_statement(context, population_id, signer))


@routes.get(
    "/populations/{population_id}/statement.html", summary="Get the statement of a population as HTML", **_AS_PAGE
)
def get_population_statement_html(population_id: str, context: ContextDep, signer: SignerDep) -> Response:
    """Get the same statement as a printable page."""
    return _page(population_statement(context, population_id, signer))


def _json(document: dict[str, Any]) -> Response:
    return Response(canonical(document), media_type="application/json")


def _page(document: dict[str, Any]) -> Response:
    return Response(page_of(document), 200, {"Content-Security-Policy": POLICY}, "text/html; charset=utf-8")
