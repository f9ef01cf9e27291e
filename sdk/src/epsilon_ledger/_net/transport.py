"""Requests with retries, under one idempotency key and with the same bytes."""

import asyncio
from collections.abc import Generator
from concurrent.futures import Future, wait
from contextlib import aclosing, closing
from typing import Any, TypeVar

import httpx2

from epsilon_ledger._net.async_step_connections import AsyncStepConnections
from epsilon_ledger._net.attempts import Outcome, RetryPolicy, attempts
from epsilon_ledger._net.http import RequestBuilder
from epsilon_ledger._net.step_connections import StepConnections
from epsilon_ledger._wire.requests import Pause, Request
from epsilon_ledger._wire.responses import HttpAnswer, Response

T = TypeVar("T")


class Transport:
    """Sender of requests over connection pools; threads may share it.

    Args:
        http: for all requests but those of `steps`.
        requests: builder of requests.
        retry_policy: of each request.
        steps: connections for steps, or None.
    """

    def __init__(
        self,
        http: httpx2.BaseTransport,
        requests: RequestBuilder,
        retry_policy: RetryPolicy,
        steps: StepConnections | None,
    ) -> None:
        self._http = http
        self._steps = steps
        self._requests = requests
        self._retry_policy = retry_policy
        self._closed = False

    def close(self) -> None:
        """Close the connections."""
        self._closed = True
        if self._steps is not None:
            self._steps.close()
        self._http.close()

    def send(self, request: Request) -> Response:
        """Send a request until it is answered; keep its `in_doubt` current.

        Raises:
            LedgerUnavailableError: no response within the attempts and the time.
            ProblemError: the ledger refused.
            UnexpectedResponseError: the response is not one of this API.
        """
        tries = attempts(request, self._retry_policy, self._requests.address)
        pause = next(tries)
        try:
            while True:
                if pause:
                    self._retry_policy.sleep(pause)
                pause = tries.send(self._exchange(request))
        except StopIteration as end:
            return _result(end)

    def _exchange(self, request: Request) -> Outcome:
        """Send a request once; return its response, read to the end, or the failure."""
        _require_open(closed=self._closed)
        try:
            if self._steps is not None and self._steps.carries(request):
                return self._steps.exchange(request)
            sent = self._requests.build(request)
            response = self._http.handle_request(sent)
            with closing(response):
                response.read()
        except httpx2.RequestError as error:
            return error
        return _answer(response, sent)

    def execute(self, flow: Generator[Request | Pause | Future[Response], Any, T]) -> T:
        """Run a request flow and return its result; pause, and wait for what it yields in flight.

        Raises:
            LedgerError: as `send`, unless the flow handles it.
        """
        try:
            wanted = next(flow)
            while True:
                response = None
                try:
                    if isinstance(wanted, Request):
                        response = self.send(wanted)
                    elif isinstance(wanted, Pause):
                        self._retry_policy.sleep(self._retry_policy.length(wanted))
                    else:
                        wait([wanted])
                except BaseException as error:  # noqa: BLE001 - the flow handles all of them
                    wanted = flow.throw(error)
                else:
                    wanted = flow.send(response)
        except StopIteration as end:
            result: T = end.value
            return result


class AsyncTransport:
    """`Transport` with awaitable methods; tasks of one event loop may share it."""

    def __init__(
        self,
        http: httpx2.AsyncBaseTransport,
        requests: RequestBuilder,
        retry_policy: RetryPolicy,
        steps: AsyncStepConnections | None,
    ) -> None:
        self._http = http
        self._steps = steps
        self._requests = requests
        self._retry_policy = retry_policy
        self._closed = False

    async def close(self) -> None:
        """Close the connections."""
        self._closed = True
        if self._steps is not None:
            self._steps.close()
        await self._http.aclose()

    async def send(self, request: Request) -> Response:
        """As `Transport.send`."""
        tries = attempts(request, self._retry_policy, self._requests.address)
        pause = next(tries)
        try:
            while True:
                if pause:
                    await self._retry_policy.async_sleep(pause)
                pause = tries.send(await self._exchange(request))
        except StopIteration as end:
            return _result(end)

    async def _exchange(self, request: Request) -> Outcome:
        """As `Transport._exchange`."""
        _require_open(closed=self._closed)
        try:
            if self._steps is not None and self._steps.carries(request):
                return await self._steps.exchange(request)
            sent = self._requests.build(request)
            response = await self._http.handle_async_request(sent)
            async with aclosing(response):
                await response.aread()
        except httpx2.RequestError as error:
            return error
        return _answer(response, sent)

    async def execute(self, flow: Generator[Request | Pause | asyncio.Task[Response], Any, T]) -> T:
        """As `Transport.execute`."""
        try:
            wanted = next(flow)
            while True:
                response = None
                try:
                    if isinstance(wanted, Request):
                        response = await self.send(wanted)
                    elif isinstance(wanted, Pause):
                        await self._retry_policy.async_sleep(self._retry_policy.length(wanted))
                    else:
                        await asyncio.wait([wanted])
                except BaseException as error:  # noqa: BLE001 - as there
                    wanted = flow.throw(error)
                else:
                    wanted = flow.send(response)
        except StopIteration as end:
            result: T = end.value
            return result


def _answer(response: httpx2.Response, request: httpx2.Request) -> HttpAnswer:
    return HttpAnswer(response.status_code, response.headers, response.content, str(request.url))


def _require_open(*, closed: bool) -> None:
    if closed:
        raise RuntimeError("Cannot send a request, as the client has been closed.")


def _result(end: StopIteration) -> Response:
    response: Response = end.value
    return response
