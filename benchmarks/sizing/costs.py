"""Measured costs of requests; times in microseconds, unless a name says otherwise.

Sections are those of docs/operations/performance.md, if no other page is named. "The slow machine" is that of "Steps a
second over HTTP", with PostgreSQL on the same two cores.
"""

from dataclasses import dataclass, replace
from typing import Final

from app.service.charging.commit_queue import MOST_COMMANDS

SECOND: Final = 1e6
CONNECTIONS: Final = 64
"""Connections of the measurements ("Steps a second over HTTP")."""

# "Steps a second over HTTP": requests a second, and shares of the bare endpoint.
OWN_RUNS, ONE_RUN, OWN_RUNS_SHARE, RESERVED_SHARE = 1_594, 2_065, 0.59, 0.29
LONE_STEP, LONE_BARE = 3_500, 470
BARE: Final = OWN_RUNS / OWN_RUNS_SHARE
BATCHED_SQLITE, BATCHED_POSTGRESQL = 53_400, 33_500
PARSE_EVENT: Final = 7  # "Inside a group", its last paragraph

OUTSIDE_SHARE: Final = 0.55  # docs/adr/0015: processor time outside of the group, as a share of the bare endpoint
LONE_WORK: Final = 800  # docs/adr/0035: processor time of the service for a lone step on PostgreSQL
WORK_ONE_RUN, WORK_OWN_RUNS = 114, 173  # "Inside a group": a step of 64; on SQLite, the processor time of Python
SYNC: Final = 420  # "Latency of one step": one bare commit
GRANT_OVERHEAD, CALL_OVERHEAD = 294, 3_522  # "Overhead of the client": means, grants of 50 and a call per step
GRANT: Final = 50  # docs/adr/0016: each request for the next grant is for fifty steps more, in the background too

# docs/operations/scaling.md, "What one step costs": bytes.
LOG_LONE, LOG_GROUPED, LOG_RESERVED, LOG_BATCHED = 1_730, 1_140, 1_310, 14
LOG_REQUEST, LOG_ROW = 600, 300
GRANT_ROWS: Final = 6  # an estimate: the run, three accounts, the old and the new reservation
DECISION, EVENT_ROW, BATCHED_KEPT = 334, 122, 7  # the last: docs/operations/scaling.md, "A million steps a second"

# "Sessions shared by transactions", through PgBouncer: steps a second in relation to sessions of its own.
POOLED_ALONE, POOLED_GROUPS = 0.64, 0.88

# "A decision", two days later, when the machine was faster; and "Two replicas".
LATER_BARE, LATER_OWN_RUNS, LATER_ONE_RUN, LATER_LONE = 7_273, 4_624, 6_014, 589
SHARED_RATIO, SHARED_RESERVED_RATIO = 0.69, 1.10
REPLICA_CONNECTIONS: Final = 32


@dataclass(frozen=True)
class Cost:
    """Times of a request and of its group; a group of n requests of m runs takes `work` and `store`.

    Args:
        client: between an answer and the arrival of the next request.
        http: to parse and answer one request, in the worker process.
        work: of the worker for a group: for the group, each request, and each run after the first.
        store: of PostgreSQL for a group, likewise.
        sync: of one flush of the write-ahead log.
    """

    client: float
    http: float
    work: tuple[float, float, float]
    store: tuple[float, float, float]
    sync: float

    def work_of(self, requests: int, runs: int) -> float:
        """Return the worker's time for a group."""
        return _affine(self.work, requests, runs)

    def store_of(self, requests: int, runs: int) -> float:
        """Return PostgreSQL's time for a group, without the flush."""
        return _affine(self.store, requests, runs)

    def on_faster(self, ratio: float) -> "Cost":
        """Return the costs on a processor that is faster by a ratio, with the same disk."""
        work, store = ((a / ratio, b / ratio, c / ratio) for a, b, c in (self.work, self.store))
        return Cost(self.client / ratio, self.http / ratio, work, store, self.sync)

    def times(self, ratio: float) -> "Cost":
        """Return the costs with groups that take a multiple of the time."""
        work, store = ((a * ratio, b * ratio, c * ratio) for a, b, c in (self.work, self.store))
        return replace(self, work=work, store=store)


def _affine(parts: tuple[float, float, float], requests: int, runs: int) -> float:
    fixed, each, further = parts
    return fixed + each * requests + further * (runs - 1)


