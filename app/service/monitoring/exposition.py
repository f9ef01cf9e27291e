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

from app.ledger.accounts import AccountKind
from app.service.metrics import REGISTRY
from app.service.monitoring.database_collector import IntegrityWarnings, LedgerStats, PlacementSnapshot, Utilisation
from app.service.queries.account_status import NEARLY_EXHAUSTED

T = TypeVar("T")
Described = Sequence[tuple[str, str, Callable[[T, datetime], float | None]]]
"""Name, help and reader of each metric; the reader gets the statistics and the time."""

SHARED_FOLDER: Final = "PROMETHEUS_MULTIPROC_DIR"
"""Environment variable of prometheus_client with the folder that the workers share."""

THRESHOLDS: Final = (0.5, 0.8, 0.95, 1.0)


def exposition(
    snapshots: Mapping[str, PlacementSnapshot],
    warnings: Mapping[str, IntegrityWarnings],
    expiries: Mapping[str, Mapping[str, datetime]],
    *,
    named: int,
    accept: str,
    now: Mapping[str, datetime],
) -> tuple[bytes, str]:
    """Render the metrics of all workers and ledgers; return text and media type.

    Snapshots, integrity warnings, expiries of certificates and times are by placement. `named` populations, and as many
    budgets, are listed by utilisation.
    """
    registry = CollectorRegistry()
    if SHARED_FOLDER in os.environ:
        registry.register(_WorkersCollector(Path(os.environ[SHARED_FOLDER])))
    else:
        registry.register(_StaticCollector(REGISTRY.collect()))
    registry.register(_StaticCollector(_numbers(warnings, _INTEGRITY_METRICS, now)))
    registry.register(_StaticCollector(_of_ledgers(snapshots, named, now)))
    registry.register(_StaticCollector(_of_servers(expiries, now)))
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


def _of_ledgers(
    snapshots: Mapping[str, PlacementSnapshot], named: int, now: Mapping[str, datetime]
) -> Iterator[Metric]:
    ready = _by_placement("epsilon_ledger_ready", "1 if steps can be decided, 0 otherwise.")
    workers = _by_placement(
        "epsilon_ledger_citus_workers_unavailable", "Workers of a Citus cluster whose organisations get 503."
    )
    for placement, each in snapshots.items():
        ready.add_metric([placement], each.unavailable_reason is None)
        workers.add_metric([placement], each.unavailable_workers)
    yield from (ready, workers)
    there = {placement: each.stats for placement, each in snapshots.items() if each.stats is not None}
    yield from _numbers(there, _LEDGER_METRICS, now)
    yield from _of_disks(snapshots)
    yield from _labelled(there)
    if named:
        yield from _named([use for each in there.values() for use in each.uses], named)


def _numbers(found: Mapping[str, T], described: Described[T], now: Mapping[str, datetime]) -> Iterator[Metric]:
    """Yield a gauge for each placement, except without a value or a known clock."""
    for name, help_text, value in described:
        metric = _by_placement(f"epsilon_ledger_{name}", help_text)
        for placement, each in found.items():
            number = value(each, now[placement]) if placement in now else None
            if number is not None:
                metric.add_metric([placement], number)
        yield metric


def _of_servers(expiries: Mapping[str, Mapping[str, datetime]], now: Mapping[str, datetime]) -> Iterator[Metric]:
    """Yield the clocks of the databases, and when the certificates of connections to them expire."""
    time = _by_placement("epsilon_ledger_database_time_seconds", "Clock of the database since the epoch.")
    for placement, moment in now.items():
        time.add_metric([placement], moment.timestamp())
    expiry = _by_placement(
        "epsilon_ledger_certificate_expiry_timestamp_seconds",
        "Expiry of the certificates of connections to PostgreSQL.",
        "certificate",
    )
    for placement, each in expiries.items():
        for certificate, moment in each.items():
            expiry.add_metric([placement, certificate], moment.timestamp())
    yield from (time, expiry)


