"""Gauges of the process, sampled every second so that every worker can expose them."""

import asyncio
from time import monotonic
from typing import Final

from prometheus_client.process_collector import ProcessCollector

from app.persistence.pool import PoolUsage
from app.service.ledger_store import LedgerStore
from app.service.metrics import counter, gauge

LOOK_SECONDS: Final = 1.0

_WAITING = gauge("epsilon_ledger_commit_queue_length", "Step requests in the commit queue.", "livesum")
_CONNECTIONS = gauge("epsilon_ledger_database_connections", "Database connections, by state.", "livesum", "state")
_CONNECTIONS_MAX = gauge("epsilon_ledger_database_connections_max", "Maximum of database connections.", "livesum")
_PENDING = gauge(
    "epsilon_ledger_database_connection_pending_requests",
    "Threads that wait for a database connection because all are in use.",
    "livesum",
)
_TIMEOUTS = counter("epsilon_ledger_database_connection_timeouts", "Requests that got no database connection in time.")
_CLOCK = gauge(
    "epsilon_ledger_clock_offset_seconds", "Clock of this machine minus that of the database.", "livemostrecent"
)
_LAG = gauge("epsilon_ledger_event_loop_lag_seconds", "Largest delay of a worker's event loop.", "livemax")
_WORKERS = gauge("epsilon_ledger_workers", "Worker processes.", "livesum")
_CPU = counter("process_cpu_seconds", "Processor time of all workers.")
_OF_PROCESS = {
    name: gauge(name, f"{what}, by worker.", "liveall")
    for name, what in {
        "process_resident_memory_bytes": "Resident memory",
        "process_virtual_memory_bytes": "Virtual memory",
        "process_start_time_seconds": "Start time since the epoch",
        "process_open_fds": "Open file descriptors",
        "process_max_fds": "Maximum of open file descriptors",
    }.items()
}
_PROCESS = ProcessCollector(registry=None)


class Sampler:
    """Sampler of this process, its commit queue and its connections."""

    def __init__(self, store: LedgerStore) -> None:
        self._store = store
        self._cpu = 0.0
        self._timeouts = 0

    def sample(self) -> None:
        """Set all gauges once."""
        _WORKERS.set(1)
        _WAITING.set(self._store.charges.waiting)
        self._sample_connections(self._store.database.connections())
        ahead = self._store.database.clock.own_is_ahead()
        if ahead is not None:
            _CLOCK.set(ahead)
        for metric in _PROCESS.collect():
            for sample in metric.samples:
                if sample.name in _OF_PROCESS:
                    _OF_PROCESS[sample.name].set(sample.value)
                elif sample.name == "process_cpu_seconds_total":
                    _CPU.inc(max(0.0, sample.value - self._cpu))
                    self._cpu = sample.value

    def _sample_connections(self, usage: PoolUsage) -> None:
        _CONNECTIONS.labels("used").set(usage.used)
        _CONNECTIONS.labels("idle").set(usage.idle)
        _CONNECTIONS_MAX.set(usage.limit)
        _PENDING.set(usage.pending)
        _TIMEOUTS.inc(max(0, usage.timeouts - self._timeouts))
        self._timeouts = usage.timeouts

    async def run(self) -> None:
        """Sample periodically, until cancelled."""
        while True:
            self.sample()
            asleep = monotonic()
            await asyncio.sleep(LOOK_SECONDS)
            _LAG.set(monotonic() - asleep - LOOK_SECONDS)
