"""The run for asyncio programs."""

import asyncio
import time
from collections.abc import AsyncIterable, AsyncIterator, Iterable, Sequence
from types import TracebackType
from typing import Self, TypeVar

from epsilon_ledger._net.transport import AsyncTransport
from epsilon_ledger._run.context_exit import add_failure_note, exit_action
from epsilon_ledger._run.grants import PrefetchConfig
from epsilon_ledger._run.method_binding import async_run_method
from epsilon_ledger._run.progress import Progress
from epsilon_ledger._run.run_properties import RunProperties
from epsilon_ledger._run.run_protocol import RunProtocol
from epsilon_ledger._wire.coercion import whole
from epsilon_ledger._wire.errors import LedgerError
from epsilon_ledger._wire.events import Event, EventCount
from epsilon_ledger._wire.models import RunState, StepAuthorization
from epsilon_ledger._wire.requests import RequestFlow
from epsilon_ledger._wire.responses import Response

T = TypeVar("T")


class AsyncRun(RunProperties):
    """`Run` with awaitable methods, opened by `AsyncLedgerClient.create_run`, `get_run` or `resume_run`.

    Tasks of one event loop may share it; their calls are serialized.

    Args:
        transport: to the ledger.
        state: latest state from the ledger.
        prefetch: prefetching of grants.
        step: training steps taken before, in all attempts; None if unknown.
        with_plan: whether the run's active reservation belongs to this trainer.
    """

    def __init__(
        self,
        transport: AsyncTransport,
        state: RunState,
        prefetch: PrefetchConfig,
        *,
        step: int | None,
        with_plan: bool = False,
    ) -> None:
        super().__init__(RunProtocol(state, prefetch, time.monotonic, step=step, with_plan=with_plan))
        self._transport = transport
        self._background = prefetch.background
        self._inflight: asyncio.Task[Response] | None = None
        self._lock = asyncio.Lock()

    async def authorize(
        self,
        count: int = 1,
        *,
        event: Event | None = None,
        events: Sequence[EventCount] | None = None,
        truncate: bool = False,
    ) -> StepAuthorization:
        """As `Run.authorize`."""
        count = whole("count", count)
        self._require_own_process()
        async with self._lock:
            if self._inflight is not None and self._inflight.done():
                await self._await_grant()
            local = events is None and not truncate and (self._background or not self._protocol.grants.renewal_due)
            authorization = await self._allocate(count, event) if local else None
            if authorization is None:
                if self._inflight is not None:
                    await self._await_grant()
                flow = self._protocol.authorize(count, event, events, truncate=truncate)
                authorization = await self._transport.execute(flow)
            if self._background and self._inflight is None:
                request = self._protocol.grants.prefetch_request()
                if request is not None:
                    self._inflight = asyncio.create_task(self._transport.send(request))
                    self._inflight.add_done_callback(_consume_exception)
            return authorization

    async def track(self, batches: Iterable[T] | AsyncIterable[T], *, progress: bool | None = None) -> AsyncIterator[T]:
        """As `Run.track`."""
        with Progress(self.name, batches, enabled=progress) as bar:
            async for batch in _as_async(batches):
                bar.show(await self.authorize())
                yield batch

    settle = async_run_method(RunProtocol.settle)
    preview = async_run_method(RunProtocol.preview)
    report = async_run_method(RunProtocol.report)
    reserve = async_run_method(RunProtocol.reserve)
    commit = async_run_method(RunProtocol.commit)
    void = async_run_method(RunProtocol.void)
    renew = async_run_method(RunProtocol.renew)
    complete = async_run_method(RunProtocol.complete)
    pause = async_run_method(RunProtocol.pause)
    resume = async_run_method(RunProtocol.resume)
    abort = async_run_method(RunProtocol.abort)
    refresh = async_run_method(RunProtocol.refresh)

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
        action = exit_action(self.status, error)
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
            add_failure_note(error, action, self.id, second)

    async def _allocate(self, count: int, event: Event | None) -> StepAuthorization | None:
        """Take steps from the current grant or the one in flight."""
        if self._protocol.step_requests.in_doubt:
            return None
        authorization = self._protocol.grants.allocate(count, event)
        if authorization is None and self._inflight is not None:
            await self._await_grant()
            authorization = self._protocol.grants.allocate(count, event)
        return authorization

    async def _await_grant(self) -> None:
        """Wait for the grant in flight and adopt it."""
        inflight = self._inflight
        assert inflight is not None, "something is on its way"
        # The waiting task may be cancelled; the request in flight goes on.
        await asyncio.wait([inflight])
        self._inflight = None
        if inflight.cancelled():
            return  # the loop is shutting down, or the request is sent again
        try:
            outcome: Response | LedgerError = inflight.result()
        except LedgerError as error:
            outcome = error
        self._protocol.grants.handle_outcome(outcome)

    def _cancel(self) -> None:
        if self._inflight is not None:
            self._inflight.cancel()
            self._inflight = None

    async def _execute(self, flow: RequestFlow[T]) -> T:
        self._require_own_process()
        async with self._lock:
            if self._inflight is not None:
                await self._await_grant()
            return await self._transport.execute(flow)


def _consume_exception(inflight: asyncio.Task[Response]) -> None:
    """Retrieve a failure that no one awaits any more."""
    if not inflight.cancelled():
        inflight.exception()


async def _as_async(batches: Iterable[T] | AsyncIterable[T]) -> AsyncIterator[T]:
    if isinstance(batches, AsyncIterable):
        async for batch in batches:
            yield batch
    else:
        for batch in batches:
            yield batch