def _of_disks(snapshots: Mapping[str, PlacementSnapshot]) -> Iterator[Metric]:
    free = _by_placement("epsilon_ledger_database_disk_free_bytes", "Free bytes of a SQLite file's file system.")
    size = _by_placement("epsilon_ledger_database_disk_size_bytes", "Bytes of a SQLite file's file system.")
    for placement, each in snapshots.items():
        if each.disk is not None:
            free.add_metric([placement], each.disk.free)
            size.add_metric([placement], each.disk.size)
    yield from (free, size)


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
        "Changed populations and budgets whose utilisation is not read yet.",
        lambda each, _: each.unread,
    ),
    ("alert_deliveries_pending", "Deliveries without acknowledgement.", lambda each, _: each.backlog.pending),
    (
        "alert_oldest_pending_delivery_age_seconds",
        "Age of the oldest pending delivery.",
        lambda each, now: _age(each.backlog.oldest, now),
    ),
    ("waiting_plans", "Plans that wait for budget.", lambda each, _: each.waiting.plans),
    (
        "oldest_waiting_plan_age_seconds",
        "Time that the oldest of them has waited.",
        lambda each, now: _age(each.waiting.oldest, now),
    ),
    ("receivers_disabled", "Disabled receivers.", lambda each, _: each.backlog.disabled),
    ("receivers_failing", "Receivers whose last delivery failed.", lambda each, _: each.backlog.failing),
    ("last_checkpoint_timestamp_seconds", "Time of the last checkpoint.", _signed_at),
    ("oldest_unsigned_entry_age_seconds", "Age of the oldest audit event or decision without a signature.", _unsigned),
)


def _labelled(found: Mapping[str, LedgerStats]) -> Iterator[Metric]:
    runs = _by_placement("epsilon_ledger_runs", "Runs, by status.", "status")
    kinds = _by_placement("epsilon_ledger_accounts", "Populations and budgets.", "kind")
    full = _by_placement(
        "epsilon_ledger_accounts_over_threshold",
        "Populations and budgets whose epsilon is at least this share of the limit.",
        *("kind", "threshold"),
    )
    exhausted = _by_placement(
        "epsilon_ledger_accounts_nearly_exhausted",
        "Populations and budgets of whose limit at most 2 % can still be taken, now or when more is unlocked.",
        "kind",
    )
    for placement, each in found.items():
        for status, count in sorted(each.runs.items()):
            runs.add_metric([placement, status], count)
        for kind in (AccountKind.POPULATION, AccountKind.BUDGET):
            theirs = [use for use in each.uses if use.kind is kind]
            kinds.add_metric([placement, str(kind)], len(theirs))
            blocked = sum(use.unavailable_share >= NEARLY_EXHAUSTED for use in theirs)
            exhausted.add_metric([placement, str(kind)], blocked)
            for threshold in THRESHOLDS:
                reached = sum(use.epsilon >= threshold for use in theirs)
                full.add_metric([placement, str(kind), f"{threshold:g}"], reached)
    yield from (runs, kinds, full, exhausted)


def _named(uses: list[Utilisation], most: int) -> Iterator[Metric]:
    """Yield the utilisation of the fullest populations and budgets: those of which the least can be taken."""
    labels = ("organisation", "kind", "account")
    epsilon = GaugeMetricFamily(
        "epsilon_ledger_account_epsilon_ratio",
        "Spent epsilon divided by the limit, of the fullest accounts.",
        labels=labels,
    )
    share = GaugeMetricFamily(
        "epsilon_ledger_account_utilisation_ratio",
        "Used share of the limit by the filter, of the fullest accounts; 1 admits nothing.",
        labels=labels,
    )
    available = GaugeMetricFamily(
        "epsilon_ledger_account_available_epsilon",
        "Epsilon that can be taken now, by the limit and those above, of the fullest accounts.",
        labels=labels,
    )
    unlocked = GaugeMetricFamily(
        "epsilon_ledger_account_unlocked_ratio",
        "Unlocked part of the limit, of the accounts that unlock theirs in parts, the least first.",
        labels=labels,
    )
    uses.sort(key=lambda use: (use.unavailable_share, use.epsilon, use.share), reverse=True)
    for kind in (AccountKind.POPULATION, AccountKind.BUDGET):
        for use in [use for use in uses if use.kind is kind][:most]:
            named = [use.organisation_id, str(kind), use.path]
            epsilon.add_metric(named, use.epsilon)
            share.add_metric(named, use.share)
            available.add_metric(named, use.available)
        parts = [(use.unlocked, use) for use in uses if use.kind is kind and use.unlocked is not None]
        for part, use in sorted(parts, key=itemgetter(0))[:most]:
            unlocked.add_metric([use.organisation_id, str(kind), use.path], part)
    yield from (epsilon, share, available, unlocked)


def _by_placement(name: str, help_text: str, *labels: str) -> GaugeMetricFamily:
    return GaugeMetricFamily(name, help_text, labels=("placement", *labels))
