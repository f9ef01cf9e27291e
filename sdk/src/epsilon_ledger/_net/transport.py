"""Requests with retries, under one idempotency key and with the same bytes.

Decisions are separate from I/O, so that the blocking and the asynchronous transport share them.
"""

import asyncio
import random
import time
from collections.abc import Awaitable, Callable, Generator
from concurrent.futures import Future, wait
from contextlib import aclosing, closing
from dataclasses import dataclass
from http import HTTPStatus
from typing import Any, TypeAlias, TypeVar

import httpx2

from epsilon_ledger._net.http import RequestBuilder
from epsilon_ledger._wire.errors import LedgerUnavailableError, UnexpectedResponseError
from epsilon_ledger._wire.matching import require_match
from epsilon_ledger._wire.problems import ProblemError
from epsilon_ledger._wire.requests import Pause, Request
from epsilon_ledger._wire.responses import Response, read_json, reason, refusal, retry_after

T = TypeVar("T")

_RETRYABLE_STATUSES = frozenset(
    {
        HTTPStatus.TOO_MANY_REQUESTS,
        HTTPStatus.BAD_GATEWAY,
        HTTPStatus.SERVICE_UNAVAILABLE,
        HTTPStatus.GATEWAY_TIMEOUT,
    }
)
_Outcome: TypeAlias = httpx2.Response | httpx2.RequestError

_LONGEST_SPREAD_SECONDS = 1.0
"""Random time on top of what a rate limit asks for, which spreads trainers; the ledger has named the rest."""

# These fail before any byte of the request is sent.
_NEVER_SENT = (httpx2.ConnectError, httpx2.ConnectTimeout, httpx2.PoolTimeout)


@dataclass(frozen=True, slots=True)
class RetryPolicy:
    """Number, duration and pauses of attempts.

    Args:
        max_attempts: at least 1. Being held up by a rate limit (429) counts as none, unless it is 1.
        give_up_after: seconds after which no further attempt starts.
        first_pause: maximum of the first random pause, seconds; it doubles with every attempt.
        longest_pause: maximum of all pauses, seconds.
        clock: monotonic, in seconds.
        sleep: blocks for some seconds.
        async_sleep: the awaitable `sleep`.
        jitter: random number between its arguments; full jitter keeps trainers from retrying simultaneously.
    """

    max_attempts: int = 12
    give_up_after: float = 60.0
    first_pause: float = 0.1
    longest_pause: float = 10.0
    clock: Callable[[], float] = time.monotonic
    sleep: Callable[[float], None] = time.sleep
    async_sleep: Callable[[float], Awaitable[None]] = asyncio.sleep
    jitter: Callable[[float, float], float] = random.uniform

    def pause(self, attempt: int, retry_after: float, *, held_up: bool = False) -> float:
        """Choose the seconds to wait after attempt `attempt` (from 1) failed, or was held up by a rate limit."""
        longest = min(self.longest_pause, _LONGEST_SPREAD_SECONDS) if held_up else self.longest_pause
        # The exponent is bounded because 2.0**1024 overflows.
        ceiling = min(longest, self.first_pause * 2.0 ** min(attempt - 1, 64))
        return retry_after + self.jitter(0.0, ceiling)

    def length(self, pause: Pause) -> float:
        """Choose the seconds of a flow's pause."""
        return self.jitter(pause.least, pause.most)


class Transport:
    """Sender of requests over a connection pool; threads may share it."""

    def __init__(self, http: httpx2.BaseTransport, requests: RequestBuilder, retry_policy: RetryPolicy) -> None:
        self._http = http
        self._requests = requests
        self._retry_policy = retry_policy
        self._closed = False

    def close(self) -> None:
        """Close the connections."""
        self._closed = True
        self._http.close()

    def send(self, request: Request) -> Response:
        """Send a request until it is answered; keep its `in_doubt` current.

        Raises:
            LedgerUnavailableError: no response within the attempts and the time.
            ProblemError: the ledger refused.
            UnexpectedResponseError: the response is not one of this API.
        """
        http_request = self._requests.build(request)
        tries = _attempts(request, self._retry_policy, self._requests.address)
        pause = next(tries)
        try:
            while True:
                if pause:
                    self._retry_policy.sleep(pause)
                pause = tries.send(self._exchange(http_request))
        except StopIteration as end:
            return _result(end)

    def _exchange(self, request: httpx2.Request) -> _Outcome:
        """Send a request once; return its response, read to the end, or the failure."""
        _require_open(closed=self._closed)
        try:
            response = self._http.handle_request(request)
            with closing(response):
                response.read()
        except httpx2.RequestError as error:
            return error
        response.request = request
        return response

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

    def __init__(self, http: httpx2.AsyncBaseTransport, requests: RequestBuilder, retry_policy: RetryPolicy) -> None:
        self._http = http
        self._requests = requests
        self._retry_policy = retry_policy
        self._closed = False

    async def close(self) -> None:
        """Close the connections."""
        self._closed = True
        await self._http.aclose()

    async def send(self, request: Request) -> Response:
        """As `Transport.send`."""
        http_request = self._requests.build(request)
        tries = _attempts(request, self._retry_policy, self._requests.address)
        pause = next(tries)
        try:
            while True:
                if pause:
                    await self._retry_policy.async_sleep(pause)
                pause = tries.send(await self._exchange(http_request))
        except StopIteration as end:
            return _result(end)

    async def _exchange(self, request: httpx2.Request) -> _Outcome:
        """As `Transport._exchange`."""
        _require_open(closed=self._closed)
        try:
            response = await self._http.handle_async_request(request)
            async with aclosing(response):
                await response.aread()
        except httpx2.RequestError as error:
            return error
        response.request = request
        return response

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


