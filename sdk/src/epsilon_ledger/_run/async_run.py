"""The run for asyncio programs."""

import asyncio
import time
from collections.abc import AsyncIterable, AsyncIterator, Iterable, Sequence
from types import TracebackType
from typing import Self, TypeVar

from epsilon_ledger._net.transport import AsyncTransport
from epsilon_ledger._run.context_exit import ending, note_of
from epsilon_ledger._run.grants import PrefetchConfig
from epsilon_ledger._run.method_binding import async_run_method
from epsilon_ledger._run.progress import Progress
from epsilon_ledger._run.run_properties import RunFacts
from epsilon_ledger._run.run_protocol import RunDialogue
from epsilon_ledger._wire.coercion import whole
from epsilon_ledger._wire.errors import LedgerError
from epsilon_ledger._wire.events import Event, EventCount
from epsilon_ledger._wire.models import Admission, RunState
from epsilon_ledger._wire.requests import RequestFlow
from epsilon_ledger._wire.responses import Response

T = TypeVar("T")


class AsyncRun(RunFacts):
    """`Run` with awaitable methods, opened by `AsyncLedgerClient.register_run`, `get_run` or `resume_run`.

    Tasks of one event loop may share it; their calls are serialized.

    Args:
        transport: to the ledger.
        state: latest state from the ledger.
        ahead: prefetching of grants.
        step: training steps taken before, in all attempts; None if unknown.
        with_plan: whether the run's active reservation belongs to this trainer.
    """

    def __init__(
        self,
        transport: AsyncTransport,
        state: RunState,
        ahead: PrefetchConfig,
        *,
        step: int | None,
        with_plan: bool = False,
    ) -> None:
        super().__init__(RunDialogue(state, ahead, time.monotonic, step=step, with_plan=with_plan))
        self._transport = transport
        self._background = ahead.background
        self._flight: asyncio.Task[Response] | None = None
        self._lock = asyncio.Lock()

    async def authorize(
        self,
        count: int = 1,
        *,
        event: Event | None = None,
        events: Sequence[EventCount] | None = None,
        truncate: bool = False,
    ) -> Admission:
        """As `Run.authorize`."""
        count = whole("count", count)
        self._require_own_process()
        async with self._lock:
            if self._flight is not None and self._flight.done():
                await self._land()
            local = events is None and not truncate and (self._background or not self._dialogue.granting.overdue)
            admission = await self._granted(count, event) if local else None
            if admission is None:
                if self._flight is not None:
                    await self._land()
                talk = self._dialogue.authorize(count, event, events, truncate=truncate)
                admission = await self._transport.carry(talk)
            if self._background and self._flight is None:
                request = self._dialogue.granting.look_ahead()
                if request is not None:
                    self._flight = asyncio.create_task(self._transport.send(request))
                    self._flight.add_done_callback(_heard)
            return admission

    async def track(self, batches: Iterable[T] | AsyncIterable[T], *, progress: bool | None = None) -> AsyncIterator[T]:
        """As `Run.track`."""
        with Progress(self.name, batches, wanted=progress) as bar:
            async for batch in _awaited(batches):
                bar.show(await self.authorize())
                yield batch

    settle = async_run_method(RunDialogue.settle)
    preview = async_run_method(RunDialogue.preview)
    report = async_run_method(RunDialogue.report)
    reserve = async_run_method(RunDialogue.reserve)
    commit = async_run_method(RunDialogue.commit)
    void = async_run_method(RunDialogue.void)
    renew = async_run_method(RunDialogue.renew)
    complete = async_run_method(RunDialogue.complete)
    pause = async_run_method(RunDialogue.pause)
    resume = async_run_method(RunDialogue.resume)
    abort = async_run_method(RunDialogue.abort)
    refresh = async_run_method(RunDialogue.refresh)

    async def __aenter__(self) -> Self:
        """Return the run."""
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        """As `Run.__exit__`."""
        action = ending(self.status, error)
        if action is None:
            self._cancel()
            return
        try:
            if action == "complete":
                await self.complete()
            else:
                self._cancel()
                await self.abort()
        except LedgerError as second:
            if error is None:
                raise
            note_of(error, action, self.id, second)

    async def _granted(self, count: int, event: Event | None) -> Admission | None:
        """Take steps from the current grant or the one in flight."""
        if self._dialogue.asking.in_doubt:
            return None
        admission = self._dialogue.granting.granted(count, event)
        if admission is None and self._flight is not None:
            await self._land()
            admission = self._dialogue.granting.granted(count, event)
        return admission

    async def _land(self) -> None:
        """Wait for the grant in flight and adopt it."""
        flight = self._flight
        assert flight is not None, "something is on its way"
        # The waiting task may be cancelled; the request in flight goes on.
        await asyncio.wait([flight])
        self._flight = None
        if flight.cancelled():
            return  # the loop is shutting down, or the request is sent again
        try:
            outcome: Response | LedgerError = flight.result()
        except LedgerError as error:
            outcome = error
        self._dialogue.granting.settle(outcome)

    def _cancel(self) -> None:
        if self._flight is not None:
            self._flight.cancel()
            self._flight = None

    async def _carry(self, talk: RequestFlow[T]) -> T:
        self._require_own_process()
        async with self._lock:
            if self._flight is not None:
                await self._land()
            return await self._transport.carry(talk)


def _heard(flight: asyncio.Task[Response]) -> None:
    """Retrieve a failure that no one awaits any more."""
    if not flight.cancelled():
        flight.exception()


async def _awaited(batches: Iterable[T] | AsyncIterable[T]) -> AsyncIterator[T]:
    if isinstance(batches, AsyncIterable):
        async for batch in batches:
            yield batch
    else:
        for batch in batches:
            yield batch
