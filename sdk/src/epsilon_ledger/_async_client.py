"""The client for asyncio programs."""

from collections.abc import Awaitable, Callable
from functools import wraps
from types import TracebackType
from typing import Concatenate, ParamSpec, Self, TypeVar

import httpx

from epsilon_ledger._net.config import connection
from epsilon_ledger._net.http import open_async_transport
from epsilon_ledger._net.transport import AsyncTransport
from epsilon_ledger._run import run_factory
from epsilon_ledger._run.async_run import AsyncRun
from epsilon_ledger._run.method_binding import async_client_method, set_signature
from epsilon_ledger._run.run_factory import RunSetup
from epsilon_ledger._wire import endpoints, planning
from epsilon_ledger._wire.requests import RequestFlow

T = TypeVar("T")
P = ParamSpec("P")


def _factory_method(
    factory: Callable[P, RunSetup],
) -> "Callable[Concatenate[AsyncLedgerClient, P], Awaitable[AsyncRun]]":
    """Make a client method from a function that opens a run."""

    @wraps(factory)
    async def method(self: "AsyncLedgerClient", /, *args: P.args, **kwargs: P.kwargs) -> AsyncRun:
        setup = factory(*args, **kwargs)
        state = await self._execute(setup.flow)
        return AsyncRun(self._transport, state, setup.prefetch, step=setup.step, with_plan=setup.with_plan)

    return set_signature(method, factory, AsyncRun)


class AsyncLedgerClient:
    """`LedgerClient` with awaitable methods; tasks of one event loop may share it.

    Args:
        url: as `LedgerClient`.
        api_key: as `LedgerClient`.
        timeout: as `LedgerClient`.
        max_attempts: as `LedgerClient`.
        give_up_after: as `LedgerClient`.
        transport: as `LedgerClient`.

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
        transport: httpx.AsyncBaseTransport | None = None,
    ) -> None:
        to = connection(url, api_key, timeout, max_attempts, give_up_after)
        self._url = to.requests.address
        self._transport = AsyncTransport(transport or open_async_transport(), to.requests, to.retry_policy)

    def __repr__(self) -> str:
        """Show the ledger's address, never the key."""
        return f"<AsyncLedgerClient {getattr(self, '_url', 'not connected')}>"

    async def __aenter__(self) -> Self:
        """Return the client."""
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        """Close the connections."""
        await self.close()

    async def close(self) -> None:
        """Close the connections."""
        await self._transport.close()

    create_population = async_client_method(endpoints.create_population)
    create_budget = async_client_method(endpoints.create_budget)
    get_population = async_client_method(endpoints.get_population)
    get_budget = async_client_method(endpoints.get_budget)
    get_reservation = async_client_method(endpoints.get_reservation)
    get_run_history = async_client_method(endpoints.get_run_history)
    create_experiment = async_client_method(endpoints.create_experiment)
    charge_experiment = async_client_method(endpoints.charge_experiment)
    get_experiment = async_client_method(endpoints.get_experiment)
    compute_epsilon = async_client_method(planning.compute_epsilon)
    compute_delta = async_client_method(planning.compute_delta)
    compute_epsilon_trajectory = async_client_method(planning.compute_epsilon_trajectory)
    find_noise_multiplier = async_client_method(planning.find_noise_multiplier)
    find_sampling_probability = async_client_method(planning.find_sampling_probability)
    find_max_steps = async_client_method(planning.find_max_steps)
    compute_laplace_cost = async_client_method(planning.compute_laplace_cost)

    create_run = _factory_method(run_factory.create_run)
    get_run = _factory_method(run_factory.get_run)
    resume_run = _factory_method(run_factory.resume_run)

    async def _execute(self, flow: RequestFlow[T]) -> T:
        return await self._transport.execute(flow)
