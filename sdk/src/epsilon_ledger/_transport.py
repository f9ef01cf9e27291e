"""One request to the ledger: sent, and sent again, until it is answered or time is up.

A request keeps its idempotency key and its very bytes over all its tries: the ledger gives it one effect.
"""

import json
import random
import time
import uuid
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from http import HTTPStatus

import httpx

from epsilon_ledger._errors import LedgerUnavailableError
from epsilon_ledger._replies import Reply, read_json, reason, refusal, retry_after

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


@dataclass(slots=True)
class Request:
    """A logical request, whatever number of tries it takes.

    Args:
        method: GET or POST.
        path: under the ledger's address, quoted, with its query.
        body: JSON in bytes, or None.
        key: idempotency key; every POST has its own.
        in_doubt: True once a try was sent, unless it surely had no effect.
    """

    method: str
    path: str
    body: bytes | None = None
    key: str | None = None
    in_doubt: bool = False


def get(path: str) -> Request:
    """Prepare a read.

    Args:
        path: under the ledger's address, quoted, with its query.

    Returns:
        The request.
    """
    return Request("GET", path)


def post(path: str, body: Mapping[str, object]) -> Request:
    """Prepare a POST with an idempotency key of its own.

    Args:
        path: under the ledger's address, quoted, with its query.
        body: members for the JSON body; those that are None are left out.

    Returns:
        The request.

    Raises:
        ValueError: a number is infinite or not a number.
    """
    told = {name: value for name, value in body.items() if value is not None}
    return Request("POST", path, json.dumps(told, allow_nan=False).encode(), str(uuid.uuid4()))


@dataclass(frozen=True, slots=True)
class Patience:
    """How often and how long a request is tried.

    Args:
        max_attempts: tries, at least 1.
        give_up_after: seconds after which no further try is begun.
        first_pause: upper end of the first random pause, seconds; it doubles with every try.
        longest_pause: where the doubling ends, seconds.
        clock: seconds of a monotonic clock.
        sleep: waits for a number of seconds.
        jitter: a random number between its arguments: full jitter keeps a fleet of trainers from
            returning in step.
    """

    max_attempts: int = 12
    give_up_after: float = 60.0
    first_pause: float = 0.1
    longest_pause: float = 10.0
    clock: Callable[[], float] = time.monotonic
    sleep: Callable[[float], None] = time.sleep
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


@dataclass(frozen=True, slots=True)
class _Failure:
    why: str
    retry_after: float | None = None


class Transport:
    """Sends requests over one pool of connections; it may be shared by threads.

    Args:
        http: the pool, with address and credentials.
        patience: how often and how long to try.
    """

    def __init__(self, http: httpx.Client, patience: Patience) -> None:
        self._http = http
        self._patience = patience

    def close(self) -> None:
        """Close the connections."""
        self._http.close()

    def send(self, request: Request) -> Reply:
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
        patience = self._patience
        began = patience.clock()
        attempt = 0
        while True:
            attempt += 1
            outcome = self._try(request)
            if isinstance(outcome, Reply):
                return outcome
            elapsed = patience.clock() - began
            pause = patience.pause(attempt, outcome.retry_after or 0.0)
            if attempt >= patience.max_attempts or elapsed + pause > patience.give_up_after:
                raise LedgerUnavailableError(
                    f"No answer from the ledger at {self._http.base_url} after {attempt} "
                    f"{'try' if attempt == 1 else 'tries'} in {elapsed:.1f} s; the last: {outcome.why}.",
                    attempts=attempt,
                    elapsed=elapsed,
                    retry_after=outcome.retry_after,
                    in_doubt=request.in_doubt,
                )
            patience.sleep(pause)

    def _try(self, request: Request) -> Reply | _Failure:
        asked_before = request.in_doubt
        # Set before sending: an interrupt in the middle leaves the truth behind.
        request.in_doubt = True
        headers = {} if request.body is None else {"Content-Type": "application/json"}
        if request.key is not None:
            headers["Idempotency-Key"] = request.key
        try:
            response = self._http.request(request.method, request.path, content=request.body, headers=headers)
        except httpx.RequestError as error:
            if isinstance(error, _NEVER_SENT):
                request.in_doubt = asked_before
            return _Failure(f"{type(error).__name__}: {error}" if str(error) else type(error).__name__)
        if response.status_code < HTTPStatus.INTERNAL_SERVER_ERROR and not response.is_success:
            # This try was turned down and has no effect; an earlier one still may.
            request.in_doubt = asked_before
        if response.status_code in _WORTH_A_RETRY:
            return _Failure(reason(response), retry_after(response))
        if not response.is_success:
            raise refusal(response)
        data = read_json(response)
        replayed = response.headers.get("Idempotent-Replayed", "").lower() == "true"
        # The ledger names the key that it answered first. If it does not, the guess is on the safe side:
        # without an earlier try that may have arrived, the replay belongs to somebody else.
        first_key = response.headers.get("Idempotent-Replay-Of")
        ours = not replayed or (asked_before if first_key is None else first_key == request.key)
        return Reply(response.status_code, data, ours)
