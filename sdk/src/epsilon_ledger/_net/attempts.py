"""Decisions on the attempts of a request, without I/O: blocking and asynchronous transports share them."""

import asyncio
import random
import time
from collections.abc import Awaitable, Callable, Generator
from dataclasses import dataclass
from http import HTTPStatus
from typing import TypeAlias

import httpx2

from epsilon_ledger._net.plain_http import NotPlainError
from epsilon_ledger._wire.errors import LedgerUnavailableError, UnexpectedResponseError
from epsilon_ledger._wire.matching import require_match
from epsilon_ledger._wire.problems import ProblemError
from epsilon_ledger._wire.requests import Pause, Request
from epsilon_ledger._wire.responses import HttpAnswer, Response, read_json, reason, refusal, retry_after

_RETRYABLE_STATUSES = frozenset(
    {
        HTTPStatus.TOO_MANY_REQUESTS,
        HTTPStatus.BAD_GATEWAY,
        HTTPStatus.SERVICE_UNAVAILABLE,
        HTTPStatus.GATEWAY_TIMEOUT,
    }
)
Outcome: TypeAlias = HttpAnswer | httpx2.RequestError

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


@dataclass(frozen=True, slots=True)
class _Failure:
    reason: str
    retry_after: float | None = None
    held_up: bool = False


def attempts(request: Request, retry_policy: RetryPolicy, address: httpx2.URL) -> Generator[float, Outcome, Response]:
    """Yield the pause before each attempt, receive its result, and return the final response."""
    began = retry_policy.clock()
    most = min(retry_policy.max_attempts, request.max_attempts or retry_policy.max_attempts)
    pause, attempt, held_up = 0.0, 0, 0
    while True:
        attempt += 1
        sent_before = request.in_doubt
        # Set before sending, so that it is right after an interrupt.
        request.in_doubt = True
        answer = yield pause
        if isinstance(answer, NotPlainError):
            # The same try goes on with httpx2, which reads what was not read; the request is in doubt meanwhile.
            attempt, pause = attempt - 1, 0.0
            continue
        outcome = _classify(request, answer, sent_before=sent_before)
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


def _classify(request: Request, answer: Outcome, *, sent_before: bool) -> Response | _Failure:
    """Return the response, or the failure; update whether the request may have had an effect."""
    if isinstance(answer, httpx2.RequestError):
        if isinstance(answer, _NEVER_SENT):
            request.in_doubt = sent_before
        return _Failure(f"{type(answer).__name__}: {answer}" if str(answer) else type(answer).__name__)
    if not answer.is_success:
        return _classify_refusal(request, answer, sent_before=sent_before)
    data = read_json(answer) if request.is_json else answer.content
    _require_match(request, data, answer)
    replayed = answer.headers.get("idempotent-replayed", "").lower() == "true"
    # The ledger names the key that it answered first. If it does not, the guess is on the safe side:
    # without an earlier try that may have arrived, the replay belongs to somebody else.
    first_key = answer.headers.get("idempotent-replay-of")
    ours = not replayed or (sent_before if first_key is None else first_key == request.key)
    return Response(answer.status, data, ours, answer.headers.get("etag"))


def _classify_refusal(request: Request, answer: HttpAnswer, *, sent_before: bool) -> _Failure:
    """Return the failure of an attempt that may be repeated, or raise the error of another answer."""
    if answer.status < HTTPStatus.INTERNAL_SERVER_ERROR:
        # This attempt has no effect; an earlier one may have.
        request.in_doubt = sent_before
    if answer.status in _RETRYABLE_STATUSES:
        held_up = answer.status == HTTPStatus.TOO_MANY_REQUESTS
        return _Failure(reason(answer), retry_after(answer), held_up)
    error = refusal(answer)
    if isinstance(error, ProblemError):
        _require_match(request, error.problem.members, answer)
    raise error


def _require_match(request: Request, members: object, answer: HttpAnswer) -> None:
    try:
        require_match(request.path, request.echoes, members, answer.status)
    except UnexpectedResponseError:
        request.in_doubt = True  # its own response is elsewhere
        raise
