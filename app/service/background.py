"""Work beside the requests: what is begun with the service, ends with it, and must not end before it."""

import asyncio
from collections.abc import Callable, Coroutine
from contextlib import suppress
from threading import Thread
from typing import Final

STOPPING: Final = "stopping"
"""What the state of a request says once its process has been told to stop."""


async def apart(work: Callable[[], None]) -> None:
    """Wait for work that waits for somebody else's machine, and leave it to itself when cancelled.

    Other threads, of `asyncio.to_thread` and of requests, are waited for before the process ends; this one is not.

    Args:
        work: what is done in a thread of its own.
    """
    loop = asyncio.get_running_loop()
    done = loop.create_future()

    def tell(failure: Exception | None) -> None:
        if not done.done():
            done.set_result(None) if failure is None else done.set_exception(failure)

    def run() -> None:
        failure = None
        try:
            work()
        except Exception as error:  # noqa: BLE001 - it is raised where it is waited for
            failure = error
        with suppress(RuntimeError):  # the loop is closed: nobody waits any more
            loop.call_soon_threadsafe(tell, failure)

    Thread(target=run, daemon=True).start()
    await done


class TaskRegistry:
    """Tasks that go on until the service stops, by their names; used from one event loop."""

    def __init__(self) -> None:
        self._tasks: dict[str, asyncio.Task[None]] = {}

    def start(self, name: str, work: Coroutine[object, object, None]) -> None:
        """Begin a task.

        Args:
            name: says what it does, and where.
            work: goes on until it is cancelled.
        """
        self._tasks[name] = asyncio.create_task(work, name=name)

    @property
    def names(self) -> list[str]:
        """All that was begun."""
        return list(self._tasks)

    @property
    def ended(self) -> list[str]:
        """Tasks that have ended although nobody stopped them: a mistake of the service."""
        return [name for name, task in self._tasks.items() if task.done()]

    async def stop(self) -> None:
        """End all of them, and wait until they have."""
        tasks, self._tasks = list(self._tasks.values()), {}
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
