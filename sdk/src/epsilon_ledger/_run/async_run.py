"""The run for asyncio programs."""

import asyncio
from collections.abc import AsyncIterable, AsyncIterator, Iterable, Sequence
from types import TracebackType
from typing import Self, TypeVar

from epsilon_ledger._net.transport import AsyncTransport
from epsilon_ledger._run.context_exit import add_failure_note, completion_reason, exit_action
from epsilon_ledger._run.epochs import epoch_event, epoch_steps
from epsilon_ledger._run.grants import PrefetchConfig
from epsilon_ledger._run.method_binding import async_run_method
from epsilon_ledger._run.progress import Progress
from epsilon_ledger._run.run_base import RunBase
from epsilon_ledger._run.run_protocol import RunProtocol
from epsilon_ledger._run.training_charge import TrainingCharge, TrainingStateDict, charge_training
from epsilon_ledger._wire.coercion import whole
from epsilon_ledger._wire.errors import LedgerError
from epsilon_ledger._wire.events import Event, EventCount
from epsilon_ledger._wire.models import RunState, StepAuthorization
from epsilon_ledger._wire.requests import Request, RequestFlow
from epsilon_ledger._wire.responses import Response

T = TypeVar("T")


class AsyncRun(RunBase[asyncio.Task[Response]]):
    """`Run` with awaitable methods, opened by `AsyncLedgerClient.create_run`, `get_run` or `resume_run`.

    Tasks of one event loop may share it; their calls are serialized.

    Args:
        transport: to the ledger.
        state: latest state from the ledger.
        prefetch: prefetching of grants.
        step: training steps taken before, in all attempts; None if unknown.
        with_reservation: whether the run's active reservation belongs to this trainer.
        begins_attempt: whether the run's attempt was begun for this trainer.
    """

    def __init__(
        self,
        transport: AsyncTransport,
        state: RunState,
        prefetch: PrefetchConfig,
        *,
        step: int | None,
        with_reservation: bool = False,
        begins_attempt: bool = False,
    ) -> None:
        super().__init__(state, prefetch, step=step, with_reservation=with_reservation, begins_attempt=begins_attempt)
        self._transport = transport
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
            return await self._transport.execute(self._authorize(count, event, events, truncate=truncate))

    async def track(self, batches: Iterable[T] | AsyncIterable[T], *, progress: bool | None = None) -> AsyncIterator[T]:
        """As `Run.track`."""
        with Progress(self.name, batches, enabled=progress) as bar:
            async for batch in _as_async(batches):
                authorization = await self.authorize()
                bar.show(authorization, authorization.count)
                yield batch

    async def charge_training(
        self,
        event: Event,
        *,
        steps: int,
        resume: TrainingStateDict | None = None,
        reproducible: bool = False,
    ) -> TrainingCharge:
        """As `Run.charge_training`; the charge's own methods need no `await`."""
        flow = charge_training(self._protocol, event, steps=steps, resume=resume, reproducible=reproducible)
        return await self._execute(flow)

    async def charge_epoch(
        self,
        batches: Iterable[object] | AsyncIterable[object],
        event: Event | None = None,
        *,
        events: Sequence[EventCount] | None = None,
        steps: int | None = None,
        assume_disjoint: bool = False,
    ) -> TrainingCharge:
        """As `Run.charge_epoch`."""
        epoch = (
            epoch_event(self.state, event, events),
            epoch_steps(batches, events, steps, assume_disjoint=assume_disjoint),
        )
        return await self.charge_training(epoch[0], steps=epoch[1])

    def track_epoch(
        self,
        batches: Iterable[T] | AsyncIterable[T],
        event: Event | None = None,
        *,
        events: Sequence[EventCount] | None = None,
        steps: int | None = None,
        assume_disjoint: bool = False,
        progress: bool | None = None,
    ) -> AsyncIterator[T]:
        """As `Run.track_epoch`."""
        charged = epoch_event(self.state, event, events)
        most = epoch_steps(batches, events, steps, assume_disjoint=assume_disjoint)
        return self._track_epoch(batches, charged, most, progress=progress)

    async def _track_epoch(
        self, batches: Iterable[T] | AsyncIterable[T], event: Event, steps: int, *, progress: bool | None
    ) -> AsyncIterator[T]:
        charge: TrainingCharge | None = None
        with Progress(self.name, range(steps), enabled=progress) as bar:
            async for batch in _as_async(batches):
                charge = charge or await self.charge_training(event, steps=steps)
                charge.authorize()
                bar.show(self.state, 1)
                yield batch

    resolve_in_doubt = async_run_method(RunProtocol.resolve_in_doubt)
    preview = async_run_method(RunProtocol.preview)
    report = async_run_method(RunProtocol.report)
    reserve = async_run_method(RunProtocol.reserve)
    wait_for_reservation = async_run_method(RunProtocol.wait_for_reservation)
    commit = async_run_method(RunProtocol.commit)
    void = async_run_method(RunProtocol.void)
    renew = async_run_method(RunProtocol.renew)
    complete = async_run_method(RunProtocol.complete)
    pause = async_run_method(RunProtocol.pause)
    resume = async_run_method(RunProtocol.resume)
    abort = async_run_method(RunProtocol.abort)
    refresh = async_run_method(RunProtocol.refresh)
    request_limit = async_run_method(RunProtocol.request_limit)

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
                await self.complete(reason=completion_reason(error))
            else:
                self._cancel()
                await self.abort()
        except LedgerError as second:
            if error is None:
                raise
            add_failure_note(error, action, self.id, second)

    def _cancel(self) -> None:
        if self._inflight is not None:
            self._inflight.cancel()
            self._inflight = None

    async def _execute(self, flow: RequestFlow[T]) -> T:
        self._require_own_process()
        async with self._lock:
            return await self._transport.execute(self._alone(flow))

    def _start(self, request: Request) -> asyncio.Task[Response]:
        """Send a request in a task."""
        inflight = asyncio.create_task(self._transport.send(request))
        inflight.add_done_callback(_consume_exception)
        return inflight


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
