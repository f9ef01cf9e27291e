"""Periodic check of quarantines and of the heads of the hash chains.

This is no proof; `epsilon-ledger verify` recomputes everything. Every minute it reads the last link of each growing
chain. That detects a changed or removed last decision, partially restored rows, and a history that was forked after a
checkpoint.
"""

import asyncio
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from app.persistence.database import ALL_TENANTS
from app.persistence.repositories import monitoring_queries
from app.persistence.repositories.monitoring_queries import Heads
from app.service.background import attempt
from app.service.placements import Placement

LOOK_SECONDS: Final = 60.0


@dataclass(frozen=True, slots=True)
class IntegrityWarnings:
    """Number of quarantined accounts, and broken heads of chains, at the last check."""

    quarantined: int
    heads: Heads

    def told(self) -> Iterator[str]:
        """Yield a sentence for each warning, without names of organisations."""
        if self.quarantined:
            yield f"Accounts that `verify` has stopped, until two persons lift their quarantine: {self.quarantined}."
        if self.heads.wrong_runs:
            yield f"Runs whose chain does not end with their last decision: {self.heads.wrong_runs}."
        if self.heads.wrong_checkpoints:
            yield f"Organisations whose history is not the one that was signed last: {self.heads.wrong_checkpoints}."


class IntegrityMonitor:
    """Latest warnings by placement; a placement not checked yet has no entry."""

    def __init__(self) -> None:
        self.found: dict[str, IntegrityWarnings] = {}

    def look(self, placement: Placement) -> None:
        """Check one placement's ledger."""
        with placement.database.read(ALL_TENANTS) as tx:
            self.found[placement.name] = IntegrityWarnings(
                monitoring_queries.quarantined(tx), monitoring_queries.heads(tx)
            )

    async def keep_looking(self, placement: Placement) -> None:
        """Check periodically, until cancelled."""
        while True:
            await attempt("integrity", "The ends of the chains could not be looked at", lambda: self.look(placement))
            await asyncio.sleep(LOOK_SECONDS)
