"""Tests of both clients: the one for asyncio programs is driven as if its calls blocked."""

import asyncio
from collections.abc import Callable
from functools import partial
from inspect import isawaitable
from typing import Any, Self

import pytest

from epsilon_ledger import AsyncLedgerClient, AsyncRun, LedgerClient

OpenClient = Callable[..., LedgerClient]
"""Opens a client of the kind that is tested, with the arguments of `LedgerClient`."""

CLIENTS = [LedgerClient, AsyncLedgerClient]
blocking_only = pytest.mark.parametrize("open_client", [LedgerClient], indirect=True)
async_only = pytest.mark.parametrize("open_client", [AsyncLedgerClient], indirect=True)
"""For tests of threads and signals, and of tasks and event loops."""


class Driven:
    """An asynchronous client, or its run; its event loop stands still between calls, as during a training step."""

    def __init__(self, inner: Any, runner: asyncio.Runner) -> None:  # noqa: ANN401 - client or run
        self.inner, self._runner = inner, runner

    def __getattr__(self, name: str) -> Any:  # noqa: ANN401 - of the client
        found = getattr(self.inner, name)
        return partial(self._call, found) if callable(found) else found

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _call(self, method: Callable[..., Any], *arguments: object, **named: object) -> object:
        answer = method(*arguments, **named)
        made = self.wait(answer) if isawaitable(answer) else answer
        return Driven(made, self._runner) if isinstance(made, AsyncRun) else made

    def wait(self, work: Any) -> Any:  # noqa: ANN401 - of its result
        """Run until work is done; during another call, from another thread."""
        loop = self._runner.get_loop()
        if loop.is_running():
            return asyncio.run_coroutine_threadsafe(work, loop).result(timeout=30)
        return self._runner.run(work)
