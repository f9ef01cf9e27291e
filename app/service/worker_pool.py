"""Pool of worker processes: long calculations must not hold the interpreter that decides steps.

Measured with six planning clients (docs/operations/performance.md): with two threads instead, a step took three times
as long, and up to 0.3 s. A worker process is `python -m app.service.worker_pool <descriptor of its pipe> <module>`.
"""

import os
import signal
import subprocess
import sys
import traceback
from collections import OrderedDict, deque
from collections.abc import Callable
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import dataclass
from importlib import import_module
from multiprocessing import Pipe
from multiprocessing.connection import Connection
from pathlib import Path
from threading import Condition, Lock, Thread
from time import monotonic
from types import FrameType
from typing import Any, Final, Generic, TypeVar, cast

from app.accounting.errors import PlanTooExpensiveError
from app.accounting.pricing_effort import MAX_WORK, bounded
from app.ledger.errors import LedgerUnavailableError, RateLimitedError

T = TypeVar("T")

MOST_PROCESSES: Final = 3
"""One lane uses one process. The others start after the first result, ready for another organisation."""

RESERVED: Final = 1
"""Processes that only urgent lanes use, so that no step waits behind plans."""

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

LATER: Final = "scipy.optimize"
"""Imported early, since the formulas import it late (0.3 s); it imports scipy.special, too."""

MOST_SECONDS, AGAIN_SECONDS = 5.0, 0.5
"""Limit of processor time of a job, and time after which it is stopped again; one estimated at a second stays under it
on slow machines."""

MOST_BYTES: Final = 400_000_000
"""Address space of a job besides what the process has when it is ready."""


class _StoppedError(BaseException):
    """The time of a job is over: no handler of errors catches it, as they catch PlanTooExpensiveError."""


class FairQueue(Generic[T]):
    """Queue with a lane for each organisation; one task of a lane runs at a time."""

    def __init__(self) -> None:
        self._changed = Condition()
        self._lanes: OrderedDict[str, deque[T]] = OrderedDict()
        self._at_work: set[str] = set()
        self._urgent: set[str] = set()

    def put(self, lane: str, task: T, *, urgent: bool = False) -> None:
        """Add a task to a lane, which is urgent or not; RateLimitedError if too many are waiting there."""
        with self._changed:
            waiting = self._lanes.setdefault(lane, deque())
            if len(waiting) >= MOST_WAITING:
                raise RateLimitedError(
                    f"{MOST_WAITING} calculations of this organisation are waiting. Retry the request shortly.",
                    retry_after=RETRY_AFTER,
                )
            waiting.append(task)
            if urgent:
                self._urgent.add(lane)
            self._changed.notify_all()  # not each taker takes each task

    def take(self, seconds: float, *, urgent: bool = False) -> tuple[str, T] | None:
        """Wait for a task of an idle lane, and mark the lane as busy until `done`.

        Args:
            seconds: to wait at most.
            urgent: whether to take tasks of urgent lanes only.

        Returns:
            The lane and the task; None on timeout.
        """
        with self._changed:
            if not self._changed.wait_for(lambda: self._next(urgent=urgent) is not None, seconds):
                return None
            lane = self._next(urgent=urgent)
            assert lane is not None, "it was waited for"
            waiting = self._lanes.pop(lane)
            task = waiting.popleft()
            if waiting:  # behind all others
                self._lanes[lane] = waiting
            else:
                self._urgent.discard(lane)
            self._at_work.add(lane)
            return lane, task

    def done(self, lane: str) -> None:
        """Mark a lane as idle."""
        with self._changed:
            self._at_work.discard(lane)
            self._changed.notify_all()

    def _next(self, *, urgent: bool) -> str | None:
        lanes = (lane for lane in self._lanes if lane in self._urgent or not urgent)
        return next((lane for lane in lanes if lane not in self._at_work), None)


