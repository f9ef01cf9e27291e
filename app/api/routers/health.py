"""Health: the only endpoints without an API key."""

import asyncio
from typing import Annotated, Literal

from fastapi import APIRouter
from pydantic import ConfigDict, Field

from app.api.problems import responses
from app.api.route import Everywhere
from app.api.schemas.common import Output
from app.ledger.errors import LedgerUnavailableError

routes = APIRouter(tags=["health"])


class HealthOut(Output):
    """The service is well."""

    model_config = ConfigDict(json_schema_extra={"examples": [{"status": "ok"}]})

    status: Literal["ok"] = "ok"


class ReadinessOut(Output):
    """Which organisations the service can decide about."""

    model_config = ConfigDict(
        json_schema_extra={
            "examples": [{"status": "degraded", "unavailable": {"eu-2": "The database does not answer."}}]
        }
    )

    status: Annotated[
        Literal["ok", "degraded"], Field(description="`degraded`: organisations on some placements get 503.")
    ] = "ok"
    unavailable: Annotated[
        dict[str, str] | None, Field(description="What is wrong, by placement; left out where nothing is.")
    ] = None


@routes.get("/healthz", operation_id="getHealth", summary="Is the process alive?")
def health() -> HealthOut:
    """Answers while the process runs, whatever the database does."""
    return HealthOut()


@routes.get(
    "/readyz",
    operation_id="getReadiness",
    summary="Can the service decide about steps?",
    responses=responses("ledger_unavailable"),
    response_model_exclude_none=True,
)
async def readiness(placements: Everywhere) -> ReadinessOut:
    """The database can be written, and its tables are those of this version; of several, at least one.

    A service is not taken out of use for one placement that is down: that would stop the others' organisations too.
    """
    asked = [asyncio.to_thread(placement.trouble) for placement in placements]
    troubles = dict(zip(placements.databases, await asyncio.gather(*asked), strict=True))
    unavailable = {placement: why for placement, why in troubles.items() if why is not None}
    if len(unavailable) == len(troubles):
        one = len(troubles) == 1
        whys = [why if one else f"{placement}: {why}" for placement, why in unavailable.items()]
        raise LedgerUnavailableError(" ".join(whys))
    return ReadinessOut(status="degraded", unavailable=unavailable) if unavailable else ReadinessOut()