@dataclass(frozen=True, slots=True)
class _Failure:
    reason: str
    retry_after: float | None = None
    held_up: bool = False


def _attempts(request: Request, retry_policy: RetryPolicy, address: httpx2.URL) -> Generator[float, _Outcome, Response]:
    """Yield the pause before each attempt, receive its result, and return the final response."""
    began = retry_policy.clock()
    most = min(retry_policy.max_attempts, request.max_attempts or retry_policy.max_attempts)
    pause, attempt, held_up = 0.0, 0, 0
    while True:
        attempt += 1
        sent_before = request.in_doubt
        # Set before sending, so that it is right after an interrupt.
        request.in_doubt = True
        outcome = _classify(request, (yield pause), sent_before=sent_before)
        if isinstance(outcome, Response):
            return outcome
        elapsed = retry_policy.clock() - began
        # A ledger that holds a trainer up is not down: it says when to come again, and many ranks may share a key.
        held_up += outcome.held_up and most > 1
        pause = retry_policy.pause(attempt, outcome.retry_after or 0.0, held_up=outcome.held_up)
        final = attempt - held_up >= most or elapsed + pause > retry_policy.give_up_after
        if final or (request.in_doubt and not request.is_repeatable):
            raise LedgerUnavailableError(
                f"No answer from the ledger at {address} after {attempt} "
                f"{'try' if attempt == 1 else 'tries'} in {elapsed:.1f} s; the last: {outcome.reason}.",
                attempts=attempt,
                elapsed=elapsed,
                retry_after=outcome.retry_after,
                in_doubt=request.in_doubt,
            )


def _require_open(*, closed: bool) -> None:
    if closed:
        raise RuntimeError("Cannot send a request, as the client has been closed.")


def _classify(request: Request, answer: _Outcome, *, sent_before: bool) -> Response | _Failure:
    """Return the response, or the failure; update whether the request may have had an effect."""
    if isinstance(answer, httpx2.RequestError):
        if isinstance(answer, _NEVER_SENT):
            request.in_doubt = sent_before
        return _Failure(f"{type(answer).__name__}: {answer}" if str(answer) else type(answer).__name__)
    if answer.status_code < HTTPStatus.INTERNAL_SERVER_ERROR and not answer.is_success:
        # This attempt has no effect; an earlier one may have.
        request.in_doubt = sent_before
    if answer.status_code in _RETRYABLE_STATUSES:
        held_up = answer.status_code == HTTPStatus.TOO_MANY_REQUESTS
        return _Failure(reason(answer), retry_after(answer), held_up)
    if not answer.is_success:
        error = refusal(answer)
        if isinstance(error, ProblemError):
            _require_match(request, error.problem.members, answer)
        raise error
    data = read_json(answer) if request.is_json else answer.content
    _require_match(request, data, answer)
    replayed = answer.headers.get("Idempotent-Replayed", "").lower() == "true"
    # The ledger names the key that it answered first. If it does not, the guess is on the safe side:
    # without an earlier try that may have arrived, the replay belongs to somebody else.
    first_key = answer.headers.get("Idempotent-Replay-Of")
    ours = not replayed or (sent_before if first_key is None else first_key == request.key)
    return Response(answer.status_code, data, ours, answer.headers.get("ETag"))


def _require_match(request: Request, members: object, answer: httpx2.Response) -> None:
    try:
        require_match(request.path, request.echoes, members, answer.status_code)
    except UnexpectedResponseError:
        request.in_doubt = True  # its own response is elsewhere
        raise


def _result(end: StopIteration) -> Response:
    response: Response = end.value
    return response
