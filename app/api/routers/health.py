"""Health: the only endpoints without an API key."""

from typing import Literal

from fastapi import APIRouter
from pydantic import ConfigDict

from app.api.problems import responses
from app.api.route import Db
from app.api.schemas.common import Output
from app.ledger.errors import LedgerUnavailableError
from app.persistence.schema import is_current

routes = APIRouter(tags=["health"])


class HealthOut(Output):
    """The service is well."""

    model_config = ConfigDict(json_schema_extra={"examples": [{"status": "ok"}]})

    status: Literal["ok"] = "ok"


@routes.get("/healthz", operation_id="getHealth", summary="Is the process alive?")
def health() -> HealthOut:
    """Answers while the process runs, whatever the database does."""
    return HealthOut()


@routes.get(
    "/readyz",
    operation_id="getReadiness",
    summary="Can the service decide about steps?",
    responses=responses("ledger_unavailable"),
)
def readiness(db: Db) -> HealthOut:
    """The database can be written, and its tables are those of this version."""
    with db.read() as tx:
        current = is_current(tx)
    if not current:
        raise LedgerUnavailableError("The database needs `epsilon-ledger migrate` before it can be used.")
    if not db.writable():
        raise LedgerUnavailableError("The database takes no writes.")
    return HealthOut()
