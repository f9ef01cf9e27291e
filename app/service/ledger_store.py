"""The ledger of a service: its database, the queue of steps, and whether steps can be decided."""

from typing import Final

from app.persistence.database import Database
from app.service.auth.authentication import Principal
from app.service.auth.request_context import RequestContext
from app.service.charging.commit_queue import CommitQueue
from app.service.readiness import CACHE_SECONDS, Readiness


class LedgerStore:
    """The database of a service with its commit queue and readiness (ADR 0043)."""

    def __init__(self, database: Database, readiness_seconds: float = CACHE_SECONDS) -> None:
        self.database: Final = database
        self.charges: Final = CommitQueue(database)
        self.readiness: Final = Readiness(database, readiness_seconds)

    def context(self, caller: Principal, request_id: str | None) -> RequestContext:
        """Build the context of a use case for a caller."""
        moment = self.database.clock.moment(wait=False)
        return RequestContext(self.database, caller, moment.latest, request_id, moment.earliest)

    async def close(self) -> None:
        """Drain the queue, and close the connections."""
        await self.charges.close()
        self.readiness.close()
        self.database.dispose()
