"""Pool of worker processes: long calculations must not hold the interpreter that decides steps.

Measured with six planning clients (docs/operations/performance.md): with two threads instead, a step took three times
as long, and up to 0.3 s.
"""

import os
import select
import subprocess
import sys
from collections import OrderedDict, deque
from collections.abc import Callable
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import dataclass
from threading import Condition, Lock, Thread
from time import monotonic
from typing import Any, BinaryIO, Final, Generic, TypeVar, cast

from app.ledger.errors import LedgerUnavailableError, RateLimitedError
from app.service.worker_pool.worker import receive, send

T = TypeVar("T")

MOST_PROCESSES: Final = 2
"""One lane uses one process. The second starts after the first result, ready for another organisation."""

NICENESS: Final = 5
"""Gives steps priority when processors are scarce; a worker keeps a third of a share."""

IDLE_SECONDS: Final = 60.0
"""Idle time after which the processes end and release their memory."""

ANSWER_SECONDS: Final = 60.0
"""Time after which an unresponsive process is killed."""

MOST_WAITING: Final = 16
"""Maximum number of waiting tasks in a lane."""

RETRY_AFTER: Final = 2
"""Retry-After of a full lane, in seconds."""


class FairQueue(Generic[T]):
    """Queue with a lane for each organisation; one task of a lane runs at a time."""

    def __init__(self) -> None:
        self._changed = Condition()
        self._lanes: OrderedDict[str, deque[T]] = OrderedDict()
        self._at_work: set[str] = set()

    def put(self, lane: str, task: T) -> None:
        """Add a task to a lane; RateLimitedError if too many are waiting there."""
        with self._changed:
            waiting = self._lanes.setdefault(lane, deque())
            if len(waiting) >= MOST_WAITING:
                raise RateLimitedError(
                    f"{MOST_WAITING} calculations of this organisation are waiting. Retry the request shortly.",
                    retry_after=RETRY_AFTER,
                )
            waiting.append(task)
            self._changed.notify()

    def take(self, seconds: float) -> tuple[str, T] | None:
        """Wait for a task of an idle lane, and mark the lane as busy until `done`; None on timeout."""
        with self._changed:
            if not self._changed.wait_for(lambda: self._next() is not None, seconds):
                return None
            lane = self._next()
            assert lane is not None, "it was waited for"
            waiting = self._lanes.pop(lane)
            task = waiting.popleft()
            if waiting:  # behind all others
                self._lanes[lane] = waiting
            self._at_work.add(lane)
            return lane, task

    def done(self, lane: str) -> None:
        """Mark a lane as idle."""
        with self._changed:
            self._at_work.discard(lane)
            self._changed.notify_all()

    def _next(self) -> str | None:
        return next((lane for lane in self._lanes if lane not in self._at_work), None)


@dataclass(frozen=True)
class Job(Generic[T]):
    """A picklable call of a top-level function, which raises PlanTooExpensiveError beyond a request's limit."""

    function: Callable[..., T]
    arguments: tuple[Any, ...]

    def result(self) -> T:
        """Run the job in this thread."""
        return self.function(*self.arguments)


_Task = tuple[Job[Any], "Future[Any]"]


class WorkerPool:
    """Worker processes, started on demand, and the threads that feed them."""

    def __init__(self) -> None:
        self._queue: FairQueue[_Task] = FairQueue()
        self._lock = Lock()
        self._begun = False
        self._idle = [_Process() for _ in range(MOST_PROCESSES)]

    def submit(self, lane: str, calculation: Job[T]) -> "Future[T]":
        """Queue a job; jobs of one lane run sequentially, and lanes take turns.

        The future has the result or error: LedgerUnavailableError if the process died. RateLimitedError: a full lane.
        """
        future: Future[T] = Future()
        self._queue.put(lane, (calculation, cast("Future[Any]", future)))
        with self._lock:
            if not self._begun:
                self._begun = True
                for _ in range(MOST_PROCESSES):
                    Thread(target=self._work, name="calculator", daemon=True).start()
        return future

    def _work(self) -> None:
        """Pass tasks to processes, forever."""
        while True:
            taken = self._queue.take(IDLE_SECONDS)
            if taken is None:
                self._end_idle()
                continue
            lane, (calculation, future) = taken
            if future.set_running_or_notify_cancel():
                with self._lock:
                    process = self._idle.pop()
                process.answer(calculation, future)
                with self._lock:
                    for other in self._idle:  # ready for another organisation's task
                        other.prepare(calculation.function.__module__)
                    self._idle.append(process)
            self._queue.done(lane)

    def _end_idle(self) -> None:
        before = monotonic() - IDLE_SECONDS
        with self._lock:
            if len(self._idle) == MOST_PROCESSES and all(process.used_at <= before for process in self._idle):
                for process in self._idle:
                    process.end()


class _Process:
    """One worker process, restarted when it has ended."""

    def __init__(self) -> None:
        self._process: subprocess.Popen[bytes] | None = None
        self.used_at = monotonic()
        """Start of its latest task, by the monotonic clock."""

    def prepare(self, module: str) -> None:
        """Start the process without waiting; preload the module of the likely next job."""
        if self._process is None:
            with suppress(OSError):  # the next job retries, and reports the error
                self._process = _started(module)

    def answer(self, calculation: Job[Any], future: "Future[Any]") -> None:
        """Run a job in the process and complete its future."""
        self.used_at = monotonic()
        try:
            well, answer = self._asked(calculation)
        except Exception as error:  # noqa: BLE001 - raised from the future
            self.end()
            future.set_exception(error)
        else:
            if well:
                future.set_result(answer)
            else:
                future.set_exception(answer)

    def end(self) -> None:
        """Kill the process if it is running."""
        process, self._process = self._process, None
        if process is not None:
            process.kill()
            process.wait()
            for stream in (process.stdin, process.stdout):
                if stream is not None:
                    with suppress(OSError):
                        stream.close()

    def _asked(self, calculation: Job[Any]) -> tuple[bool, Any]:
        if self._process is None or self._process.poll() is not None:
            self.end()
            try:
                self._process = _started(calculation.function.__module__)
            except OSError as error:
                raise LedgerUnavailableError(
                    f"No process that calculates could be started: {error.strerror}. Retry the request shortly."
                ) from error
        streams = self._process.stdin, self._process.stdout
        to_it, from_it = (cast("BinaryIO", stream) for stream in streams)
        with suppress(BrokenPipeError):
            send(to_it, (calculation.function, calculation.arguments))
        answers, _, _ = select.select([from_it], [], [], ANSWER_SECONDS)
        answer = receive(from_it) if answers else None
        if answer is None:
            raise LedgerUnavailableError("The process that calculates ended without an answer. Repeat the request.")
        return cast("tuple[bool, Any]", answer)


def _started(module: str) -> "subprocess.Popen[bytes]":
    """Start a worker with this process's import path, without the working folder."""
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(path for path in sys.path if path)}
    command = [sys.executable, "-P", "-m", "app.service.worker_pool.worker", str(NICENESS), module]
    return subprocess.Popen(command, env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE)  # noqa: S603 - our own


WORKER_POOL: Final = WorkerPool()
"""The pool of this process, for all its ledgers."""
