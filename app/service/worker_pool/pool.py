"""Processes that calculate for this one: what takes long must not hold the interpreter that decides about steps.

Measured with six clients that plan without a pause (docs/operations/performance.md): with two threads of the service
that computed plans, a step took three times as long as alone, and up to 0.3 s.
"""

import os
import select
import subprocess
import sys
from collections.abc import Callable
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import dataclass
from threading import Lock, Thread
from time import monotonic
from typing import Any, BinaryIO, Final, Generic, TypeVar, cast

from app.ledger.errors import LedgerUnavailableError
from app.service.worker_pool.fair_queue import FairQueue
from app.service.worker_pool.worker import receive, send

T = TypeVar("T")

MOST_PROCESSES: Final = 2
"""One lane uses one of them. The second is started after the first answer, before another organisation asks."""

NICENESS: Final = 5
"""Of the processes: where processors are short, steps go first. A third of a share is left."""

IDLE_SECONDS: Final = 60.0
"""After so long without work the processes end, and give their memory back."""

ANSWER_SECONDS: Final = 60.0
"""A process that does not answer for so long is killed: it stopped, or the machine gives it no time."""


@dataclass(frozen=True)
class Job(Generic[T]):
    """A function of the service and what it is called with, all of which another process can be given.

    Args:
        function: of a module's top level; it raises PlanTooExpensiveError beyond the bound of a request's work.
        arguments: values.
    """

    function: Callable[..., T]
    arguments: tuple[Any, ...]

    def result(self) -> T:
        """Calculate here and now."""
        return self.function(*self.arguments)


_Task = tuple[Job[Any], "Future[Any]"]


class WorkerPool:
    """A few processes that calculate, started when they are needed, and threads that wait for them."""

    def __init__(self) -> None:
        self._queue: FairQueue[_Task] = FairQueue()
        self._lock = Lock()
        self._begun = False
        self._idle = [_Process() for _ in range(MOST_PROCESSES)]

    def submit(self, lane: str, calculation: Job[T]) -> "Future[T]":
        """Let a process calculate.

        Args:
            lane: whose calculation; those of one lane are done one after the other, and lanes take turns.
            calculation: what is to be done.

        Returns:
            Its result, or what it raised; LedgerUnavailableError where the process ended before.

        Raises:
            RateLimitedError: too many calculations of this lane wait.
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
        """Pass tasks to processes, for ever."""
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
                    for other in self._idle:  # the next task may come from somebody else, and not wait for a start
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
    """One process, started anew when it has ended."""

    def __init__(self) -> None:
        self._process: subprocess.Popen[bytes] | None = None
        self.used_at = monotonic()
        """When it was given its latest task."""

    def prepare(self, module: str) -> None:
        """Start the process, if there is none, and do not wait for it.

        Args:
            module: what it will probably be asked for: to load that takes most of its start.
        """
        if self._process is None:
            with suppress(OSError):  # whoever needs it tries again, and is told
                self._process = _started(module)

    def answer(self, calculation: Job[Any], future: "Future[Any]") -> None:
        """Calculate, and tell whoever waits."""
        self.used_at = monotonic()
        try:
            well, answer = self._asked(calculation)
        except Exception as error:  # noqa: BLE001 - whoever waits is told
            self.end()
            future.set_exception(error)
        else:
            if well:
                future.set_result(answer)
            else:
                future.set_exception(answer)

    def end(self) -> None:
        """End the process, if there is one."""
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
                    f"No process that calculates could be started: {error.strerror}. Repeat the request in a moment."
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
    """Start a process that finds the same modules as this one, and nothing in the folder where it stands."""
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(path for path in sys.path if path)}
    command = [sys.executable, "-P", "-m", "app.service.worker_pool.worker", str(NICENESS), module]
    return subprocess.Popen(command, env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE)  # noqa: S603 - our own


WORKER_POOL: Final = WorkerPool()
"""Of this process, for all its ledgers."""
