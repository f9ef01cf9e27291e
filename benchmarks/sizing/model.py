"""What saturates when, what is needed, and how well the model predicts what was measured."""

from collections.abc import Iterator
from dataclasses import dataclass
from math import ceil
from typing import Final

from benchmarks.sizing.costs import (
    BARE,
    CONNECTIONS,
    LATER_BARE,
    LATER_LONE,
    LATER_ONE_RUN,
    LATER_OWN_RUNS,
    LONE_STEP,
    ONE_RUN,
    OWN_RUNS,
    REPLICA_CONNECTIONS,
    SECOND,
    SHARED_RATIO,
    SHARED_RESERVED_RATIO,
    Way,
    reserved_ratio,
    single_steps,
)
from benchmarks.sizing.simulation import Load, Result, simulate

CORES: Final = 32
"""Of a database server; an assumption."""

LOG_BYTES: Final = 300e6
"""Log a second of a database server; docs/operations/scaling.md, "A million steps a second": an estimate."""

SESSIONS, POOL = 100, 20
"""PostgreSQL's default, and most sessions of a worker process; docs/operations/capacity.md, "Sizing"."""

WORKER_MEMORY: Final = 512e6
"""Of a worker process; docs/operations/capacity.md, "Sizing"."""

BUSY: Final = 0.7
"""Share of a component's capacity that is used; an assumption, see the table of waiting times."""

TRAINERS, STEPS_OF_TRAINER = 10, 10
"""Of an organisation, and steps a second of each; an assumption."""

ACCOUNTS: Final = TRAINERS + 2
"""Charged in an organisation: each run, one budget and one population; an assumption."""

CACHED_ACCOUNTS: Final = 2048
"""Of a worker process: `LedgerState.accounts` (app/service/charging/ledger_state.py)."""

CACHED_ORGANISATIONS: Final = CACHED_ACCOUNTS // ACCOUNTS
"""Organisations whose accounts fit a process's cache."""


@dataclass(frozen=True)
class Saturation:
    """Steps a second at which a component is fully busy; infinite if it is not used."""

    component: str
    steps: float


def saturations(way: Way) -> list[Saturation]:
    """Return the load at which each component saturates."""
    worker = SECOND / way.worker
    return [
        Saturation("a worker process", worker),
        Saturation("the row of a population", SECOND / way.row if way.row else float("inf")),
        Saturation("100 sessions, no pooler", (SESSIONS // POOL - 1) * worker),
        Saturation("32 cores of PostgreSQL", CORES * SECOND / way.store),
        Saturation("log of 300 MB/s", LOG_BYTES / way.log),
    ]


@dataclass(frozen=True)
class Need:
    """What a load needs; bytes where no unit is named.

    Args:
        steps: a second.
        pooled: whether the workers have more sessions than PostgreSQL's default, so that PgBouncer shares them.
        workers: processes.
        cores: of all database servers.
        servers: of databases.
        log: a second, of all servers.
        kept_a_day: on all servers.
    """

    steps: float
    pooled: bool
    workers: int
    cores: int
    servers: int
    log: float
    kept_a_day: float

    @property
    def memory(self) -> float:
        """Return the memory of the workers."""
        return self.workers * WORKER_MEMORY


def need(way: Way, organisations: int) -> Need:
    """Return what organisations need, each with its trainers under a population of its own."""
    steps = organisations * TRAINERS * STEPS_OF_TRAINER
    busy = steps / SECOND / BUSY
    pooled = max(2, ceil(busy * way.worker)) * POOL > SESSIONS - POOL  # a replica's sessions are left for an upgrade
    if pooled:
        busy /= way.pooled  # which part of the service gets slower was not measured, so each does
    cores = ceil(busy * way.store)
    return Need(
        steps=steps,
        pooled=pooled,
        workers=max(2, ceil(busy * way.worker)),  # two, so that one may fail
        cores=cores,
        servers=max(ceil(cores / CORES), ceil(steps * way.log / LOG_BYTES / BUSY)),
        log=steps * way.log,
        kept_a_day=steps * way.kept * 86_400,
    )


@dataclass(frozen=True)
class Prediction:
    """A measured figure beside the model's."""

    name: str
    fitted: bool
    measured: float
    predicted: float

    @property
    def error(self) -> float:
        """Return the relative error of the model."""
        return self.predicted / self.measured - 1


def predictions() -> Iterator[Prediction]:
    """Simulate what was measured, with the model's own costs and on the machine as it was two days later."""
    slow = single_steps()
    fast = slow.on_faster(LATER_BARE / BARE)
    for day, cost, own, one, lone in (
        ("slow machine", slow, OWN_RUNS, ONE_RUN, SECOND / LONE_STEP),
        ("two days later", fast, LATER_OWN_RUNS, LATER_ONE_RUN, LATER_LONE),
    ):
        for name, measured, load in (
            ("64 connections, own runs", own, Load(connections=CONNECTIONS)),
            ("64 connections, one run", one, Load(connections=CONNECTIONS, own_runs=False)),
            ("one connection", lone, Load(connections=1, requests=2_000)),
        ):
            yield Prediction(f"{name}, {day}", cost is slow, measured, simulate(cost, load).rate)
    reserved = slow.times(reserved_ratio())
    for name, measured, cost, locks in (
        ("charged to the path", SHARED_RATIO, slow, True),
        ("reserved", SHARED_RESERVED_RATIO, reserved, False),
    ):
        apart, shared = (
            simulate(cost, Load(connections=REPLICA_CONNECTIONS, workers=2, shared_row=row)).rate
            for row in (False, locks)
        )
        title = f"two replicas, {name}, one population / own ones"
        yield Prediction(title, fitted=False, measured=measured, predicted=shared / apart)


LOADS: Final = (0.1, 0.3, 0.5, 0.7, 0.9)
"""Shares of a worker's capacity for lone steps."""


@dataclass(frozen=True)
class Waiting:
    """One worker at a rate, with as many organisations as its cache holds, and with one."""

    rate: float
    many: Result
    one: Result


def waiting_times() -> Iterator[Waiting]:
    """Simulate one worker with single steps, by its load."""
    cost = single_steps()
    most = SECOND / (cost.http + cost.work_of(1, 1))
    for share in LOADS:
        rate = share * most
        many, one = (
            simulate(cost, Load(rate=rate, organisations=number, requests=8_000))
            for number in (CACHED_ORGANISATIONS, 1)
        )
        yield Waiting(rate, many, one)


def mean_group(rate: float) -> float:
    """Return the mean group of one lane with single steps of many runs, while the queue is stable.

    n requests take F + n c, and the next group is those that arrive meanwhile: n = rate (F + n c).
    """
    cost, arriving = single_steps(), rate / SECOND
    each = sum(cost.work[1:]) + sum(cost.store[1:])
    fixed = cost.work_of(1, 1) + cost.store_of(1, 1) + cost.sync - cost.work[1] - cost.store[1]
    return arriving * fixed / (1 - arriving * each)


ROW_WORKERS: Final = (1, 2, 4, 8)
ROW_LOADS: Final = (500, 1_000, 1_400, 1_800, 2_200, 2_600, 3_000)


def shared_population(workers: int, rate: float) -> Result:
    """Simulate steps of many runs under one population, from several workers."""
    load = Load(rate=rate, workers=workers, shared_row=workers > 1, requests=8_000)
    return simulate(single_steps(), load)
