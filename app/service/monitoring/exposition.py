"""Metrics in the Prometheus exposition formats."""

import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from datetime import datetime
from pathlib import Path
from typing import Final, TypeVar

from prometheus_client import CollectorRegistry
from prometheus_client.exposition import choose_encoder
from prometheus_client.metrics_core import GaugeMetricFamily, Metric
from prometheus_client.multiprocess import MultiProcessCollector
from prometheus_client.registry import Collector

from app.ledger.accounts import AccountKind
from app.service.metrics.counters import REGISTRY
from app.service.monitoring.database_collector import LedgerStats, PlacementSnapshot, Utilisation
from app.service.monitoring.integrity import IntegrityWarnings

T = TypeVar("T")
Described = Sequence[tuple[str, str, Callable[[T, datetime], float | None]]]
"""Name, help and reader of each metric; the reader gets the statistics and the time."""

SHARED_FOLDER: Final = "PROMETHEUS_MULTIPROC_DIR"
"""Environment variable of prometheus_client with the folder that the workers share."""

FRACTIONS: Final = (0.5, 0.8, 0.95, 1.0)


def exposition(
    looked: Mapping[str, PlacementSnapshot],
    doubts: Mapping[str, IntegrityWarnings],
    *,
    named: int,
    accept: str,
    now: Mapping[str, datetime],
) -> tuple[bytes, str]:
    """Render the metrics of all workers and ledgers; return text and media type.

    Args:
        looked: snapshots by placement.
        doubts: integrity warnings by placement.
        named: number of populations, and of budgets, that are listed by utilisation.
        accept: the request's Accept header.
        now: time by placement, where its database's clock is known.
    """
    registry = CollectorRegistry()
    if SHARED_FOLDER in os.environ:
        registry.register(_OfAllWorkers(Path(os.environ[SHARED_FOLDER])))
    else:
        registry.register(_Given(REGISTRY.collect()))
    registry.register(_Given(_numbers(doubts, _DOUBTS, now)))
    registry.register(_Given(_of_ledgers(looked, named, now)))
    encode, media_type = choose_encoder(accept)
    return encode(registry), media_type


class _OfAllWorkers(Collector):
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


class _Given(Collector):
    def __init__(self, metrics: Iterable[Metric]) -> None:
        self._metrics = metrics

    def collect(self) -> Iterable[Metric]:
        return self._metrics


def _of_ledgers(looked: Mapping[str, PlacementSnapshot], named: int, now: Mapping[str, datetime]) -> Iterator[Metric]:
    ready = _by_placement("epsilon_ledger_ready", "Whether steps can be decided: one was rehearsed.")
    for placement, each in looked.items():
        ready.add_metric([placement], each.trouble is None)
    yield ready
    there = {placement: each.found for placement, each in looked.items() if each.found is not None}
    yield from _numbers(there, _FOUND, now)
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


def _age(moment: datetime | None, now: datetime) -> float:
    return 0.0 if moment is None else max(0.0, (now - moment).total_seconds())


def _signed_at(found: LedgerStats, _: datetime) -> float | None:
    latest = None if found.signing is None else found.signing.latest
    return None if latest is None else latest.timestamp()


def _unsigned(found: LedgerStats, now: datetime) -> float | None:
    return None if found.signing is None else _age(found.signing.unsigned_since, now)


_DOUBTS: Final[Described[IntegrityWarnings]] = (
    (
        "accounts_quarantined",
        "Accounts that `verify` has stopped, until two persons lift the quarantine.",
        lambda each, _: each.quarantined,
    ),
    (
        "chain_heads_wrong",
        "Runs that name another last decision than they have.",
        lambda each, _: each.heads.wrong_runs,
    ),
    (
        "checkpoints_wrong",
        "Organisations whose last checkpoint names another entry than the log has.",
        lambda each, _: each.heads.wrong_checkpoints,
    ),
)

_FOUND: Final[Described[LedgerStats]] = (
    ("organisations", "Organisations that live there.", lambda each, _: each.organisations),
    ("accounts_unread", "Populations and budgets whose fractions are older than they.", lambda each, _: each.unread),
    ("webhook_deliveries_pending", "Alerts that no receiver has acknowledged.", lambda each, _: each.backlog.pending),
    (
        "webhook_oldest_pending_seconds",
        "How long the oldest of them waits.",
        lambda each, now: _age(each.backlog.oldest, now),
    ),
    ("webhooks_disabled", "Webhooks that nothing is sent to.", lambda each, _: each.backlog.disabled),
    ("webhooks_failing", "Webhooks whose last delivery failed.", lambda each, _: each.backlog.failing),
    (
        "checkpoint_last_timestamp_seconds",
        "When a checkpoint was signed last.",
        _signed_at,
    ),
    (
        "checkpoint_unsigned_seconds",
        "How long the oldest act or decision is not signed by any checkpoint.",
        _unsigned,
    ),
)


def _labelled(found: Mapping[str, LedgerStats]) -> Iterator[Metric]:
    runs = _by_placement("epsilon_ledger_runs", "Runs, by state.", "status")
    kinds = _by_placement("epsilon_ledger_accounts", "Populations and budgets.", "kind")
    full = _by_placement(
        "epsilon_ledger_accounts_at_least",
        "Populations and budgets whose epsilon is at least this fraction of their limit's.",
        *("kind", "fraction"),
    )
    for placement, each in found.items():
        for status, count in sorted(each.runs.items()):
            runs.add_metric([placement, status], count)
        for kind in (AccountKind.POPULATION, AccountKind.BUDGET):
            theirs = [use.epsilon for use in each.uses if use.kind is kind]
            kinds.add_metric([placement, str(kind)], len(theirs))
            for fraction in FRACTIONS:
                full.add_metric([placement, str(kind), f"{fraction:g}"], sum(one >= fraction for one in theirs))
    yield from (runs, kinds, full)


def _named(uses: list[Utilisation], most: int) -> Iterator[Metric]:
    """Yield the utilisation of the fullest populations and budgets."""
    labels = ("organisation", "kind", "account")
    epsilon = GaugeMetricFamily(
        "epsilon_ledger_account_epsilon_fraction",
        "Epsilon that was spent, as a fraction of the limit's; of the fullest accounts.",
        labels=labels,
    )
    share = GaugeMetricFamily(
        "epsilon_ledger_account_used_fraction",
        "How much of its limit is used as its filter counts; from 1 on nothing is admitted.",
        labels=labels,
    )
    uses.sort(key=lambda use: (use.epsilon, use.share), reverse=True)
    for kind in (AccountKind.POPULATION, AccountKind.BUDGET):
        for use in [use for use in uses if use.kind is kind][:most]:
            named = [use.organisation_id, str(kind), use.path]
            epsilon.add_metric(named, use.epsilon)
            share.add_metric(named, use.share)
    yield from (epsilon, share)


def _by_placement(name: str, help_text: str, *labels: str) -> GaugeMetricFamily:
    return GaugeMetricFamily(name, help_text, labels=("placement", *labels))
