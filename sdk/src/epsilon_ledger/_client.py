"""The blocking client."""

from collections.abc import Callable
from functools import wraps
from types import TracebackType
from typing import Concatenate, ParamSpec, Self, TypeVar

import httpx

from epsilon_ledger._net.config import connection
from epsilon_ledger._net.http import open_transport
from epsilon_ledger._net.transport import Transport
from epsilon_ledger._run import run_factory
from epsilon_ledger._run.method_binding import client_method, set_signature
from epsilon_ledger._run.run import Run
from epsilon_ledger._run.run_factory import RunSetup
from epsilon_ledger._wire import endpoints, planning
from epsilon_ledger._wire.requests import RequestFlow

T = TypeVar("T")
P = ParamSpec("P")


def _factory_method(factory: Callable[P, RunSetup]) -> "Callable[Concatenate[LedgerClient, P], Run]":
    """Make a client method from a function that opens a run."""

    @wraps(factory)
    def method(self: "LedgerClient", /, *args: P.args, **kwargs: P.kwargs) -> Run:
        setup = factory(*args, **kwargs)
        state = self._execute(setup.flow)
        return Run(self._transport, state, setup.prefetch, step=setup.step, with_plan=setup.with_plan)

    return set_signature(method, factory, Run)


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
        to = connection(url, api_key, timeout, max_attempts, give_up_after)
        self._url = to.requests.address
        self._transport = Transport(transport or open_transport(), to.requests, to.retry_policy)

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
    get_run_history = client_method(endpoints.get_run_history)
    create_experiment = client_method(endpoints.create_experiment)
    charge_experiment = client_method(endpoints.charge_experiment)
    get_experiment = client_method(endpoints.get_experiment)
    compute_epsilon = client_method(planning.compute_epsilon)
    compute_delta = client_method(planning.compute_delta)
    compute_epsilon_trajectory = client_method(planning.compute_epsilon_trajectory)
    find_noise_multiplier = client_method(planning.find_noise_multiplier)
    find_sampling_probability = client_method(planning.find_sampling_probability)
    find_max_steps = client_method(planning.find_max_steps)
    compute_laplace_cost = client_method(planning.compute_laplace_cost)

    create_run = _factory_method(run_factory.create_run)
    get_run = _factory_method(run_factory.get_run)
    resume_run = _factory_method(run_factory.resume_run)

    def _execute(self, flow: RequestFlow[T]) -> T:
        return self._transport.execute(flow)