def _fit(lone: float, one_run: float, own_runs: float, size: int) -> tuple[float, float, float]:
    """Fit an affine time to those of a lone request and of two groups of a size."""
    each = (one_run - lone) / (size - 1)
    return lone - each, each, (own_runs - one_run) / (size - 1)


def single_steps() -> Cost:
    """Fit the costs of single steps to the figures of the slow machine.

    PostgreSQL's part is what remains of the time of a closed loop, so it includes round trips.
    """
    http, client, size = OUTSIDE_SHARE * SECOND / BARE, LONE_BARE - SECOND / BARE, CONNECTIONS
    work = _fit(LONE_WORK, size * WORK_ONE_RUN, size * WORK_OWN_RUNS, size)
    outside = client + size * http + SYNC
    store = _fit(
        LONE_STEP - client - http - SYNC - LONE_WORK,
        size * (SECOND / ONE_RUN - WORK_ONE_RUN) - outside,
        size * (SECOND / OWN_RUNS - WORK_OWN_RUNS) - outside,
        size,
    )
    return Cost(client, http, work, store, SYNC)


def reserved_ratio() -> float:
    """Return the time of a group of reserved steps, as a multiple of that of unreserved ones."""
    return (SECOND / (RESERVED_SHARE * BARE) - _outside()) / (SECOND / OWN_RUNS - _outside())


def _outside() -> float:
    cost = single_steps()
    return cost.http + (cost.client + cost.sync) / CONNECTIONS


@dataclass(frozen=True)
class Way:
    """A way to ask for steps, with costs of one step.

    Args:
        name: in tables and the plot.
        request: steps of a request.
        worker: time of a worker process.
        store: time of PostgreSQL's processors.
        row: time that a population's row is locked, in the largest groups; None if it is not.
        log: bytes of write-ahead log.
        kept: bytes on disk, kept for ever.
        pooled: steps a second through PgBouncer in mode `transaction`, in relation to sessions of its own.
    """

    name: str
    request: int
    worker: float
    store: float
    row: float | None
    log: float
    kept: float
    pooled: float


def ways() -> list[Way]:
    """Return the ways to ask, from dear to cheap."""
    cost, most = single_steps(), MOST_COMMANDS
    reserved = cost.times(reserved_ratio())
    lone_work, lone_store = cost.http + cost.work_of(1, 1), cost.store_of(1, 1)
    size = CONNECTIONS
    row = (cost.work_of(most, most) + cost.store_of(most, most) + SYNC) / most
    grant, part = GRANT * GRANT_OVERHEAD / CALL_OVERHEAD, GRANT
    event, event_store = SECOND / BATCHED_SQLITE, SECOND / BATCHED_POSTGRESQL - SECOND / BATCHED_SQLITE
    return [
        Way("single steps, alone", 1, lone_work, lone_store, row, LOG_LONE, DECISION, POOLED_ALONE),
        Way(
            "single steps, reserved",
            1,
            cost.http + reserved.work_of(size, size) / size,
            reserved.store_of(size, size) / size,
            None,
            LOG_RESERVED,
            DECISION,
            POOLED_GROUPS,
        ),
        Way(
            "single steps, groups of 64",
            1,
            cost.http + cost.work_of(size, size) / size,
            cost.store_of(size, size) / size,
            row,
            LOG_GROUPED,
            DECISION,
            POOLED_GROUPS,
        ),
        Way(
            "grants of 50",
            part,
            grant * lone_work / part,
            grant * lone_store / part,
            (grant * (cost.work_of(1, 1) + lone_store) + SYNC) / part,
            (LOG_REQUEST + GRANT_ROWS * LOG_ROW) / part,
            (DECISION + EVENT_ROW) / part,
            POOLED_ALONE,
        ),
        Way(
            "batches of 1,000, ten events",
            1_000,
            event,
            event_store,
            event - PARSE_EVENT + event_store,
            LOG_BATCHED,
            BATCHED_KEPT,
            POOLED_GROUPS,
        ),
        Way(
            "count: 1,000",
            1_000,
            lone_work / 1e3,
            lone_store / 1e3,
            row / 1e3,
            LOG_LONE / 1e3,
            DECISION / 1e3,
            POOLED_ALONE,
        ),
    ]
