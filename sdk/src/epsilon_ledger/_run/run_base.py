"""What the two runs share: flows whose requests and waits they execute."""

import time
from abc import ABC, abstractmethod
from asyncio import Task
from collections.abc import Generator, Sequence
from concurrent.futures import Future
from typing import Generic, TypeAlias, TypeVar

from epsilon_ledger._run.grants import PrefetchConfig
from epsilon_ledger._run.run_properties import RunProperties
from epsilon_ledger._run.run_protocol import RunProtocol
from epsilon_ledger._wire.errors import LedgerError
from epsilon_ledger._wire.events import Event, EventCount
from epsilon_ledger._wire.models import RunState, StepAuthorization
from epsilon_ledger._wire.requests import Pause, Request, RequestFlow
from epsilon_ledger._wire.responses import Response

T = TypeVar("T")
F = TypeVar("F", Future[Response], Task[Response])

RunFlow: TypeAlias = Generator[Request | Pause | F, Response, T]
"""A `RequestFlow` that also yields a request in flight, to be continued when that has ended."""


class RunBase(RunProperties, ABC, Generic[F]):
    """Base of runs, whose flows are executed one at a time.

    Args:
        state: latest state from the ledger.
        prefetch: prefetching of grants.
        step: training steps taken before, in all attempts; None if unknown.
        with_reservation: whether the run's active reservation belongs to this trainer.
        begins_attempt: whether the run's attempt was begun for this trainer.
    """

    def __init__(
        self,
        state: RunState,
        prefetch: PrefetchConfig,
        *,
        step: int | None,
        with_reservation: bool,
        begins_attempt: bool,
    ) -> None:
        super().__init__(
            RunProtocol(
                state,
                prefetch,
                time.monotonic,
                step=step,
                with_reservation=with_reservation,
                begins_attempt=begins_attempt,
            )
        )
        self._background = prefetch.background
        self._inflight: F | None = None

    @abstractmethod
    def _start(self, request: Request) -> F:
        """Send a request in the background."""

    def _authorize(
        self, count: int, event: Event | None, events: Sequence[EventCount] | None, *, truncate: bool
    ) -> RunFlow[F, StepAuthorization]:
        """Authorize steps from a grant or directly, and prefetch the next grant."""
        if self._inflight is not None and self._inflight.done():
            yield from self._adopt_grant()
        grants = self._protocol.grants
        local = grants.are_used and events is None and not truncate and (self._background or not grants.renewal_due)
        authorization = (yield from self._allocate(count, event)) if local else None
        if authorization is None:
            flow = self._protocol.authorize(count, event, events, truncate=truncate)
            authorization = yield from (flow if self._inflight is None else self._alone(flow))
        self._prefetch()
        return authorization

    def _take_granted(self, count: int, event: Event | None) -> StepAuthorization | None:
        """Authorize steps from the grant in use, as `_authorize`; None if that has to send or to adopt something."""
        protocol = self._protocol
        if (self._inflight is not None and self._inflight.done()) or protocol.step_requests.in_doubt:
            return None
        if not self._background and protocol.grants.renewal_due:
            return None
        authorization = protocol.grants.allocate(count, event)
        if authorization is not None:
            self._prefetch()
        return authorization

    def _prefetch(self) -> None:
        """Request the next grant in the background, if it is due."""
        if self._background and self._inflight is None:
            request = self._protocol.grants.prefetch_request()
            if request is not None:
                self._inflight = self._start(request)

    def _alone(self, flow: RequestFlow[T]) -> RunFlow[F, T]:
        """Adopt the grant in flight, if any, before a flow."""
        if self._inflight is not None:
            yield from self._adopt_grant()
        return (yield from flow)

    def _allocate(self, count: int, event: Event | None) -> RunFlow[F, StepAuthorization | None]:
        """Take steps from the current grant or the one in flight."""
        if self._protocol.step_requests.in_doubt:
            return None
        authorization = self._protocol.grants.allocate(count, event)
        if authorization is None and self._inflight is not None:
            yield from self._adopt_grant()
            authorization = self._protocol.grants.allocate(count, event)
        return authorization

    def _adopt_grant(self) -> RunFlow[F, None]:
        """Wait for the grant in flight and adopt it."""
        inflight = self._inflight
        assert inflight is not None, "something is on its way"
        yield inflight  # the caller may be interrupted; the request in flight goes on
        self._inflight = None
        if inflight.cancelled():
            return  # the loop is shutting down, or the request is sent again
        try:
            outcome: Response | LedgerError = inflight.result()
        except LedgerError as error:
            outcome = error
        self._protocol.grants.handle_outcome(outcome)
