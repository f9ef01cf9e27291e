"""The process that calculates: `python -m app.service.worker_pool.worker <niceness> <module>`, started by the service.

It loads the module, of which it will be asked for something. It reads calculations from its standard input and writes
results to its standard output, and ends with its parent.
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
"""Bytes before each message that say how long it is."""

LATER: Final = "scipy.optimize"
"""What formulas load when they first need it (0.2 s of a processor, the slowest part): the first plan need not wait."""

MOST_SECONDS: Final = 5.0
"""Of processor time: what is counted as at most a second takes no longer on the slowest machine worth the name."""


def main(niceness: int, module: str) -> None:
    """Calculate until nobody asks any more."""
    os.nice(niceness)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the service is interrupted, and ends this process
    signal.signal(signal.SIGPROF, _stop)
    for each in (module, LATER):
        import_module(each)
    with suppress(BrokenPipeError):  # the service has ended meanwhile
        while (question := receive(sys.stdin.buffer)) is not None:
            send(sys.stdout.buffer, _answered(*question))


def send(stream: BinaryIO, message: object) -> None:
    """Write a message.

    Args:
        stream: a pipe.
        message: what pickle takes.

    Raises:
        OSError: nobody reads.
    """
    data = pickle.dumps(message, pickle.HIGHEST_PROTOCOL)
    stream.write(len(data).to_bytes(LENGTH) + data)
    stream.flush()


def receive(stream: BinaryIO) -> Any:  # noqa: ANN401 - a message is anything
    """Read a message; both ends are this program.

    Args:
        stream: a pipe.

    Returns:
        The message; None: nobody writes any more.
    """
    head = stream.read(LENGTH)
    if len(head) < LENGTH:
        return None
    size = int.from_bytes(head)
    data = stream.read(size)
    return pickle.loads(data) if len(data) == size else None  # noqa: S301 - from the process that started this one


def _answered(function: Any, arguments: tuple[Any, ...]) -> tuple[bool, object]:  # noqa: ANN401 - any function of the service
    """Return whether a calculation ended well, and its result or error."""
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
