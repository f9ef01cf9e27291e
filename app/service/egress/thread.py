"""The thread in which this process talks to others' servers.

Its event loop is not the one that serves requests: a server that is slow or hostile delays no step. What it can make
this thread do is bounded (`connection`), so a process of its own would add memory and no protection.
"""

import asyncio
from collections.abc import Coroutine
from concurrent.futures import Future
from threading import Lock, Thread
from typing import Any, Final, TypeVar

T = TypeVar("T")


class EgressThread:
    """A daemon thread with an event loop, started by the first request; it does not delay the end of the process."""

    def __init__(self) -> None:
        self._lock = Lock()
        self._loop: asyncio.AbstractEventLoop | None = None

    def submit(self, work: Coroutine[Any, Any, T]) -> "Future[T]":
        """Run a coroutine in the thread; cancelling the future cancels it."""
        with self._lock:
            if self._loop is None:
                self._loop = asyncio.SelectorEventLoop()
                Thread(target=self._loop.run_forever, name="egress", daemon=True).start()
        return asyncio.run_coroutine_threadsafe(work, self._loop)


EGRESS: Final = EgressThread()
"""The thread of this process."""
