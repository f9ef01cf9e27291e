"""Health checks and metrics, without a caller."""

import asyncio
import hmac
from typing import Final, Literal

from fastapi import APIRouter, Request, Response
from fastapi.responses import PlainTextResponse
from pydantic import Field

from app.api.problems import responses
from app.api.route import anonymous_limiter, operation_id, store_of
from app.api.schemas.common import Output, example
from app.ledger.errors import AuthenticationError, LedgerUnavailableError
from app.service.auth.loopback import is_loopback
from app.service.auth.rate_limit import UNAUTHENTICATED
from app.service.background import STOPPING, TaskRegistry
from app.service.monitoring.certificates import CertificateMonitor
from app.service.monitoring.database_collector import DatabaseCollector, IntegrityMonitor
from app.service.monitoring.exposition import exposition
from app.service.monitoring.process_sampler import Sampler
from app.service.timekeeping import wrong_clock

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
    """The service can decide steps, and what needs attention."""

    model_config = example(
        {
            "status": "degraded",
            "unavailable_workers": {"10.0.0.7:5432": "The database does not answer."},
            "integrity_warnings": ["Runs whose chain does not end with their last decision: 1."],
            "clock_skew": "This machine's clock is 3600 s ahead of the database's.",
            "stopped_tasks": ["maintenance"],
        }
    )

    status: Literal["ok", "degraded"] = Field(
        default="ok", description="`degraded`: it serves requests, and the other members need attention."
    )
    unavailable_workers: dict[str, str] | None = Field(
        default=None, description="By worker of a Citus cluster, why its organisations get 503."
    )
    integrity_warnings: list[str] | None = Field(
        default=None, description="Warnings about the ledger, at most a minute old: run `verify`."
    )
    clock_skew: str | None = Field(default=None, description="The clock skew to the database above 5 seconds.")
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
async def get_readiness(request: Request) -> Readiness:
    """Succeed if the database can take a step, by a rehearsal at most a second old.

    One unavailable worker of a Citus cluster does not make the service unready, because that would stop the other
    workers' organisations. Nor do quarantines and integrity warnings, because every replica has the same ledger.
    """
    if getattr(request.state, STOPPING, False):
        raise LedgerUnavailableError("This process is stopping.")
    store = store_of(request)
    trouble = await store.readiness.trouble()
    if trouble is not None:
        raise LedgerUnavailableError(trouble)
    integrity: IntegrityMonitor = request.app.state.integrity
    background: TaskRegistry = request.app.state.background
    found = {
        "unavailable_workers": dict(store.readiness.workers),
        "integrity_warnings": [] if integrity.warnings is None else list(integrity.warnings.messages()),
        "clock_skew": wrong_clock(store.database.clock),
        "stopped_tasks": background.ended,
    }
    wrong = {name: facts for name, facts in found.items() if facts}
    return Readiness(status="degraded" if wrong else "ok", **wrong)


@routes.get(
    "/metrics",
    summary="Get the Prometheus metrics",
    response_class=PlainTextResponse,
    responses={200: {"content": {"text/plain": {"example": _EXAMPLE}}}, **responses("unauthenticated", "rate_limited")},
)
async def get_metrics(request: Request) -> Response:
    """Get the metrics of all workers on this port and of the ledger, at most a few seconds old.

    If the service has a metrics token, it is required (`Authorization: Bearer …`), and the accounts with the largest
    used shares are listed by organisation. Otherwise metrics are answered to the service's own machine, without names.
    """
    token: str | None = request.app.state.metrics_token
    address = request.client.host if request.client else ""
    with anonymous_limiter(request).refund_unless(UNAUTHENTICATED, address):
        if token is None:
            _require_this_machine(request, address)
        else:
            _require(request.headers.getlist("authorization"), token)
    ledger_stats: DatabaseCollector = request.app.state.ledger_stats
    sampler: Sampler = request.app.state.sampler
    snapshot = await ledger_stats.collect()
    sampler.sample()
    named = 0 if token is None else request.app.state.metrics_top_accounts
    accept = request.headers.get("accept", "")
    integrity: IntegrityMonitor = request.app.state.integrity
    certificates: CertificateMonitor = request.app.state.certificates
    clock = store_of(request).database.clock
    now = clock.now() if clock.known else None
    text, media_type = await asyncio.to_thread(
        exposition, snapshot, integrity.warnings, certificates.expiries, named=named, accept=accept, now=now
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
