"""Health checks and metrics, without a caller."""

import asyncio
import hmac
from typing import Final, Literal

from fastapi import APIRouter, Request, Response
from fastapi.responses import PlainTextResponse
from pydantic import Field

from app.api.problems import responses
from app.api.route import PlacementsDep, anonymous_limiter, operation_id
from app.api.schemas.common import Output, example
from app.ledger.errors import AuthenticationError, LedgerUnavailableError
from app.service.auth.loopback import is_loopback
from app.service.background import STOPPING, TaskRegistry
from app.service.monitoring.certificates import CertificateMonitor
from app.service.monitoring.database_collector import DatabaseCollector, IntegrityMonitor
from app.service.monitoring.exposition import exposition
from app.service.monitoring.process_sampler import Sampler
from app.service.placements import wrong_clock

_EXAMPLE: Final = """# HELP epsilon_ledger_decisions_total Answers to requests for steps, by outcome.
# TYPE epsilon_ledger_decisions_total counter
epsilon_ledger_decisions_total{outcome="admitted"} 1204.0
"""

_FORWARDED: Final = frozenset({"forwarded", "via", "x-forwarded-for", "x-real-ip"})
"""Headers by which a proxy on this machine shows that the caller may be elsewhere."""

routes = APIRouter(tags=["health"], generate_unique_id_function=operation_id)


class Health(Output):
    """The process is alive."""

    model_config = example({"status": "ok"})

    status: Literal["ok"] = "ok"


class Readiness(Output):
    """Placements whose organisations are served."""

    model_config = example(
        {
            "status": "degraded",
            "unavailable": {"eu-2": "The database does not answer."},
            "integrity_warnings": {"default": "Runs whose chain does not end with their last decision: 1."},
            "clock_skew": {"default": "This machine's clock is 3600 s ahead of the database's."},
            "stopped_tasks": ["maintenance:default"],
        }
    )

    status: Literal["ok", "degraded"] = Field(
        default="ok", description="`degraded`: it serves requests, and the other members need attention."
    )
    unavailable: dict[str, str] | None = Field(
        default=None, description="By placement, or by worker of a Citus cluster, why its organisations get 503."
    )
    integrity_warnings: dict[str, str] | None = Field(
        default=None, description="By placement, warnings about its ledger, at most a minute old: run `verify`."
    )
    clock_skew: dict[str, str] | None = Field(
        default=None, description="By placement, the clock skew to its database above 5 seconds."
    )
    stopped_tasks: list[str] | None = Field(
        default=None, description="Background tasks that have ended unexpectedly: restart this process."
    )


@routes.get("/healthz", summary="Get the liveness")
def get_liveness() -> Health:
    """Succeed while the process runs, regardless of the database."""
    return Health()


@routes.get(
    "/readyz", summary="Get the readiness", responses=responses("ledger_unavailable"), response_model_exclude_none=True
)
async def get_readiness(request: Request, placements: PlacementsDep) -> Readiness:
    """Succeed if at least one database can take a step, by a rehearsal at most a second old.

    One unavailable placement does not make the service unready, because that would stop the other placements'
    organisations. Nor do quarantines and integrity warnings, because every replica has the same ledger.
    """
    if getattr(request.state, STOPPING, False):
        raise LedgerUnavailableError("This process is stopping.")
    asked = [placement.readiness.trouble() for placement in placements]
    troubles = dict(zip(placements.databases, await asyncio.gather(*asked), strict=True))
    unavailable = {placement: why for placement, why in troubles.items() if why is not None}
    if len(unavailable) == len(troubles):
        one = len(troubles) == 1
        whys = [why if one else f"{placement}: {why}" for placement, why in unavailable.items()]
        raise LedgerUnavailableError(" ".join(whys))
    for placement in placements:
        if placement.name not in unavailable:
            parts = placement.readiness.workers.items()
            unavailable |= {f"{placement.name}, worker {worker}": why for worker, why in parts}
    integrity: IntegrityMonitor = request.app.state.integrity
    background: TaskRegistry = request.app.state.background
    doubtful = {placement: " ".join(warnings.messages()) for placement, warnings in integrity.warnings.items()}
    wrong = {
        "unavailable": unavailable,
        "integrity_warnings": {placement: why for placement, why in doubtful.items() if why},
        "clock_skew": {
            placement.name: wrong for placement in placements if (wrong := wrong_clock(placement.database.clock))
        },
        "stopped_tasks": background.ended,
    }
    if not any(wrong.values()):
        return Readiness()
    return Readiness(status="degraded", **{name: facts or None for name, facts in wrong.items()})


@routes.get(
    "/metrics",
    summary="Get the Prometheus metrics",
    response_class=PlainTextResponse,
    responses={200: {"content": {"text/plain": {"example": _EXAMPLE}}}, **responses("unauthenticated", "rate_limited")},
)
async def get_metrics(request: Request, placements: PlacementsDep) -> Response:
    """Get the metrics of all workers on this port and of the ledgers, at most a few seconds old.

    If the service has a metrics token, it is required (`Authorization: Bearer …`), and the accounts with the highest
    utilisation are listed by organisation. Otherwise metrics are answered to the service's own machine, without names.
    """
    token: str | None = request.app.state.metrics_token
    address = request.client.host if request.client else ""
    with anonymous_limiter(request).refund_unless(AuthenticationError, address):
        if token is None:
            _require_this_machine(request, address)
        else:
            _require(request.headers.getlist("authorization"), token)
    ledgers: DatabaseCollector = request.app.state.ledgers
    sampler: Sampler = request.app.state.sampler
    snapshots = await ledgers.collect()
    sampler.sample()
    named = 0 if token is None else request.app.state.metrics_top_accounts
    accept = request.headers.get("accept", "")
    integrity: IntegrityMonitor = request.app.state.integrity
    certificates: CertificateMonitor = request.app.state.certificates
    now = {each.name: each.database.clock.now() for each in placements if each.database.clock.known}
    text, media_type = await asyncio.to_thread(
        exposition, snapshots, integrity.warnings, certificates.expiries, named=named, accept=accept, now=now
    )
    return Response(text, media_type=media_type)


def _require_this_machine(request: Request, address: str) -> None:
    """Require that a scrape comes from this machine, and not through a proxy on it.

    Raises:
        AuthenticationError: it comes from elsewhere, or may.
    """
    if not is_loopback(address) or not _FORWARDED.isdisjoint(request.headers):
        raise AuthenticationError(
            "Without a metrics token, metrics are answered to this machine only: give the service one by "
            "EPSILON_LEDGER_METRICS_TOKEN_FILE, and send it as Authorization: Bearer …"
        )


def _require(sent: list[str], token: str) -> None:
    """Require the metrics token.

    Raises:
        AuthenticationError: it is missing or wrong.
    """
    right = f"Bearer {token}".encode()
    if len(sent) != 1 or not hmac.compare_digest(sent[0].encode(), right):
        raise AuthenticationError("Metrics need the token that the service was given for them.")
