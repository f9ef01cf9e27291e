"""Health checks, without authentication."""

import asyncio
from typing import Annotated, Literal

from fastapi import APIRouter, Request
from pydantic import Field

from app.api.problems import responses
from app.api.route import PlacementsDep, operation_id
from app.api.schemas.common import Output, example
from app.ledger.errors import LedgerUnavailableError
from app.service.background import STOPPING, TaskRegistry
from app.service.monitoring.database_collector import IntegrityMonitor
from app.service.timekeeping import wrong_clock

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

    status: Annotated[
        Literal["ok", "degraded"],
        Field(description="`degraded`: it serves requests, and the other members need attention."),
    ] = "ok"
    unavailable: Annotated[
        dict[str, str] | None,
        Field(description="By placement, why its organisations get 503."),
    ] = None
    integrity_warnings: Annotated[
        dict[str, str] | None,
        Field(description="By placement, warnings about its ledger, at most a minute old: run `verify`."),
    ] = None
    clock_skew: Annotated[
        dict[str, str] | None,
        Field(description="By placement, the clock skew to its database above 5 seconds."),
    ] = None
    stopped_tasks: Annotated[
        list[str] | None,
        Field(description="Background tasks that have ended unexpectedly: restart this process."),
    ] = None


@routes.get("/healthz", summary="Get the liveness")
def get_liveness() -> Health:
    """Succeed while the process runs, regardless of the database."""
    return Health()


@routes.get(
    "/readyz",
    summary="Get the readiness",
    responses=responses("ledger_unavailable"),
    response_model_exclude_none=True,
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
