"""The client for programs on an asyncio event loop."""

from collections.abc import Callable, Sequence
from types import TracebackType
from typing import Self, TypeVar

import httpx

from epsilon_ledger import _calls, _planning
from epsilon_ledger._asked import asked_async
from epsilon_ledger._async_run import AsyncRun
from epsilon_ledger._config import connection
from epsilon_ledger._events import Event, EventCount
from epsilon_ledger._facts import RunStateDict, checked_state
from epsilon_ledger._grants import Ahead
from epsilon_ledger._requests import Talk
from epsilon_ledger._transport import AsyncTransport
from epsilon_ledger._values import Limit, NeighboringRelation, PrivacyFilter

T = TypeVar("T")


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
        return f"<AsyncLedgerClient {self._url}>"

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

    create_population = asked_async(_calls.create_population)
    create_budget = asked_async(_calls.create_budget)
    get_population = asked_async(_calls.get_population)
    get_budget = asked_async(_calls.get_budget)
    get_reservation = asked_async(_calls.get_reservation)
    history = asked_async(_calls.history)
    epsilon = asked_async(_planning.epsilon)
    delta = asked_async(_planning.delta)
    trajectory = asked_async(_planning.trajectory)
    noise_multiplier = asked_async(_planning.noise_multiplier)
    sampling_probability = asked_async(_planning.sampling_probability)
    steps = asked_async(_planning.steps)
    laplace = asked_async(_planning.laplace)

    async def register_run(  # noqa: PLR0913 - the members of the request, by name
        self,
        name: str,
        *,
        budget: str,
        event: Event | None = None,
        limit: Limit | None = None,
        privacy_filter: PrivacyFilter | None = None,
        planned: Sequence[EventCount] | None = None,
        privacy_unit: str | None = None,
        neighboring_relation: NeighboringRelation | None = None,
        plan: Sequence[EventCount] | None = None,
        authorize_every: int = 1,
        background: bool = False,
        schedule: Callable[[int], Event] | None = None,
        lease_seconds: int | None = None,
    ) -> AsyncRun:
        """As `LedgerClient.register_run`."""
        ahead = Ahead.of(authorize_every, background, schedule, None if plan else lease_seconds)
        body = _calls.run_body(
            name,
            budget=budget,
            event=event,
            limit=limit,
            privacy_filter=privacy_filter,
            planned=planned,
            privacy_unit=privacy_unit,
            neighboring_relation=neighboring_relation,
            plan=plan,
            lease_seconds=lease_seconds if plan else None,
        )
        return AsyncRun(
            self._transport, await self._carry(_calls.register_run(body).talk()), ahead, taken=0, with_plan=True
        )

    async def get_run(
        self,
        run_id: str,
        *,
        authorize_every: int = 1,
        background: bool = False,
        schedule: Callable[[int], Event] | None = None,
        lease_seconds: int | None = None,
        with_plan: bool = False,
    ) -> AsyncRun:
        """As `LedgerClient.get_run`."""
        ahead = Ahead.of(authorize_every, background, schedule, lease_seconds)
        state = await self._carry(_calls.get_run(run_id).talk())
        return AsyncRun(self._transport, state, ahead, taken=state.next_step, with_plan=with_plan)

    async def resume_run(
        self,
        state: RunStateDict | str,
        *,
        steps_executed: int | None = None,
        authorize_every: int = 1,
        background: bool = False,
        schedule: Callable[[int], Event] | None = None,
        lease_seconds: int | None = None,
    ) -> AsyncRun:
        """As `LedgerClient.resume_run`."""
        ahead = Ahead.of(authorize_every, background, schedule, lease_seconds)
        run_id, step = checked_state(state)
        opened = await self._carry(_calls.resumed(run_id, step, steps_executed))
        return AsyncRun(self._transport, opened, ahead, taken=opened.next_step if step is None else step)

    async def _carry(self, talk: Talk[T]) -> T:
        return await self._transport.carry(talk)
