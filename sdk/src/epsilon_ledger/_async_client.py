"""The client for programs on an asyncio event loop."""

from collections.abc import Awaitable, Callable
from functools import wraps
from types import TracebackType
from typing import Concatenate, ParamSpec, Self, TypeVar

import httpx

from epsilon_ledger._net.config import connection
from epsilon_ledger._net.transport import AsyncTransport
from epsilon_ledger._running import openings
from epsilon_ledger._running.asked import asked_async, signed
from epsilon_ledger._running.async_run import AsyncRun
from epsilon_ledger._running.openings import Opening
from epsilon_ledger._wire import calls, planning
from epsilon_ledger._wire.requests import Talk

T = TypeVar("T")
P = ParamSpec("P")


def _opened(opening: Callable[P, Opening]) -> "Callable[Concatenate[AsyncLedgerClient, P], Awaitable[AsyncRun]]":
    """Make a method out of a way to come by a run."""

    @wraps(opening)
    async def method(self: "AsyncLedgerClient", /, *args: P.args, **kwargs: P.kwargs) -> AsyncRun:
        opened = opening(*args, **kwargs)
        state = await self._carry(opened.talk)
        return AsyncRun(self._transport, state, opened.ahead, step=opened.step, with_plan=opened.with_plan)

    return signed(method, opening, AsyncRun)


class AsyncLedgerClient:
    """As `LedgerClient`, with methods that are awaited; tasks of one event loop may share it.

    Args:
        url: as `LedgerClient`.
        api_key: as `LedgerClient`.
        timeout: as `LedgerClient`.
        max_attempts: as `LedgerClient`.
        give_up_after: as `LedgerClient`.
        transport: as `LedgerClient`.

    Raises:
        ConfigurationError: the address or the key is missing or cannot be used.
        ValueError: there would be no try at all.
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
        to = connection(url, api_key, max_attempts, give_up_after)
        http = httpx.AsyncClient(base_url=to.url, headers=to.headers, timeout=timeout, transport=transport)
        self._url = http.base_url
        self._transport = AsyncTransport(http, to.patience)

    def __repr__(self) -> str:
        """Name the ledger, never the key."""
        return f"<AsyncLedgerClient {getattr(self, '_url', 'not connected')}>"

    async def __aenter__(self) -> Self:
        """Hand out the client."""
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

    create_population = asked_async(calls.create_population)
    create_budget = asked_async(calls.create_budget)
    get_population = asked_async(calls.get_population)
    get_budget = asked_async(calls.get_budget)
    get_reservation = asked_async(calls.get_reservation)
    history = asked_async(calls.history)
    declare_experiment = asked_async(calls.declare_experiment)
    charge_experiment = asked_async(calls.charge_experiment)
    get_experiment = asked_async(calls.get_experiment)
    epsilon = asked_async(planning.epsilon)
    delta = asked_async(planning.delta)
    trajectory = asked_async(planning.trajectory)
    noise_multiplier = asked_async(planning.noise_multiplier)
    sampling_probability = asked_async(planning.sampling_probability)
    steps = asked_async(planning.steps)
    laplace = asked_async(planning.laplace)

    register_run = _opened(openings.register_run)
    run = register_run
    get_run = _opened(openings.get_run)
    resume_run = _opened(openings.resume_run)

    async def _carry(self, talk: Talk[T]) -> T:
        return await self._transport.carry(talk)
