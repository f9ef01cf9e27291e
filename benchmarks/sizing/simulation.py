"""Discrete events: workers with a lane for each organisation, row locks, PostgreSQL's processors, its log.

A request is parsed by its worker, and waits in the lane of its organisation. A lane writes one group at a time: all
that wait when the worker begins with it, up to the largest group. The log is flushed for all that wait for it.
"""

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from heapq import heappop, heappush
from itertools import count
from random import Random
from statistics import fmean
from typing import Final

from app.service.charging.commit_queue import MOST_COMMANDS
from benchmarks.sizing.costs import SECOND, Cost

SEED: Final = 24
WARM_UP: Final = 0.2
"""Share of the requests that are left out of the results, at the beginning."""

Act = Callable[[], None]


@dataclass(frozen=True)
class Load:
    """Requests that arrive.

    Args:
        rate: a second, at random (Poisson); None if connections repeat their request after each answer.
        connections: to each worker, if there is no rate.
        workers: processes; each request goes to any of them.
        organisations: each request is of any of them.
        own_runs: whether each request of a group is of another run.
        shared_row: whether all workers charge one population in each organisation.
        cores: of the database server.
        requests: to simulate.
    """

    rate: float | None = None
    connections: int = 0
    workers: int = 1
    organisations: int = 1
    own_runs: bool = True
    shared_row: bool = False
    cores: int = 32
    requests: int = 20_000


@dataclass(frozen=True)
class Result:
    """What a simulation found; times in milliseconds, requests a second."""

    rate: float
    group: float
    median: float
    late: float


@dataclass
class _Clock:
    now: float = 0.0
    _events: list[tuple[float, int, Act]] = field(default_factory=list)
    _numbers: "count[int]" = field(default_factory=count)

    def after(self, delay: float, act: Act) -> None:
        heappush(self._events, (self.now + delay, next(self._numbers), act))

    def run(self) -> None:
        while self._events:
            self.now, _, act = heappop(self._events)
            act()


@dataclass
class _Station:
    """Equal servers; urgent jobs first. A job tells its duration when it begins."""

    clock: _Clock
    free: int
    _jobs: tuple[deque[tuple[Callable[[], float], Act]], ...] = field(default_factory=lambda: (deque(), deque()))

    def submit(self, duration: Callable[[], float], done: Act, *, urgent: bool = False) -> None:
        self._jobs[0 if urgent else 1].append((duration, done))
        self._begin()

    def _begin(self) -> None:
        while self.free and (jobs := self._jobs[0] or self._jobs[1]):
            duration, done = jobs.popleft()
            self.free -= 1
            self.clock.after(duration(), lambda done=done: self._end(done))  # type: ignore[misc]

    def _end(self, done: Act) -> None:
        self.free += 1
        done()
        self._begin()


@dataclass
class _Log:
    """One flush at a time, for all that wait when it begins."""

    clock: _Clock
    sync: float
    _waiting: list[Act] = field(default_factory=list)
    _busy: bool = False

    def flush(self, done: Act) -> None:
        self._waiting.append(done)
        if not self._busy:
            self._begin()

    def _begin(self) -> None:
        flushed, self._waiting, self._busy = self._waiting, [], True
        self.clock.after(self.sync, lambda: self._end(flushed))

    def _end(self, flushed: list[Act]) -> None:
        self._busy = False
        for done in flushed:
            done()
        if self._waiting and not self._busy:
            self._begin()


@dataclass
class _Row:
    """A row's lock, in order of arrival."""

    _waiting: deque[Act] = field(default_factory=deque)
    _locked: bool = False

    def lock(self, act: Act) -> None:
        if self._locked:
            self._waiting.append(act)
        else:
            self._locked = True
            act()

    def unlock(self) -> None:
        if self._waiting:
            self._waiting.popleft()()
        else:
            self._locked = False


@dataclass
class _Lane:
    worker: _Station
    row: _Row | None
    waiting: deque[tuple[float, int]] = field(default_factory=deque)
    busy: bool = False


class _Simulation:
    def __init__(self, cost: Cost, load: Load, seed: int) -> None:
        self.cost, self.load, self.random = cost, load, Random(seed)  # noqa: S311 - a simulation
        self.clock = _Clock()
        self.database, self.log = _Station(self.clock, load.cores), _Log(self.clock, cost.sync)
        rows = [_Row() if load.shared_row else None for _ in range(load.organisations)]
        workers = [_Station(self.clock, 1) for _ in range(load.workers)]
        self.lanes = [[_Lane(worker, row) for row in rows] for worker in workers]
        self.arrived = 0
        self.answers: list[tuple[float, float]] = []
        self.groups: list[int] = []

    def arrive(self, worker: int, *, again: bool) -> None:
        """Let a request arrive, and the next one, if this is not an answered connection's."""
        if self.arrived == self.load.requests:
            return
        self.arrived += 1
        lane = self.lanes[worker][self.random.randrange(self.load.organisations)]
        began = self.clock.now

        def parsed() -> None:
            lane.waiting.append((began, worker))
            self._write(lane)

        lane.worker.submit(lambda: self.cost.http, parsed, urgent=True)
        if again and self.load.rate:
            self._arrive_later()

    def _arrive_later(self) -> None:
        assert self.load.rate is not None
        worker = self.random.randrange(self.load.workers)
        self.clock.after(self.random.expovariate(self.load.rate) * SECOND, lambda: self.arrive(worker, again=True))

    def start(self) -> None:
        if self.load.rate:
            self._arrive_later()
        for worker in range(self.load.workers):
            for _ in range(self.load.connections):
                self.arrive(worker, again=False)

    def _write(self, lane: _Lane) -> None:
        if lane.busy or not lane.waiting:
            return
        lane.busy = True
        if lane.row is None:
            self._decide(lane)
        else:
            lane.row.lock(lambda: self._decide(lane))

    def _decide(self, lane: _Lane) -> None:
        group: list[tuple[float, int]] = []

        def runs() -> int:
            return len(group) if self.load.own_runs else 1

        def begin() -> float:
            group.extend(lane.waiting.popleft() for _ in range(min(len(lane.waiting), MOST_COMMANDS)))
            return self.cost.work_of(len(group), runs())

        def store() -> None:
            self.database.submit(lambda: self.cost.store_of(len(group), runs()), lambda: self.log.flush(done))

        def done() -> None:
            if lane.row is not None:
                lane.row.unlock()
            self._answer(group)
            lane.busy = False
            self._write(lane)

        lane.worker.submit(begin, store)

    def _answer(self, group: list[tuple[float, int]]) -> None:
        self.groups.append(len(group))
        for began, worker in group:
            self.answers.append((self.clock.now, self.clock.now - began))
            if self.load.rate is None:
                self.clock.after(self.cost.client, lambda worker=worker: self.arrive(worker, again=False))  # type: ignore[misc]


def simulate(cost: Cost, load: Load, seed: int = SEED) -> Result:
    """Simulate requests until all are answered."""
    simulation = _Simulation(cost, load, seed)
    simulation.start()
    simulation.clock.run()
    answers = simulation.answers
    kept = answers[int(WARM_UP * len(answers)) :]
    times = sorted(time for _, time in kept)
    span = kept[-1][0] - kept[0][0]
    return Result(
        rate=len(kept) * SECOND / span,
        group=fmean(simulation.groups),
        median=times[len(times) // 2] / 1e3,
        late=times[int(0.99 * len(times))] / 1e3,
    )
