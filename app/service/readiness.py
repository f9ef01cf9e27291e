"""Whether the database can take a step."""

import asyncio
import logging
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from time import monotonic
from typing import Final

from app.persistence import database
from app.persistence.database import Database
from app.persistence.write_probe import Fault, Rehearsal, rehearse_everywhere

CACHE_SECONDS: Final = 1.0
"""Lifetime of a result, so that frequent probes cost no more than one."""

ANSWERED_SECONDS: Final = 1.5
"""Maximum time of a probe; health checks of proxies time out after two seconds."""

LATE: Final = "The database takes longer than {:g} s for a step's statements."

_logger = logging.getLogger(__name__)


@dataclass
class Readiness:
    """Readiness of a database, from rehearsed steps in a separate thread.

    Rehearsals run one at a time; used from one event loop.

    Args:
        database: rehearses the steps.
        cache_seconds: lifetime of a result.
    """

    database: Database
    cache_seconds: float = CACHE_SECONDS
    _began_at: float = 0.0
    _rehearsal: "asyncio.Future[Rehearsal] | None" = None
    _logged: str | None = None
    _locked_since: float | None = None
    _workers: Mapping[str, str] = field(default_factory=dict)
    _thread: ThreadPoolExecutor = field(default_factory=lambda: ThreadPoolExecutor(1, "readiness"))

    async def trouble(self) -> str | None:
        """Get the reason why steps cannot be decided, if any."""
        if self._rehearsal is None or (self._rehearsal.done() and monotonic() - self._began_at >= self.cache_seconds):
            self._began_at = monotonic()
            loop = asyncio.get_running_loop()
            self._rehearsal = loop.run_in_executor(self._thread, rehearse_everywhere, self.database)
        left = self._began_at + ANSWERED_SECONDS - monotonic()
        await asyncio.wait([self._rehearsal], timeout=max(0.0, left))
        trouble: str | None = LATE.format(ANSWERED_SECONDS)
        if self._rehearsal.done():
            trouble = self._judged(self._rehearsal.result().fault)
            self._note_workers(self._rehearsal.result().workers)
        if trouble != self._logged:
            _logger.warning("Readiness: %s", trouble or "steps can be decided again.")
            self._logged = trouble
        return trouble

    @property
    def workers(self) -> Mapping[str, str]:
        """By the worker of a Citus cluster, as HOST:PORT, why its organisations get 503; by the last rehearsal."""
        return self._workers

    def _note_workers(self, found: Mapping[str, str]) -> None:
        for worker in sorted(found.keys() ^ self._workers.keys()):
            _logger.warning("The worker %s: %s", worker, found.get(worker, "its organisations are served again."))
        self._workers = found

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
