"""Background tasks with the lifetime of the service."""

import asyncio
import logging
from collections.abc import Callable, Coroutine
from contextlib import suppress
from threading import Thread
from typing import Final, TypeVar

from sqlalchemy.exc import SQLAlchemyError

from app.ledger.errors import LedgerError
from app.persistence.database import error_summary
from app.service import metrics

T = TypeVar("T")

STOPPING: Final = "stopping"
"""Key in a request's state that is set while the process is stopping."""

_logger = logging.getLogger(__name__)


async def attempt(task: str, failure: str, work: Callable[[], T]) -> T | None:
    """Run blocking work of a background task in a thread; log a failure and return None.

    Args:
        task: the name under which the metrics record a success.
        failure: the message in the log.
        work: to run.
    """
    try:
        result = await asyncio.to_thread(work)
    except (LedgerError, SQLAlchemyError) as error:  # repeats every few seconds: log one line
        _logger.warning("%s: %s", failure, error_summary(error))
        return None
    except Exception:
        _logger.exception("%s", failure)
        return None
    metrics.record_task_success(task)
    return result


async def repeat(task: str, failure: str, seconds: float, *jobs: Callable[[], object], at_once: bool = False) -> None:
    """Attempt jobs one after the other, again and again until cancelled; `at_once`: the first time without a pause."""
    while True:
        await asyncio.sleep(0 if at_once else seconds)
        at_once = False
        for job in jobs:
            await attempt(task, failure, job)


async def run_detached(work: Callable[[], None]) -> None:
    """Run blocking work in a daemon thread, which cancellation abandons.

    Unlike threads of `asyncio.to_thread`, it does not delay the end of the process.
    """
    loop = asyncio.get_running_loop()
    done = loop.create_future()

    def complete(failure: Exception | None) -> None:
        if not done.done():
            done.set_result(None) if failure is None else done.set_exception(failure)

    def run() -> None:
        failure = None
        try:
            work()
        except Exception as error:  # noqa: BLE001 - raised at the await
            failure = error
        with suppress(RuntimeError):  # the loop is closed
            loop.call_soon_threadsafe(complete, failure)

    Thread(target=run, daemon=True).start()
    await done


class TaskRegistry:
    """Named tasks that run until the service stops; used from one event loop."""

    def __init__(self) -> None:
        self._tasks: dict[str, asyncio.Task[None]] = {}

    def start(self, name: str, work: Coroutine[object, object, None]) -> None:
        """Start a task that runs until it is cancelled."""
        self._tasks[name] = asyncio.create_task(work, name=name)

    @property
    def names(self) -> list[str]:
        """Names of all started tasks."""
        return list(self._tasks)

    @property
    def ended(self) -> list[str]:
        """Tasks that have ended unexpectedly: a defect of the service."""
        return [name for name, task in self._tasks.items() if task.done()]

    async def stop(self) -> None:
        """Cancel all tasks and wait for their end."""
        tasks, self._tasks = list(self._tasks.values()), {}
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
