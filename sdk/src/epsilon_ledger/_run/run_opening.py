"""Runs that are being opened, for `await` and for `async with`."""

from collections.abc import Coroutine, Generator
from contextlib import AbstractAsyncContextManager
from types import TracebackType
from typing import Any

from epsilon_ledger._run.async_run import AsyncRun


class RunOpening(Coroutine[Any, Any, AsyncRun], AbstractAsyncContextManager[AsyncRun]):
    """A run that is being opened: `await` returns it, and `async with` enters it.

    Args:
        opening: coroutine that opens it.
    """

    def __init__(self, opening: Coroutine[Any, Any, AsyncRun]) -> None:
        self._opening = opening
        self._run: AsyncRun | None = None

    def __await__(self) -> Generator[Any, Any, AsyncRun]:
        """Open the run."""
        return self._opening.__await__()

    def send(self, value: Any) -> Any:  # noqa: ANN401 - as of a coroutine
        """As of a coroutine, so that a task can open the run."""
        return self._opening.send(value)

    def throw(self, *error: Any) -> Any:  # noqa: ANN401 - as of a coroutine
        """As of a coroutine."""
        return self._opening.throw(*error)

    def close(self) -> None:
        """As of a coroutine."""
        self._opening.close()

    async def __aenter__(self) -> AsyncRun:
        """Open the run and enter it."""
        self._run = await self._opening
        return await self._run.__aenter__()

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        """Complete or abort the run, as `AsyncRun` does."""
        if self._run is None:
            raise RuntimeError("The run was not entered.")
        await self._run.__aexit__(kind, error, traceback)
