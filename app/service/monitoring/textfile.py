"""Verification metrics as a file for the node exporter."""

from datetime import datetime
from pathlib import Path

from prometheus_client import CollectorRegistry, Gauge, write_to_textfile

from app.service.verification import VerificationReport


def write_found(file: Path, found: VerificationReport, seconds: float, now: datetime) -> None:
    """Write the result of a verification atomically.

    Args:
        file: in the folder of the node exporter's textfile collector; the name ends with .prom.
        found: by a verification of the whole ledger.
        seconds: its duration.
        now: when it ended, in UTC.

    Raises:
        OSError: the file cannot be written.
    """
    registry = CollectorRegistry()
    told = {
        "timestamp_seconds": ("Time of the last verification of the ledger.", now.timestamp()),
        "duration_seconds": ("Duration of the last verification.", seconds),
        "discrepancies": ("Discrepancies of balances and chains.", len(found.problems)),
        "unproven_accounts": ("Accounts without a proven balance.", len(found.unproven)),
        "accounts": ("Recomputed accounts.", found.accounts),
        "decisions": ("Verified decisions.", found.decisions),
    }
    for name, (help_text, value) in told.items():
        Gauge(f"epsilon_ledger_verification_{name}", help_text, registry=registry).set(value)
    write_to_textfile(str(file), registry)
