"""Metrics for Prometheus."""

import asyncio
import hmac
from typing import Final

from fastapi import APIRouter, Request, Response
from fastapi.responses import PlainTextResponse

from app.api.problems import responses
from app.api.route import PlacementsDep, anonymous_limiter, operation_id
from app.ledger.errors import AuthenticationError
from app.service.monitoring.database_collector import DatabaseCollector, IntegrityMonitor
from app.service.monitoring.exposition import exposition
from app.service.monitoring.process_sampler import Sampler

_EXAMPLE: Final = """# HELP epsilon_ledger_decisions_total Answers to requests for steps, by outcome.
# TYPE epsilon_ledger_decisions_total counter
epsilon_ledger_decisions_total{outcome="admitted"} 1204.0
"""

routes = APIRouter(tags=["health"], generate_unique_id_function=operation_id)


@routes.get(
    "/metrics",
    summary="Get the Prometheus metrics",
    response_class=PlainTextResponse,
    responses={200: {"content": {"text/plain": {"example": _EXAMPLE}}}, **responses("unauthenticated", "rate_limited")},
)
async def get_metrics(request: Request, placements: PlacementsDep) -> Response:
    """Get the metrics of all workers on this port and of the ledgers, at most a few seconds old.

    If the service has a metrics token, it is required (`Authorization: Bearer …`), and the accounts with the highest
    utilisation are listed by organisation. Otherwise metrics are public, without names.
    """
    token: str | None = request.app.state.metrics_token
    if token is not None:
        address = request.client.host if request.client else ""
        with anonymous_limiter(request).refund_unless(AuthenticationError, address):
            _require(request.headers.getlist("authorization"), token)
    ledgers: DatabaseCollector = request.app.state.ledgers
    sampler: Sampler = request.app.state.sampler
    snapshots = await ledgers.collect()
    sampler.sample()
    named = 0 if token is None else request.app.state.metrics_top_accounts
    accept = request.headers.get("accept", "")
    integrity: IntegrityMonitor = request.app.state.integrity
    now = {each.name: each.database.clock.now() for each in placements if each.database.clock.known}
    text, media_type = await asyncio.to_thread(
        exposition, snapshots, integrity.warnings, named=named, accept=accept, now=now
    )
    return Response(text, media_type=media_type)


def _require(sent: list[str], token: str) -> None:
    """Require the metrics token.

    Raises:
        AuthenticationError: it is missing or wrong.
    """
    right = f"Bearer {token}".encode()
    if len(sent) != 1 or not hmac.compare_digest(sent[0].encode(), right):
        raise AuthenticationError("Metrics need the token that the service was given for them.")
