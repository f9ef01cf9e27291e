"""Metrics in the Prometheus exposition formats, over HTTP."""

import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from datetime import datetime
from operator import itemgetter
from pathlib import Path
from typing import Final, TypeVar

from prometheus_client import CollectorRegistry
from prometheus_client.exposition import choose_encoder
from prometheus_client.metrics_core import GaugeMetricFamily, Metric
from prometheus_client.multiprocess import MultiProcessCollector
from prometheus_client.registry import Collector

from app.ledger.accounts.account import AccountKind
from app.ledger.scheduling.account_status import NEARLY_EXHAUSTED, AccountStatus
from app.service.metrics import REGISTRY
from app.service.monitoring.database_collector import IntegrityWarnings, LedgerSnapshot, LedgerStats

T = TypeVar("T")
Described = Sequence[tuple[str, str, Callable[[T, datetime], float | None]]]
"""Name, help and reader of each metric; the reader gets the statistics and the time."""

SHARED_FOLDER: Final = "PROMETHEUS_MULTIPROC_DIR"
"""Environment variable of prometheus_client with the folder that the workers share."""

THRESHOLDS: Final = (0.5, 0.8, 0.95, 1.0)


def exposition(
    snapshot: LedgerSnapshot,
    warnings: IntegrityWarnings | None,
    expiries: Mapping[str, datetime],
    *,
    named: int,
    accept: str,
    now: datetime | None,
) -> tuple[bytes, str]:
    """Render the metrics of all workers and the ledger; return text and media type.

    Args:
        snapshot: of the ledger.
        warnings: of its integrity; None: it was not checked yet.
        expiries: of certificates.
        named: how many populations, and as many budgets, are listed by used share.
        accept: the header of the request.
        now: by the database's clock; None: not known.
    """
    registry = CollectorRegistry()
    if SHARED_FOLDER in os.environ:
        registry.register(_WorkersCollector(Path(os.environ[SHARED_FOLDER])))
    else:
        registry.register(_StaticCollector(REGISTRY.collect()))
    registry.register(_StaticCollector(_numbers(warnings, _INTEGRITY_METRICS, now)))
    registry.register(_StaticCollector(_of_ledger(snapshot, named, now)))
    registry.register(_StaticCollector(_of_server(expiries, now)))
    encode, media_type = choose_encoder(accept)
    return encode(registry), media_type


