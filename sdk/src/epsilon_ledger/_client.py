"""The blocking client."""

import os
from collections.abc import Callable
from functools import wraps
from types import TracebackType
from typing import Concatenate, ParamSpec, Self, TypeVar

import httpx2

from epsilon_ledger._net.config import Credentials, connection
from epsilon_ledger._net.http import open_transport
from epsilon_ledger._net.transport import Transport
from epsilon_ledger._net.workload import TokenProvider
from epsilon_ledger._run import run_factory
from epsilon_ledger._run.method_binding import client_method, export_method, list_method, set_signature
from epsilon_ledger._run.run import Run
from epsilon_ledger._run.run_factory import RunSetup
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


def _factory_method(factory: Callable[P, RunSetup]) -> "Callable[Concatenate[LedgerClient, P], Run]":
    """Make a client method from a function that opens a run."""

    @wraps(factory)
    def method(self: "LedgerClient", /, *args: P.args, **kwargs: P.kwargs) -> Run:
        setup = factory(*args, **kwargs)
        state = self._execute(setup.flow)
        return Run(
            self._transport,
            state,
            setup.prefetch,
            step=setup.step,
            with_reservation=setup.with_reservation,
            begins_attempt=setup.begins_attempt,
        )

    return set_signature(method, factory, Run)


class LedgerClient:
    """A connection to an Epsilon Ledger: a context manager, to be closed after use.

    Every request is retried with random, growing pauses after connection errors, time-outs and the statuses 429, 502,
    503 and 504. Its idempotency key ensures a single effect. Threads may share a client.

    Args:
        url: the ledger's address; by default EPSILON_LEDGER_URL.
        api_key: the organisation's key; by default EPSILON_LEDGER_API_KEY.
        token_file: file with the token of a workload, such as a Kubernetes service account, which the client exchanges
            for keys and renews; without a key, by default EPSILON_LEDGER_TOKEN_FILE.
        token_provider: function that gets such a token, as `github_actions_token("AUDIENCE")` makes one.
        timeout: seconds to connect, and to receive a response, in each attempt.
        max_attempts: attempts of one request, at least 1.
        give_up_after: seconds after which no further attempt starts.
        transport: replaces the network in tests.

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
        transport: httpx2.BaseTransport | None = None,
    ) -> None:
        to = connection(url, Credentials(api_key, token_file, token_provider), timeout, max_attempts, give_up_after)
        self._url = to.requests.address
        http = open_transport() if transport is None else transport
        steps = to.step_connections(http) if transport is None else None
        self._transport = Transport(to.transport(http), to.requests, to.retry_policy, steps)

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

    create_population = client_method(populations.create_population)
    get_population = client_method(populations.get_population)
    update_population = client_method(populations.update_population)
    list_populations = list_method(populations.list_populations)
    create_budget = client_method(budgets.create_budget)
    create_blocks = client_method(budgets.create_blocks)
    get_block_schedule = client_method(block_schedules.get_block_schedule)
    replace_block_schedule = client_method(block_schedules.replace_block_schedule)
    remove_block_schedule = client_method(block_schedules.remove_block_schedule)
    get_budget = client_method(budgets.get_budget)
    update_budget = client_method(budgets.update_budget)
    list_budgets = list_method(budgets.list_budgets)
    archive_account = client_method(accounts.archive_account)
    unarchive_account = client_method(accounts.unarchive_account)
    get_account_history = client_method(accounts.get_account_history)
    export_account_history = client_method(accounts.export_account_history)
    get_account_history_svg = client_method(accounts.get_account_history_svg)
    get_population_registry_entry = client_method(populations.get_population_registry_entry)
    get_population_statement = client_method(populations.get_population_statement)
    get_population_statement_html = client_method(populations.get_population_statement_html)

    update_run = client_method(runs.update_run)
    list_runs = list_method(runs.list_runs)
    export_runs = export_method(runs.list_runs)
    get_run_history = client_method(runs.get_run_history)
    export_run_history = client_method(runs.export_run_history)
    get_run_history_svg = client_method(runs.get_run_history_svg)
    get_run_registry_entry = client_method(runs.get_run_registry_entry)
    get_run_statement = client_method(runs.get_run_statement)
    get_run_statement_html = client_method(runs.get_run_statement_html)
    get_reservation = client_method(reservations.get_reservation)
    cancel_reservation = client_method(reservations.cancel_reservation)
    prioritize_reservation = client_method(reservations.prioritize_reservation)

    create_experiment = client_method(experiments.create_experiment)
    charge_experiment = client_method(experiments.charge_experiment)
    get_experiment = client_method(experiments.get_experiment)
    list_experiments = list_method(experiments.list_experiments)

    get_limit = client_method(governance.get_limit)
    get_limit_equivalents = client_method(governance.get_limit_equivalents)
    change_limit = client_method(governance.change_limit)
    get_allocation = client_method(allocations.get_allocation)
    replace_allocation = client_method(allocations.replace_allocation)
    get_queue = client_method(allocations.get_queue)
    preview_wait = client_method(allocations.preview_wait)
    get_policy = client_method(governance.get_policy)
    replace_policy = client_method(governance.replace_policy)
    list_proposals = list_method(governance.list_proposals)
    get_proposal = client_method(governance.get_proposal)
    approve_proposal = client_method(governance.approve_proposal)
    reject_proposal = client_method(governance.reject_proposal)
    lift_quarantine = client_method(governance.lift_quarantine)

    create_api_key = client_method(api_keys.create_api_key)
    list_api_keys = list_method(api_keys.list_api_keys)
    get_api_key = client_method(api_keys.get_api_key)
    rotate_api_key = client_method(api_keys.rotate_api_key)
    revoke_api_key = client_method(api_keys.revoke_api_key)

    list_alerts = list_method(alerts.list_alerts)
    get_alert_settings = client_method(alerts.get_alert_settings)
    replace_alert_settings = client_method(alerts.replace_alert_settings)
    get_forecast = client_method(alerts.get_forecast)
    create_receiver = client_method(receivers.create_receiver)
    list_receivers = list_method(receivers.list_receivers)
    get_receiver = client_method(receivers.get_receiver)
    enable_receiver = client_method(receivers.enable_receiver)
    disable_receiver = client_method(receivers.disable_receiver)
    delete_receiver = client_method(receivers.delete_receiver)
    rotate_receiver_secret = client_method(receivers.rotate_receiver_secret)
    send_test_event = client_method(receivers.send_test_event)
    list_deliveries = list_method(receivers.list_deliveries)
    retry_delivery = client_method(receivers.retry_delivery)

    list_audit_events = list_method(audit.list_audit_events)
    export_audit_events = export_method(audit.list_audit_events)
    list_decisions = list_method(audit.list_decisions)
    export_decisions = export_method(audit.list_decisions)
    create_verification = client_method(audit.create_verification)
    list_verifications = list_method(audit.list_verifications)
    get_verification = client_method(audit.get_verification)
    get_signing_key = client_method(audit.get_signing_key)
    create_checkpoint = client_method(audit.create_checkpoint)
    list_checkpoints = list_method(audit.list_checkpoints)

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
