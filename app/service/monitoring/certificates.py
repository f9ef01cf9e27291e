"""Periodic readings of when certificates expire."""

import asyncio
from datetime import datetime
from typing import Final

from app.service.background import attempt
from app.service.placements import Placement

CHECK_SECONDS: Final = 300.0
"""Interval of the readings, shorter than the alert on stalled background tasks."""


class CertificateMonitor:
    """Latest expiries by placement and certificate; a placement that was not read has no entry."""

    def __init__(self) -> None:
        self.expiries: dict[str, dict[str, datetime]] = {}

    def check(self, placement: Placement) -> None:
        """Read one placement's certificates; after a failure, those known before stay.

        Raises:
            LedgerUnavailableError: they cannot be read.
        """
        self.expiries[placement.name] = placement.database.certificate_expiries()

    async def run(self, placement: Placement) -> None:
        """Read periodically, until cancelled."""
        failure = f"The certificates of the placement {placement.name} could not be read"
        while True:
            await attempt("certificates", failure, lambda: self.check(placement))
            await asyncio.sleep(CHECK_SECONDS)
