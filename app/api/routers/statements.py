"""Signed privacy statements of runs and populations."""

from typing import Annotated, Any, Final

from fastapi import Depends, Request, Response

from app.api.problems import READ_ERRORS, responses
from app.api.route import ContextDep, SignerDep, etag_response, router
from app.api.schemas.checkpoints import Statement
from app.api.schemas.registry_entries import RegistryEntry
from app.api.statement_html import POLICY, page_of
from app.ledger.audit import canonical
from app.service.audit.registry_entries import population_entry, run_entry
from app.service.audit.statements import Issuer, population_statement, run_statement

routes = router("statements")

_PROBLEMS: Final = responses(*READ_ERRORS, "account_quarantined", "signing_not_configured")
_HTML: Final = {"text/html": {"schema": {"type": "string"}, "example": "<!DOCTYPE html>…"}}
_AS_JSON: Final[dict[str, Any]] = {"response_model": Statement, "responses": _PROBLEMS}
_AS_PAGE: Final[dict[str, Any]] = {
    "response_class": Response,
    "responses": {200: {"content": _HTML, "description": "OK"}} | _PROBLEMS,
}


async def _issuer(request: Request, signer: SignerDep) -> Issuer:
    # Not the host of the request, which the caller writes.
    return Issuer(signer, request.app.state.public_url)


IssuerDep = Annotated[Issuer, Depends(_issuer)]


@routes.get("/runs/{run_id}/statement", summary="Get the signed statement of a run", **_AS_JSON)
def get_run_statement(run_id: str, context: ContextDep, issuer: IssuerDep) -> Response:
    """Get what a run released and adds to the loss of its people, their total, and what both limits guarantee."""
    return _json(run_statement(context, run_id, issuer))


@routes.get("/runs/{run_id}/statement.html", summary="Get the statement of a run as HTML", **_AS_PAGE)
def get_run_statement_html(run_id: str, context: ContextDep, issuer: IssuerDep) -> Response:
    """Get the same statement as a page to read and print, with the signed document in it."""
    return _page(run_statement(context, run_id, issuer))


@routes.get("/populations/{population_id}/statement", summary="Get the signed statement of a population", **_AS_JSON)
def get_population_statement(population_id: str, context: ContextDep, issuer: IssuerDep) -> Response:
    """Get the total loss of a population, the runs that it was spent on, and what its limit guarantees."""
    return _json(population_statement(context, population_id, issuer))


@routes.get(
    "/populations/{population_id}/statement.html", summary="Get the statement of a population as HTML", **_AS_PAGE
)
def get_population_statement_html(population_id: str, context: ContextDep, issuer: IssuerDep) -> Response:
    """Get the same statement as a page to read and print, with the signed document in it."""
    return _page(population_statement(context, population_id, issuer))


@routes.read(
    "/runs/{run_id}/registry-entry",
    "Get the entry of a run for the public registry of deployments",
    RegistryEntry,
    *READ_ERRORS,
    "account_quarantined",
)
def get_run_registry_entry(run_id: str, request: Request, context: ContextDep) -> Response:
    """Get what the ledger knows and people wrote about a run as an entry, and what the entry still lacks."""
    return etag_response(request, RegistryEntry.of(run_entry(context, run_id)))


@routes.read(
    "/populations/{population_id}/registry-entry",
    "Get the entry of a population for the public registry of deployments",
    RegistryEntry,
    *READ_ERRORS,
    "account_quarantined",
)
def get_population_registry_entry(population_id: str, request: Request, context: ContextDep) -> Response:
    """Get what the ledger knows and people wrote about all releases of a population as an entry, and what it lacks."""
    return etag_response(request, RegistryEntry.of(population_entry(context, population_id)))


def _json(document: dict[str, Any]) -> Response:
    return Response(canonical(document), media_type="application/json")


def _page(document: dict[str, Any]) -> Response:
    return Response(page_of(document), 200, {"Content-Security-Policy": POLICY}, "text/html; charset=utf-8")
