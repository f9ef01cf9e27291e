"""The worker process: `python -m app.service.worker_pool.worker <niceness> <module>`.

It imports the module, reads jobs from standard input, writes results to standard output, and ends with its parent.
"""

import os
import pickle
import signal
import sys
import traceback
from contextlib import suppress
from importlib import import_module
from types import FrameType
from typing import Any, BinaryIO, Final

from app.accounting.errors import PlanTooExpensiveError
from app.accounting.work import bounded

LENGTH: Final = 8
"""Size of the length prefix in bytes."""

LATER: Final = "scipy.optimize"
"""Imported early, since the formulas import it late (0.3 s); it imports scipy.special, too."""

MOST_SECONDS: Final = 5.0
"""Limit of processor time; a job estimated at a second stays under it on slow machines."""


def main(niceness: int, module: str) -> None:
    """Run jobs until standard input closes."""
    os.nice(niceness)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches the service, which ends this process
    signal.signal(signal.SIGPROF, _stop)
    for each in (module, LATER):
        import_module(each)
    with suppress(BrokenPipeError):  # the service has ended
        while (question := receive(sys.stdin.buffer)) is not None:
            send(sys.stdout.buffer, _run_job(*question))


def send(stream: BinaryIO, message: object) -> None:
    """Write a pickled message to a pipe. OSError: the reader has closed the pipe."""
    data = pickle.dumps(message, pickle.HIGHEST_PROTOCOL)
    stream.write(len(data).to_bytes(LENGTH) + data)
    stream.flush()


def receive(stream: BinaryIO) -> Any:  # noqa: ANN401 - a message is anything
    """Read a message from a pipe, or None at its end."""
    head = stream.read(LENGTH)
    if len(head) < LENGTH:
        return None
    size = int.from_bytes(head)
    data = stream.read(size)
    return pickle.loads(data) if len(data) == size else None  # noqa: S301 - from the process that started this one


def _run_job(function: Any, arguments: tuple[Any, ...]) -> tuple[bool, object]:  # noqa: ANN401 - any function of the service
    """Run a job; return whether it succeeded, and its result or error."""
    signal.setitimer(signal.ITIMER_PROF, MOST_SECONDS)
    try:
        with bounded():
            return True, function(*arguments)
    except Exception as error:  # noqa: BLE001 - the parent raises it
        error.add_note(traceback.format_exc())
        return False, error
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)


def _stop(number: int, frame: FrameType | None) -> None:
    del number, frame
    raise PlanTooExpensiveError(
        f"This was calculated for {MOST_SECONDS:g} s of a processor without an end. Send fewer different events."
    )


if __name__ == "__main__":
    main(int(sys.argv[1]), sys.argv[2])
