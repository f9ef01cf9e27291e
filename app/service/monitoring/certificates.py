"""Periodic readings of when certificates expire."""

from datetime import datetime
from typing import Final

from app.persistence.database import Database
from app.service.background import repeat

CHECK_SECONDS: Final = 300.0
"""Interval of the readings, shorter than the alert on stalled background tasks."""


class CertificateMonitor:
    """Latest expiries by certificate; empty until they were read."""

    def __init__(self, database: Database) -> None:
        self.expiries: dict[str, datetime] = {}
        self._database = database

    def check(self) -> None:
        """Read the certificates; after a failure, those known before stay.

        Raises:
            LedgerUnavailableError: they cannot be read.
        """
        self.expiries = self._database.certificate_expiries()

    async def run(self) -> None:
        """Read periodically, until cancelled."""
        await repeat("certificates", "The certificates could not be read", CHECK_SECONDS, self.check, at_once=True)
