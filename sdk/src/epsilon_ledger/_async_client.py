"""The client for asyncio programs."""

import os
from collections.abc import Callable
from functools import wraps
from types import TracebackType
from typing import Concatenate, ParamSpec, Self, TypeVar

import httpx2

from epsilon_ledger._net.config import Credentials, connection
from epsilon_ledger._net.http import open_async_transport
from epsilon_ledger._net.transport import AsyncTransport
from epsilon_ledger._net.workload import TokenProvider
from epsilon_ledger._run import run_factory
from epsilon_ledger._run.async_run import AsyncRun
from epsilon_ledger._run.method_binding import (
    async_client_method,
    async_export_method,
    async_list_method,
    set_signature,
)
from epsilon_ledger._run.run_factory import RunSetup
from epsilon_ledger._run.run_opening import RunOpening
from epsilon_ledger._wire import planning
from epsilon_ledger._wire.endpoints import (
    accounts,
    alerts,
    allocations,
    api_keys,
    audit,
    block_schedules,
    budgets,
    experiments,
    governance,
    populations,
    receivers,
    reservations,
    runs,
)
from epsilon_ledger._wire.requests import RequestFlow

T = TypeVar("T")
P = ParamSpec("P")


def _factory_method(
    factory: Callable[P, RunSetup],
) -> "Callable[Concatenate[AsyncLedgerClient, P], RunOpening]":
    """Make a client method, for `await` and `async with`, from a function that opens a run."""

    @wraps(factory)
    def method(self: "AsyncLedgerClient", /, *args: P.args, **kwargs: P.kwargs) -> RunOpening:
        return RunOpening(self._open_run(factory(*args, **kwargs)))

    return set_signature(method, factory, RunOpening)


