"""What a verification found, as a file for Prometheus: it runs now and then, and nobody can scrape it."""

from datetime import datetime
from pathlib import Path

from prometheus_client import CollectorRegistry, Gauge, write_to_textfile

from app.service.verification import VerificationReport


def write_found(file: Path, found: VerificationReport, seconds: float, now: datetime) -> None:
    """Write what was found; a reader sees the old file or the new one, and nothing between.

    Args:
        file: in the folder that the node exporter's textfile collector reads; its name ends with .prom.
        found: by a verification of the whole ledger.
        seconds: how long it took.
        now: when it ended, in UTC.

    Raises:
        OSError: it cannot be written.
    """
    registry = CollectorRegistry()
    told = {
        "timestamp_seconds": ("When the whole ledger was verified last.", now.timestamp()),
        "duration_seconds": ("How long that took.", seconds),
        "problems": ("What does not follow from its charges, or breaks a chain.", len(found.problems)),
        "unproven_accounts": ("Accounts whose balance is not proven.", len(found.unproven)),
        "accounts": ("Accounts that were recomputed.", found.accounts),
        "decisions": ("Decisions whose chains were walked.", found.decisions),
    }
    for name, (help_text, value) in told.items():
        Gauge(f"epsilon_ledger_verification_{name}", help_text, registry=registry).set(value)
    write_to_textfile(str(file), registry)
