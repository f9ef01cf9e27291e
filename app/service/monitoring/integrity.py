"""Whether the ledgers look sound: what `verify` has stopped, and whether every chain ends as it is said to.

This is no proof. `epsilon-ledger verify` recomputes everything and takes as long as that takes; this reads the last
link of each chain that is still growing, once a minute and beside the requests. It notices a last decision that was
changed or removed, rows that were restored without those that belong to them, and a history that was forked behind a
checkpoint.
"""

import asyncio
import logging
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from sqlalchemy.exc import SQLAlchemyError

from app.ledger.errors import LedgerError
from app.persistence.database import ALL_TENANTS, error_summary
from app.persistence.repositories import monitoring_queries
from app.persistence.repositories.monitoring_queries import Heads
from app.service.metrics import counters
from app.service.placements import Placement

LOOK_SECONDS: Final = 60.0

_logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class IntegrityWarnings:
    """What was found at the last look.

    Args:
        quarantined: accounts that `verify` has stopped.
        heads: of the chains.
    """

    quarantined: int
    heads: Heads

    def told(self) -> Iterator[str]:
        """Sentences for an operator; none of them names an organisation."""
        if self.quarantined:
            yield f"Accounts that `verify` has stopped, until two persons lift their quarantine: {self.quarantined}."
        if self.heads.wrong_runs:
            yield f"Runs whose chain does not end with their last decision: {self.heads.wrong_runs}."
        if self.heads.wrong_checkpoints:
            yield f"Organisations whose history is not the one that was signed last: {self.heads.wrong_checkpoints}."


class IntegrityMonitor:
    """What was found last, by the name of the placement; nothing is said of one that was not looked at yet."""

    def __init__(self) -> None:
        self.found: dict[str, IntegrityWarnings] = {}

    def look(self, placement: Placement) -> None:
        """Look at one placement's ledger."""
        with placement.database.read(ALL_TENANTS) as tx:
            self.found[placement.name] = IntegrityWarnings(
                monitoring_queries.quarantined(tx), monitoring_queries.heads(tx)
            )

    async def keep_looking(self, placement: Placement) -> None:
        """Look again and again, until cancelled."""
        while True:
            try:
                await asyncio.to_thread(self.look, placement)
                counters.background_done("soundness")
            except (LedgerError, SQLAlchemyError) as error:
                _logger.warning("The ends of the chains could not be looked at: %s", error_summary(error))
            except Exception:
                _logger.exception("The ends of the chains could not be looked at")
            await asyncio.sleep(LOOK_SECONDS)
