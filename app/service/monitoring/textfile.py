"""Metrics in files for the node exporter."""

from collections.abc import Mapping
from datetime import datetime
from pathlib import Path

from prometheus_client import CollectorRegistry, Gauge, write_to_textfile

from app.ledger.errors import InvalidInputError
from app.service.backups import BackupReport
from app.service.verification.report import VerificationReport


def write_verification(file: Path, found: VerificationReport, seconds: float, now: datetime) -> None:
    """Write the metrics of a verification that took `seconds`, atomically.

    The file is in the folder of the node exporter's textfile collector; its name ends with .prom.

    Raises:
        InvalidInputError: the file cannot be written.
    """
    gauges = {
        "timestamp_seconds": ("Time of the last verification of the ledger.", now.timestamp()),
        "duration_seconds": ("Duration of the last verification.", seconds),
        "discrepancies": ("Discrepancies of balances and chains.", len(found.problems)),
        "unproven_accounts": ("Accounts without a proven balance.", len(found.unproven)),
        "accounts": ("Recomputed accounts.", found.checked["accounts"]),
        "decisions": ("Verified decisions.", found.checked["decisions"]),
    }
    _write_gauges(file, "verification", gauges)


def write_backup_verification(file: Path, report: BackupReport, seconds: float, now: datetime) -> None:
    """Write the metrics of a verified backup, as `write_verification`.

    Raises:
        InvalidInputError: the file cannot be written.
    """
    gauges = {
        "verification_timestamp_seconds": ("Time of the last verification of a backup.", now.timestamp()),
        "verification_duration_seconds": ("Duration of the last verification of a backup.", seconds),
        "discrepancies": ("Discrepancies of the last verified backup.", len(report.problems)),
        "newest_entry_timestamp_seconds": (
            "Time of the newest entry of the last verified backup.",
            0.0 if report.newest_at is None else report.newest_at.timestamp(),
        ),
        "missing_decisions": ("Decisions of the ledger that the backup lacks.", report.decisions_since),
    }
    _write_gauges(file, "backup", gauges)


def _write_gauges(file: Path, kind: str, gauges: Mapping[str, tuple[str, float]]) -> None:
    registry = CollectorRegistry()
    for name, (help_text, value) in gauges.items():
        Gauge(f"epsilon_ledger_{kind}_{name}", help_text, registry=registry).set(value)
    try:
        write_to_textfile(str(file), registry)
    except OSError as error:
        raise InvalidInputError(f"The metrics cannot be written: {error}") from error
