"""The ledger of a service: its database, the queue of steps, and the tasks that keep it."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Final

from app.persistence.database import Database
from app.service.alerts.alert_sender import AlertSender
from app.service.alerts.delivery_worker import deliver
from app.service.auth.authentication import Principal
from app.service.auth.request_context import RequestContext
from app.service.background import TaskRegistry
from app.service.charging.commit_queue import CommitQueue
from app.service.maintenance import run_maintenance, run_wal_checkpoints
from app.service.readiness import Readiness
from app.service.timekeeping import keep_time


class LedgerStore:
    """The database of a service with its commit queue and readiness (ADR 0043)."""

    def __init__(self, database: Database) -> None:
        self.database: Final = database
        self.charges: Final = CommitQueue(database)
        self.readiness: Final = Readiness(database)

    def context(self, caller: Principal, request_id: str | None) -> RequestContext:
        """Build the context of a use case for a caller."""
        moment = self.database.clock.moment(wait=False)
        return RequestContext(self.database, caller, moment.latest, request_id, moment.earliest)

    @asynccontextmanager
    async def lifespan(self, background: TaskRegistry, sender: AlertSender) -> AsyncIterator[None]:
        """Run the background tasks; at the end, drain the queue and close connections.

        Args:
            background: registry of the tasks, which is stopped at the end.
            sender: sends alerts, and is closed at the end.
        """
        background.start("clock", keep_time(self.database.clock))
        background.start("maintenance", run_maintenance(self.database))
        background.start("deliveries", deliver(self.database, sender))
        if self.database.dialect == "sqlite":
            background.start("wal", run_wal_checkpoints(self.database))
        try:
            yield
        finally:
            await background.stop()
            await sender.close()
            await self.charges.close()
            self.readiness.close()
            self.database.dispose()