class AsyncLedgerClient:
    """`LedgerClient` with awaitable methods; tasks of one event loop may share it.

    Lists are for `async for`. A run is opened by `await`, or by `async with ledger.create_run(...) as run:`.

    Args:
        url: as `LedgerClient`.
        api_key: as `LedgerClient`.
        token_file: as `LedgerClient`.
        token_provider: as `LedgerClient`; it is called in another thread.
        timeout: as `LedgerClient`.
        max_attempts: as `LedgerClient`.
        give_up_after: as `LedgerClient`.
        transport: as `LedgerClient`.

    Raises:
        ConfigurationError: the address or the key is missing or invalid, or there are several credentials.
        ValueError: `max_attempts` is below 1.
    """

    def __init__(  # noqa: PLR0913 - all but the address and the key by name
        self,
        url: str | None = None,
        api_key: str | None = None,
        *,
        token_file: str | os.PathLike[str] | None = None,
        token_provider: TokenProvider | None = None,
        timeout: float = 10.0,
        max_attempts: int = 12,
        give_up_after: float = 60.0,
        transport: httpx2.AsyncBaseTransport | None = None,
    ) -> None:
        to = connection(url, Credentials(api_key, token_file, token_provider), timeout, max_attempts, give_up_after)
        self._url = to.requests.address
        http = open_async_transport() if transport is None else transport
        steps = to.async_step_connections(http) if transport is None else None
        self._transport = AsyncTransport(to.async_transport(http), to.requests, to.retry_policy, steps)

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

    create_population = async_client_method(populations.create_population)
    get_population = async_client_method(populations.get_population)
    update_population = async_client_method(populations.update_population)
    list_populations = async_list_method(populations.list_populations)
    create_budget = async_client_method(budgets.create_budget)
    create_blocks = async_client_method(budgets.create_blocks)
    get_block_schedule = async_client_method(block_schedules.get_block_schedule)
    replace_block_schedule = async_client_method(block_schedules.replace_block_schedule)
    remove_block_schedule = async_client_method(block_schedules.remove_block_schedule)
    get_budget = async_client_method(budgets.get_budget)
    update_budget = async_client_method(budgets.update_budget)
    list_budgets = async_list_method(budgets.list_budgets)
    archive_account = async_client_method(accounts.archive_account)
    unarchive_account = async_client_method(accounts.unarchive_account)
    get_account_history = async_client_method(accounts.get_account_history)
    export_account_history = async_client_method(accounts.export_account_history)
    get_account_history_svg = async_client_method(accounts.get_account_history_svg)
    get_population_registry_entry = async_client_method(populations.get_population_registry_entry)
    get_population_statement = async_client_method(populations.get_population_statement)
    get_population_statement_html = async_client_method(populations.get_population_statement_html)

    update_run = async_client_method(runs.update_run)
    list_runs = async_list_method(runs.list_runs)
    export_runs = async_export_method(runs.list_runs)
    get_run_history = async_client_method(runs.get_run_history)
    export_run_history = async_client_method(runs.export_run_history)
    get_run_history_svg = async_client_method(runs.get_run_history_svg)
    get_run_registry_entry = async_client_method(runs.get_run_registry_entry)
    get_run_statement = async_client_method(runs.get_run_statement)
    get_run_statement_html = async_client_method(runs.get_run_statement_html)
    get_reservation = async_client_method(reservations.get_reservation)
    cancel_reservation = async_client_method(reservations.cancel_reservation)
    prioritize_reservation = async_client_method(reservations.prioritize_reservation)

    create_experiment = async_client_method(experiments.create_experiment)
    charge_experiment = async_client_method(experiments.charge_experiment)
    get_experiment = async_client_method(experiments.get_experiment)
    list_experiments = async_list_method(experiments.list_experiments)

    get_limit = async_client_method(governance.get_limit)
    get_limit_equivalents = async_client_method(governance.get_limit_equivalents)
    change_limit = async_client_method(governance.change_limit)
    get_allocation = async_client_method(allocations.get_allocation)
    replace_allocation = async_client_method(allocations.replace_allocation)
    get_queue = async_client_method(allocations.get_queue)
    preview_wait = async_client_method(allocations.preview_wait)
    get_policy = async_client_method(governance.get_policy)
    replace_policy = async_client_method(governance.replace_policy)
    list_proposals = async_list_method(governance.list_proposals)
    get_proposal = async_client_method(governance.get_proposal)
    approve_proposal = async_client_method(governance.approve_proposal)
    reject_proposal = async_client_method(governance.reject_proposal)
    lift_quarantine = async_client_method(governance.lift_quarantine)

    create_api_key = async_client_method(api_keys.create_api_key)
    list_api_keys = async_list_method(api_keys.list_api_keys)
    get_api_key = async_client_method(api_keys.get_api_key)
    rotate_api_key = async_client_method(api_keys.rotate_api_key)
    revoke_api_key = async_client_method(api_keys.revoke_api_key)

    list_alerts = async_list_method(alerts.list_alerts)
    get_alert_settings = async_client_method(alerts.get_alert_settings)
    replace_alert_settings = async_client_method(alerts.replace_alert_settings)
    get_forecast = async_client_method(alerts.get_forecast)
    create_receiver = async_client_method(receivers.create_receiver)
    list_receivers = async_list_method(receivers.list_receivers)
    get_receiver = async_client_method(receivers.get_receiver)
    enable_receiver = async_client_method(receivers.enable_receiver)
    disable_receiver = async_client_method(receivers.disable_receiver)
    delete_receiver = async_client_method(receivers.delete_receiver)
    rotate_receiver_secret = async_client_method(receivers.rotate_receiver_secret)
    send_test_event = async_client_method(receivers.send_test_event)
    list_deliveries = async_list_method(receivers.list_deliveries)
    retry_delivery = async_client_method(receivers.retry_delivery)

    list_audit_events = async_list_method(audit.list_audit_events)
    export_audit_events = async_export_method(audit.list_audit_events)
    list_decisions = async_list_method(audit.list_decisions)
    export_decisions = async_export_method(audit.list_decisions)
    create_verification = async_client_method(audit.create_verification)
    list_verifications = async_list_method(audit.list_verifications)
    get_verification = async_client_method(audit.get_verification)
    get_signing_key = async_client_method(audit.get_signing_key)
    create_checkpoint = async_client_method(audit.create_checkpoint)
    list_checkpoints = async_list_method(audit.list_checkpoints)

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

    async def _open_run(self, setup: RunSetup) -> AsyncRun:
        state = await self._execute(setup.flow)
        return AsyncRun(
            self._transport,
            state,
            setup.prefetch,
            step=setup.step,
            with_reservation=setup.with_reservation,
            begins_attempt=setup.begins_attempt,
        )

    async def _execute(self, flow: RequestFlow[T]) -> T:
        return await self._transport.execute(flow)