@dataclass(frozen=True)
class Job(Generic[T]):
    """A picklable call of a top-level function.

    In a worker process it raises PlanTooExpensiveError beyond `most` microseconds of work.
    """

    function: Callable[..., T]
    arguments: tuple[Any, ...]
    most: int = MAX_WORK

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

    def submit(self, lane: str, calculation: Job[T], *, urgent: bool = False) -> "Future[T]":
        """Queue a job; jobs of one lane run sequentially, and lanes take turns.

        A process is kept free for lanes that are urgent. The future has the result or error: LedgerUnavailableError if
        the process died. RateLimitedError: a full lane.
        """
        future: Future[T] = Future()
        self._queue.put(lane, (calculation, cast("Future[Any]", future)), urgent=urgent)
        with self._lock:
            if not self._begun:
                self._begun = True
                for number in range(MOST_PROCESSES):
                    Thread(target=self._work, args=(number < RESERVED,), name="calculator", daemon=True).start()
        return future

    def _work(self, reserved: bool) -> None:  # noqa: FBT001 - a thread passes it
        """Pass tasks, or urgent ones only, to processes, forever."""
        while True:
            taken = self._queue.take(IDLE_SECONDS, urgent=reserved)
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
        self._pipe: Connection | None = None
        self.used_at = monotonic()
        """Start of its latest task, by the monotonic clock."""

    def prepare(self, module: str) -> None:
        """Start the process without waiting; preload the module of the likely next job."""
        if self._process is None:
            with suppress(OSError):  # the next job retries, and reports the error
                self._start(module)

    def answer(self, calculation: Job[Any], future: "Future[Any]") -> None:
        """Run a job in the process and complete its future."""
        self.used_at = monotonic()
        try:
            succeeded, result = self._run(calculation)
        except Exception as error:  # noqa: BLE001 - raised from the future
            self.end()
            future.set_exception(error)
        else:
            if succeeded:
                future.set_result(result)
            else:
                future.set_exception(result)

    def end(self) -> None:
        """Kill the process if it is running."""
        process, self._process = self._process, None
        if process is not None:
            process.kill()
            process.wait()
        if self._pipe is not None:
            self._pipe.close()

    def _run(self, calculation: Job[Any]) -> tuple[bool, Any]:
        """Run a job in the process; return whether it succeeded, and its result or error."""
        if self._process is None or self._process.poll() is not None:
            self.end()
            try:
                self._start(calculation.function.__module__)
            except OSError as error:
                raise LedgerUnavailableError(
                    f"No process that calculates could be started: {error.strerror}. Retry the request shortly."
                ) from error
        assert self._pipe is not None, "it was made with the process"
        with suppress(EOFError, OSError):  # the process has ended
            self._pipe.send((calculation.function, calculation.arguments, calculation.most))
            if self._pipe.poll(ANSWER_SECONDS):
                return cast("tuple[bool, Any]", self._pipe.recv())
        raise LedgerUnavailableError("The process that calculates ended without an answer. Repeat the request.")

    def _start(self, module: str) -> None:
        """Start the process with this one's import path, without the working folder."""
        environment = os.environ | {"PYTHONPATH": os.pathsep.join(path for path in sys.path if path)}
        self._pipe, its_end = Pipe()
        command = [sys.executable, "-P", "-m", "app.service.worker_pool", str(its_end.fileno()), module]
        with its_end:
            self._process = subprocess.Popen(  # noqa: S603 - our own
                command, env=environment, stdin=subprocess.DEVNULL, pass_fds=[its_end.fileno()]
            )


WORKER_POOL: Final = WorkerPool()
"""The pool of this process, for all its ledgers."""


def run_worker(pipe: Connection, module: str) -> None:
    """Import a module, and run the jobs that arrive until the service has ended."""
    os.nice(NICENESS)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches the service, which ends this process
    signal.signal(signal.SIGPROF, _stop)
    for each in (module, LATER):
        import_module(each)
    _limit_memory()
    with suppress(EOFError, OSError):
        while True:
            pipe.send(_run_job(*pipe.recv()))


def _limit_memory() -> None:
    """Limit the address space to MOST_BYTES more than it is now, where the system tells it."""
    import resource  # noqa: PLC0415 - Windows lacks it, and imports this module

    with suppress(OSError):
        pages = int(Path("/proc/self/statm").read_text().split()[0])
        _, most = resource.getrlimit(resource.RLIMIT_AS)
        resource.setrlimit(resource.RLIMIT_AS, (pages * resource.getpagesize() + MOST_BYTES, most))


def _run_job(function: Callable[..., object], arguments: tuple[Any, ...], most: int) -> tuple[bool, object]:
    """Run a job; return whether it succeeded, and its result or error."""
    try:
        signal.setitimer(signal.ITIMER_PROF, MOST_SECONDS, AGAIN_SECONDS)
        try:
            with bounded(most):
                return True, function(*arguments)
        finally:
            signal.setitimer(signal.ITIMER_PROF, 0)
    except _StoppedError:
        signal.setitimer(signal.ITIMER_PROF, 0)
        return False, _too_expensive(f"was calculated for {MOST_SECONDS:g} s of a processor without an end")
    except MemoryError:
        return False, _too_expensive(f"needed more than {MOST_BYTES / 1e6:g} MB of memory")
    except Exception as error:  # noqa: BLE001 - the service raises it
        error.add_note(traceback.format_exc())
        return False, error


def _stop(number: int, frame: FrameType | None) -> None:
    del number, frame
    raise _StoppedError


def _too_expensive(what: str) -> PlanTooExpensiveError:
    return PlanTooExpensiveError(f"This {what}. Send fewer different events.")


if __name__ == "__main__":
    run_worker(Connection(int(sys.argv[1])), sys.argv[2])
