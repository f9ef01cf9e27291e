"""Balances that are wrong and right again, and two persons who lift a quarantine."""

from datetime import UTC, datetime

from app.persistence.database import ALL_TENANTS
from tests.api.trainer import approve
from tests.conftest import Ledger
from tests.service.tampering import TEAM, account, shift_curve, tampering

NOW = datetime(2026, 12, 1, 12, tzinfo=UTC)
REASON = {"reason": "The rows were restored from the backup of the night."}


def shift(ledger: Ledger, units: int, *paths: str) -> None:
    """Change what a budget has spent, or other accounts."""
    with tampering(ledger.database) as tx:
        for path in paths or (TEAM,):
            shift_curve(tx, path, units)


def lift(ledger: Ledger, path: str) -> None:
    """An auditor proposes, an admin approves."""
    with ledger.database.read(ALL_TENANTS) as tx:
        stopped = account(tx, path).id
    approve(ledger, ledger.post(f"/v1/accounts/{stopped}/quarantine/lift", REASON, "auditor"), "admin")
