"""Readiness of a placement's database to decide steps."""

import asyncio
import logging
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from time import monotonic
from typing import Final

from app.persistence import database
from app.persistence.database import Database
from app.persistence.rehearsal import Fault, rehearse

CACHE_SECONDS = 1.0
"""Lifetime of a result, so that frequent probes cost no more than one."""

ANSWERED_SECONDS: Final = 1.5
"""Maximum time of a probe; health checks of proxies time out after two seconds."""

LATE: Final = "The database takes longer than {:g} s for a step's statements."

_logger = logging.getLogger(__name__)


@dataclass
class Readiness:
    """Readiness of one database, from rehearsed steps in a separate thread.

    Rehearsals run one at a time; used from one event loop.
    """

    name: str
    database: Database
    _began_at: float = 0.0
    _rehearsal: "asyncio.Future[Fault | None] | None" = None
    _told: str | None = None
    _locked_since: float | None = None
    _thread: ThreadPoolExecutor = field(default_factory=lambda: ThreadPoolExecutor(1, "readiness"))

    async def trouble(self) -> str | None:
        """Get the reason why steps cannot be decided, if any."""
        if self._rehearsal is None or (self._rehearsal.done() and monotonic() - self._began_at >= CACHE_SECONDS):
            self._began_at = monotonic()
            self._rehearsal = asyncio.get_running_loop().run_in_executor(self._thread, rehearse, self.database)
        left = self._began_at + ANSWERED_SECONDS - monotonic()
        await asyncio.wait([self._rehearsal], timeout=max(0.0, left))
        trouble = self._judged(self._rehearsal.result()) if self._rehearsal.done() else LATE.format(ANSWERED_SECONDS)
        if trouble != self._told:
            _logger.warning("The placement %s: %s", self.name, trouble or "steps can be decided again.")
            self._told = trouble
        return trouble

    def _judged(self, fault: Fault | None) -> Fault | None:
        """Ignore a lock for as long as a step would wait for it."""
        if fault is not Fault.LOCKED:
            self._locked_since = None
            return fault
        if self._locked_since is None:
            self._locked_since = self._began_at
        return fault if monotonic() - self._locked_since >= database.LOCK_TIMEOUT_SECONDS else None

    def close(self) -> None:
        """Start no further rehearsal."""
        self._thread.shutdown(wait=False, cancel_futures=True)
