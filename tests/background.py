"""Background work of an application in this process: it begins when most tests have long ended."""

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any, ParamSpec, TypeVar

from app.service import placements
from app.service.monitoring import database_collector

P = ParamSpec("P")
T = TypeVar("T")

BEGIN_SECONDS = 10.0
"""Each kind of work opens a connection of its own, which on PostgreSQL takes longer than most tests' requests.

Tests that wait for such work set this to 0.
"""

WORK = ((placements, "deliver"), (placements, "run_maintenance"), (database_collector, "attempt"))


def begin_late() -> None:
    """Let all such work begin late."""
    for module, name in WORK:
        vars(module)[name] = _late(vars(module)[name])


def _late(work: Callable[P, Coroutine[Any, Any, T]]) -> Callable[P, Coroutine[Any, Any, T]]:
    async def begun(*arguments: P.args, **named: P.kwargs) -> T:
        await asyncio.sleep(BEGIN_SECONDS)
        return await work(*arguments, **named)

    return begun
