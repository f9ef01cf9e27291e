"""The blocking client."""

from collections.abc import Callable
from functools import wraps
from types import TracebackType
from typing import Concatenate, ParamSpec, Self, TypeVar

import httpx

from epsilon_ledger._net.config import connection
from epsilon_ledger._net.transport import Transport
from epsilon_ledger._run import run_factory
from epsilon_ledger._run.method_binding import client_method, signed
from epsilon_ledger._run.run import Run
from epsilon_ledger._run.run_factory import Opening
from epsilon_ledger._wire import endpoints, planning
from epsilon_ledger._wire.requests import RequestFlow

T = TypeVar("T")
P = ParamSpec("P")


def _opened(opening: Callable[P, Opening]) -> "Callable[Concatenate[LedgerClient, P], Run]":
    """Make a client method from a function that opens a run."""

    @wraps(opening)
    def method(self: "LedgerClient", /, *args: P.args, **kwargs: P.kwargs) -> Run:
        opened = opening(*args, **kwargs)
        state = self._carry(opened.talk)
        return Run(self._transport, state, opened.ahead, step=opened.step, with_plan=opened.with_plan)

    return signed(method, opening, Run)


class LedgerClient:
    """A connection to an Epsilon Ledger: a context manager, to be closed after use.

    Every request is retried with random, growing pauses after connection errors, time-outs and the statuses 429, 502,
    503 and 504. Its idempotency key ensures a single effect. Threads may share a client.

    Args:
        url: the ledger's address; by default EPSILON_LEDGER_URL.
        api_key: the organisation's key; by default EPSILON_LEDGER_API_KEY.
        timeout: seconds to connect, and to receive a response, in each attempt.
        max_attempts: attempts of one request, at least 1.
        give_up_after: seconds after which no further attempt starts.
        transport: replaces the network in tests.

    Raises:
        ConfigurationError: the address or the key is missing or invalid.
        ValueError: `max_attempts` is below 1.
    """

    def __init__(
        self,
        url: str | None = None,
        api_key: str | None = None,
        *,
        timeout: float = 10.0,
        max_attempts: int = 12,
        give_up_after: float = 60.0,
        transport: httpx.BaseTransport | None = None,
    ) -> None:
        to = connection(url, api_key, max_attempts, give_up_after)
        http = httpx.Client(base_url=to.url, headers=to.headers, timeout=timeout, transport=transport)
        self._url = http.base_url
        self._transport = Transport(http, to.patience)

    def __repr__(self) -> str:
        """Show the ledger's address, never the key, even if the constructor failed."""
        return f"<LedgerClient {getattr(self, '_url', 'not connected')}>"

    def __enter__(self) -> Self:
        """Return the client."""
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        """Close the connections."""
        self.close()

    def close(self) -> None:
        """Close the connections."""
        self._transport.close()

    create_population = client_method(endpoints.create_population)
    create_budget = client_method(endpoints.create_budget)
    get_population = client_method(endpoints.get_population)
    get_budget = client_method(endpoints.get_budget)
    get_reservation = client_method(endpoints.get_reservation)
    history = client_method(endpoints.history)
    declare_experiment = client_method(endpoints.declare_experiment)
    charge_experiment = client_method(endpoints.charge_experiment)
    get_experiment = client_method(endpoints.get_experiment)
    epsilon = client_method(planning.epsilon)
    delta = client_method(planning.delta)
    trajectory = client_method(planning.trajectory)
    noise_multiplier = client_method(planning.noise_multiplier)
    sampling_probability = client_method(planning.sampling_probability)
    steps = client_method(planning.steps)
    laplace = client_method(planning.laplace)

    register_run = _opened(run_factory.register_run)
    run = register_run
    get_run = _opened(run_factory.get_run)
    resume_run = _opened(run_factory.resume_run)

    def _carry(self, talk: RequestFlow[T]) -> T:
        return self._transport.carry(talk)
