"""One request to the ledger: sent, and sent again, until it is answered or time is up.

A request keeps its idempotency key and its very bytes over all its tries: the ledger gives it one effect. What is to be
done is decided here without waiting or sending; the two transports, one that blocks and one that is awaited, do it.
"""

import asyncio
import random
import time
from collections.abc import Awaitable, Callable, Generator
from dataclasses import dataclass
from http import HTTPStatus
from typing import TypeAlias, TypeVar

import httpx

from epsilon_ledger._wire.errors import LedgerUnavailableError
from epsilon_ledger._wire.requests import Request, RequestFlow
from epsilon_ledger._wire.responses import Response, read_json, reason, refusal, retry_after

T = TypeVar("T")

_WORTH_A_RETRY = frozenset(
    {
        HTTPStatus.TOO_MANY_REQUESTS,
        HTTPStatus.BAD_GATEWAY,
        HTTPStatus.SERVICE_UNAVAILABLE,
        HTTPStatus.GATEWAY_TIMEOUT,
    }
)
# These fail before a byte of the request is on its way: the ledger cannot have seen it.
_NEVER_SENT = (httpx.ConnectError, httpx.ConnectTimeout, httpx.PoolTimeout)


@dataclass(frozen=True, slots=True)
class RetryPolicy:
    """How often and how long a request is tried.

    Args:
        max_attempts: tries, at least 1.
        give_up_after: seconds after which no further try is begun.
        first_pause: upper end of the first random pause, seconds; it doubles with every try.
        longest_pause: where the doubling ends, seconds.
        clock: seconds of a monotonic clock.
        sleep: waits for a number of seconds.
        asleep: the same, to be awaited.
        jitter: a random number between its arguments: full jitter keeps a fleet of trainers from
            returning in step.
    """

    max_attempts: int = 12
    give_up_after: float = 60.0
    first_pause: float = 0.1
    longest_pause: float = 10.0
    clock: Callable[[], float] = time.monotonic
    sleep: Callable[[float], None] = time.sleep
    asleep: Callable[[float], Awaitable[None]] = asyncio.sleep
    jitter: Callable[[float, float], float] = random.uniform

    def pause(self, attempt: int, retry_after: float) -> float:
        """Choose how long to wait before the next try.

        Args:
            attempt: number of the try that failed, from 1.
            retry_after: seconds that the ledger asked for, at least 0.

        Returns:
            Seconds.
        """
        # The exponent is bounded because 2.0**1024 overflows.
        ceiling = min(self.longest_pause, self.first_pause * 2.0 ** min(attempt - 1, 64))
        return retry_after + self.jitter(0.0, ceiling)


class Transport:
    """Sends requests over one pool of connections; it may be shared by threads.

    Args:
        http: the pool, with address and credentials.
        patience: how often and how long to try.
    """

    def __init__(self, http: httpx.Client, patience: RetryPolicy) -> None:
        self._http = http
        self._patience = patience

    def close(self) -> None:
        """Close the connections."""
        self._http.close()

    def send(self, request: Request) -> Response:
        """Send a request until it is answered.

        Args:
            request: its `in_doubt` is kept up to date, whatever happens.

        Returns:
            The successful answer.

        Raises:
            LedgerUnavailableError: no answer within the tries and the time.
            ProblemError: the ledger said no.
            UnexpectedResponseError: the answer is not one of this API.
        """
        tries = _tries(request, self._patience, self._http.base_url)
        pause = next(tries)
        try:
            while True:
                if pause:
                    self._patience.sleep(pause)
                try:
                    answer: _Answer = self._http.request(
                        request.method, request.path, content=request.body, headers=_headers(request)
                    )
                except httpx.RequestError as error:
                    answer = error
                pause = tries.send(answer)
        except StopIteration as end:
            return _reply(end)

    def carry(self, talk: RequestFlow[T]) -> T:
        """Send what a use case asks for, until it has its result.

        Args:
            talk: not begun yet.

        Returns:
            Its result.

        Raises:
            LedgerError: as `send`, unless the use case knows what to do about it.
        """
        try:
            request = next(talk)
            while True:
                try:
                    reply = self.send(request)
                except BaseException as error:  # noqa: BLE001 - the use case decides about all of them
                    request = talk.throw(error)
                else:
                    request = talk.send(reply)
        except StopIteration as end:
            result: T = end.value
            return result


