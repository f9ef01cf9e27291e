"""What a test waits for beside the processes and threads that it started."""

import time
from collections.abc import Callable
from contextlib import suppress

import httpx2

PATIENCE_SECONDS = 90.0
PAUSE_SECONDS = 0.1


def await_true(
    condition: Callable[[], object],
    log: Callable[[], object] = str,
    pause: float = PAUSE_SECONDS,
    seconds: float = PATIENCE_SECONDS,
) -> None:
    """Wait until something is so."""
    until = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < until, log()
        time.sleep(pause)


def status_of(url: str) -> int:
    """The status that a plain HTTP service answers with; 0: nothing listens."""
    with suppress(httpx2.TransportError):  # certificates need not be read, which takes 30 ms
        return httpx2.get(url, timeout=10, trust_env=False, verify=False).status_code
    return 0