class _WorkersCollector(Collector):
    """Collector of the metrics files of all workers.

    The package fails on empty files (prometheus/client_python#1199), which a worker leaves if it is killed early.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def collect(self) -> Iterable[Metric]:
        files = [str(file) for file in self._folder.glob("*.db") if _has_content(file)]
        merged: Iterable[Metric] = MultiProcessCollector.merge(files)  # type: ignore[no-untyped-call]
        return merged


def _has_content(file: Path) -> bool:
    """Return whether a file has content; a file deleted meanwhile has none."""
    try:
        return file.stat().st_size > 0
    except FileNotFoundError:
        return False


class _StaticCollector(Collector):
    def __init__(self, metrics: Iterable[Metric]) -> None:
        self._metrics = metrics

    def collect(self) -> Iterable[Metric]:
        return self._metrics


def _of_ledger(snapshot: LedgerSnapshot, named: int, now: datetime | None) -> Iterator[Metric]:
    yield _gauge("ready", "1 if steps can be decided, 0 otherwise.", snapshot.unavailable_reason is None)
    yield _gauge(
        "citus_workers_unavailable",
        "Workers of a Citus cluster whose organisations get 503.",
        snapshot.unavailable_workers,
    )
    yield from _numbers(snapshot.stats, _LEDGER_METRICS, now)
    disk = snapshot.disk
    yield _gauge(
        "database_disk_free_bytes", "Free bytes of a SQLite file's file system.", None if disk is None else disk.free
    )
    yield _gauge(
        "database_disk_size_bytes", "Bytes of a SQLite file's file system.", None if disk is None else disk.size
    )
    yield from _labelled(snapshot.stats)
    if named:
        yield from _named([] if snapshot.stats is None else list(snapshot.stats.uses), named)


def _numbers(found: T | None, described: Described[T], now: datetime | None) -> Iterator[Metric]:
    """Yield gauges, without a value where there is none or the clock is not known."""
    for name, help_text, value in described:
        yield _gauge(name, help_text, None if found is None or now is None else value(found, now))


def _of_server(expiries: Mapping[str, datetime], now: datetime | None) -> Iterator[Metric]:
    """Yield the clock of the database, and when the certificates of connections to it expire."""
    time = None if now is None else now.timestamp()
    yield _gauge("database_time_seconds", "Clock of the database since the epoch.", time)
    expiry = GaugeMetricFamily(
        "epsilon_ledger_certificate_expiry_timestamp_seconds",
        "Expiry of the certificates of connections to PostgreSQL.",
        labels=("certificate",),
    )
    for certificate, moment in expiries.items():
        expiry.add_metric([certificate], moment.timestamp())
    yield expiry


def _age(moment: datetime | None, now: datetime) -> float:
    return 0.0 if moment is None else max(0.0, (now - moment).total_seconds())


def _signed_at(found: LedgerStats, _: datetime) -> float | None:
    latest = None if found.signing is None else found.signing.latest
    return None if latest is None else latest.timestamp()


def _unsigned(found: LedgerStats, now: datetime) -> float | None:
    return None if found.signing is None else _age(found.signing.unsigned_since, now)


_INTEGRITY_METRICS: Final[Described[IntegrityWarnings]] = (
    ("accounts_quarantined", "Accounts in quarantine.", lambda each, _: each.quarantined),
    (
        "run_chain_mismatches",
        "Runs in progress whose chain does not end with their last decision.",
        lambda each, _: each.heads.wrong_runs,
    ),
    (
        "checkpoint_mismatches",
        "Organisations whose last checkpoint does not match the audit log.",
        lambda each, _: each.heads.wrong_checkpoints,
    ),
)

_LEDGER_METRICS: Final[Described[LedgerStats]] = (
    ("organisations", "Organisations.", lambda each, _: each.organisations),
    (
        "accounts_pending_refresh",
        "Changed populations and budgets whose used share is not read yet.",
        lambda each, _: each.unread,
    ),
    ("alert_deliveries_pending", "Deliveries without acknowledgement.", lambda each, _: each.backlog.pending),
    (
        "alert_oldest_pending_delivery_age_seconds",
        "Age of the oldest pending delivery.",
        lambda each, now: _age(each.backlog.oldest, now),
    ),
    ("waiting_reservations", "Reservations that wait for budget.", lambda each, _: each.waiting.reservations),
    (
        "oldest_waiting_reservation_age_seconds",
        "Time that the oldest of them has waited.",
        lambda each, now: _age(each.waiting.oldest, now),
    ),
    ("receivers_disabled", "Disabled receivers.", lambda each, _: each.backlog.disabled),
    ("receivers_failing", "Receivers whose last delivery failed.", lambda each, _: each.backlog.failing),
    ("last_checkpoint_timestamp_seconds", "Time of the last checkpoint.", _signed_at),
    ("oldest_unsigned_entry_age_seconds", "Age of the oldest audit event or decision without a signature.", _unsigned),
)


def _labelled(stats: LedgerStats | None) -> Iterator[Metric]:
    runs = GaugeMetricFamily("epsilon_ledger_runs", "Runs, by status.", labels=("status",))
    kinds = GaugeMetricFamily("epsilon_ledger_accounts", "Populations and budgets.", labels=("kind",))
    full = GaugeMetricFamily(
        "epsilon_ledger_accounts_over_threshold",
        "Populations and budgets of whose capacity at least this share is used.",
        labels=("kind", "threshold"),
    )
    exhausted = GaugeMetricFamily(
        "epsilon_ledger_accounts_nearly_exhausted",
        "Populations and budgets of whose limit at most 2 % can still be taken, now or when more is unlocked.",
        labels=("kind",),
    )
    if stats is not None:
        for status, count in sorted(stats.runs.items()):
            runs.add_metric([status], count)
        for kind in (AccountKind.POPULATION, AccountKind.BUDGET):
            theirs = [use for use in stats.uses if use.kind is kind]
            kinds.add_metric([str(kind)], len(theirs))
            exhausted.add_metric([str(kind)], sum(use.used_along_path >= NEARLY_EXHAUSTED for use in theirs))
            for threshold in THRESHOLDS:
                full.add_metric([str(kind), f"{threshold:g}"], sum(use.used >= threshold for use in theirs))
    yield from (runs, kinds, full, exhausted)


def _named(uses: list[AccountStatus], most: int) -> Iterator[Metric]:
    """Yield the used shares of the fullest populations and budgets: those of which the least can be taken."""
    labels = ("organisation", "kind", "account")
    used = GaugeMetricFamily(
        "epsilon_ledger_account_used_ratio",
        "Used share of the capacity, of the fullest accounts.",
        labels=labels,
    )
    left = GaugeMetricFamily(
        "epsilon_ledger_account_left_ratio",
        "Share of the capacity that can be taken now, by the limit and those above, of the fullest accounts.",
        labels=labels,
    )
    unlocked = GaugeMetricFamily(
        "epsilon_ledger_account_unlocked_ratio",
        "Unlocked part of the limit, of the accounts that unlock theirs in parts, the least first.",
        labels=labels,
    )
    uses.sort(key=lambda use: (use.used_along_path, use.used), reverse=True)
    for kind in (AccountKind.POPULATION, AccountKind.BUDGET):
        for use in [use for use in uses if use.kind is kind][:most]:
            named = [use.organisation_id, str(kind), use.path]
            used.add_metric(named, use.used)
            left.add_metric(named, use.left)
        parts = [(use.locked.part, use) for use in uses if use.kind is kind and use.locked is not None]
        for part, use in sorted(parts, key=itemgetter(0))[:most]:
            unlocked.add_metric([use.organisation_id, str(kind), use.path], part)
    yield from (used, left, unlocked)


def _gauge(name: str, help_text: str, value: float | None) -> Metric:
    """Build a gauge; None: without a value."""
    return GaugeMetricFamily(f"epsilon_ledger_{name}", help_text, value)