class AsyncTransport:
    """As `Transport`, to be awaited; it may be shared by the tasks of one event loop.

    Args:
        http: the pool, with address and credentials.
        patience: how often and how long to try.
    """

    def __init__(self, http: httpx.AsyncClient, patience: RetryPolicy) -> None:
        self._http = http
        self._patience = patience

    async def close(self) -> None:
        """Close the connections."""
        await self._http.aclose()

    async def send(self, request: Request) -> Response:
        """As `Transport.send`."""
        tries = _tries(request, self._patience, self._http.base_url)
        pause = next(tries)
        try:
            while True:
                if pause:
                    await self._patience.asleep(pause)
                try:
                    answer: _Answer = await self._http.request(
                        request.method, request.path, content=request.body, headers=_headers(request)
                    )
                except httpx.RequestError as error:
                    answer = error
                pause = tries.send(answer)
        except StopIteration as end:
            return _reply(end)

    async def carry(self, talk: RequestFlow[T]) -> T:
        """As `Transport.carry`."""
        try:
            request = next(talk)
            while True:
                try:
                    reply = await self.send(request)
                except BaseException as error:  # noqa: BLE001 - as there
                    request = talk.throw(error)
                else:
                    request = talk.send(reply)
        except StopIteration as end:
            result: T = end.value
            return result


@dataclass(frozen=True, slots=True)
class _Failure:
    why: str
    retry_after: float | None = None


_Answer: TypeAlias = httpx.Response | httpx.RequestError


def _tries(request: Request, patience: RetryPolicy, address: httpx.URL) -> Generator[float, _Answer, Response]:
    """Yield how many seconds to wait before each try, and be sent what came of it; return the answer that counts."""
    began = patience.clock()
    pause, attempt = 0.0, 0
    while True:
        attempt += 1
        asked_before = request.in_doubt
        # Set before sending: an interrupt in the middle leaves the truth behind.
        request.in_doubt = True
        outcome = _judged(request, (yield pause), asked_before=asked_before)
        if isinstance(outcome, Response):
            return outcome
        elapsed = patience.clock() - began
        pause = patience.pause(attempt, outcome.retry_after or 0.0)
        if attempt >= patience.max_attempts or elapsed + pause > patience.give_up_after:
            raise LedgerUnavailableError(
                f"No answer from the ledger at {address} after {attempt} "
                f"{'try' if attempt == 1 else 'tries'} in {elapsed:.1f} s; the last: {outcome.why}.",
                attempts=attempt,
                elapsed=elapsed,
                retry_after=outcome.retry_after,
                in_doubt=request.in_doubt,
            )


def _headers(request: Request) -> dict[str, str]:
    headers = {} if request.body is None else {"Content-Type": "application/json"}
    if request.key is not None:
        headers["Idempotency-Key"] = request.key
    return headers


def _judged(request: Request, answer: _Answer, *, asked_before: bool) -> Response | _Failure:
    """Whether a try was answered, and whether it may have had an effect if not."""
    if isinstance(answer, httpx.RequestError):
        if isinstance(answer, _NEVER_SENT):
            request.in_doubt = asked_before
        return _Failure(f"{type(answer).__name__}: {answer}" if str(answer) else type(answer).__name__)
    if answer.status_code < HTTPStatus.INTERNAL_SERVER_ERROR and not answer.is_success:
        # This try was turned down and has no effect; an earlier one still may.
        request.in_doubt = asked_before
    if answer.status_code in _WORTH_A_RETRY:
        return _Failure(reason(answer), retry_after(answer))
    if not answer.is_success:
        raise refusal(answer)
    data = read_json(answer)
    replayed = answer.headers.get("Idempotent-Replayed", "").lower() == "true"
    # The ledger names the key that it answered first. If it does not, the guess is on the safe side:
    # without an earlier try that may have arrived, the replay belongs to somebody else.
    first_key = answer.headers.get("Idempotent-Replay-Of")
    ours = not replayed or (asked_before if first_key is None else first_key == request.key)
    return Response(answer.status_code, data, ours)


def _reply(end: StopIteration) -> Response:
    reply: Response = end.value
    return reply
