"""The client: one per process, shared by its threads."""

import os
from collections.abc import Sequence
from importlib.metadata import version
from types import TracebackType
from typing import Self
from urllib.parse import quote, urlencode

import httpx

from epsilon_ledger._config import checked_key, checked_url
from epsilon_ledger._events import Event, EventCount
from epsilon_ledger._run import Run
from epsilon_ledger._transport import Patience, Transport, get, post
from epsilon_ledger._values import (
    Budget,
    EpsilonEstimate,
    History,
    Limit,
    NeighboringRelation,
    Population,
    PrivacyFilter,
    RunState,
)


class LedgerClient:
    """A connection to an Epsilon Ledger, to be closed after use (it is a context manager).

    Every request is tried until it is answered: after connection errors, time-outs and the statuses 429, 502,
    503 and 504 it is sent again, with random pauses that grow, under one idempotency key, so that it has one
    effect. Threads may share a client, but not a run.

    Args:
        url: the ledger's address; by default EPSILON_LEDGER_URL.
        api_key: the organisation's key; by default EPSILON_LEDGER_API_KEY.
        timeout: seconds to wait for a connection, and again for an answer, in each try.
        max_attempts: tries of one request, at least 1.
        give_up_after: seconds after which no further try of a request is begun.
        transport: what carries the requests instead of the network, in tests.

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
        transport: httpx.BaseTransport | None = None,
    ) -> None:
        if max_attempts < 1:
            raise ValueError(f"max_attempts must be at least 1, not {max_attempts}.")
        key = checked_key(api_key or os.environ.get("EPSILON_LEDGER_API_KEY", ""))
        http = httpx.Client(
            base_url=checked_url(url or os.environ.get("EPSILON_LEDGER_URL", "")),
            headers={
                "Authorization": f"Bearer {key}",
                "Accept": "application/json, application/problem+json",
                "User-Agent": f"epsilon-ledger-client/{version('epsilon-ledger-client')}",
            },
            timeout=timeout,
            transport=transport,
        )
        self._url = http.base_url
        self._transport = Transport(http, Patience(max_attempts=max_attempts, give_up_after=give_up_after))

    def __repr__(self) -> str:
        """Name the ledger, never the key."""
        return f"<LedgerClient {self._url}>"

    def __enter__(self) -> Self:
        """Hand out the client."""
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

    def create_population(
        self,
        name: str,
        *,
        privacy_unit: str,
        neighboring_relation: NeighboringRelation,
        limit: Limit,
        size: int | None = None,
        privacy_filter: PrivacyFilter | None = None,
        planned: Sequence[EventCount] | None = None,
    ) -> Population:
        """Create the root of a budget tree; it takes an admin's key.

        Args:
            name: unique in the organisation, without "/".
            privacy_unit: who is protected, "patient record" for instance, 1 to 100 characters.
            neighboring_relation: which two data sets are neighbours.
            limit: the most that all runs on these people may spend together.
            size: number of privacy units, if known; the limit's delta must be below 1 / size.
            privacy_filter: how the limit is enforced; the ledger's default is adaptive.
            planned: the workload that an adaptive filter is tuned for.

        Returns:
            The population.

        Raises:
            LedgerError: it was not created, or no answer came.
        """
        body = {
            "name": name,
            "privacy_unit": privacy_unit,
            "neighboring_relation": neighboring_relation,
            "limit": _wire_limit(limit),
            "size": size,
            "filter": privacy_filter,
            "planned": planned,
        }
        return self._transport.send(post("v1/populations", body)).read(Population)

    def create_budget(
        self,
        name: str,
        *,
        parent: str,
        limit: Limit,
        privacy_filter: PrivacyFilter | None = None,
        planned: Sequence[EventCount] | None = None,
    ) -> Budget:
        """Create a budget under a population or another budget; it takes an admin's key.

        Args:
            name: unique under its parent, without "/".
            parent: id or path of the parent, "mimic" or "mimic/icu-team" for instance.
            limit: the most that all runs under it may spend together.
            privacy_filter: how the limit is enforced; the ledger's default is adaptive.
            planned: the workload that an adaptive filter is tuned for.

        Returns:
            The budget.

        Raises:
            LedgerError: it was not created, or no answer came.
        """
        body = {
            "name": name,
            "parent": parent,
            "limit": _wire_limit(limit),
            "filter": privacy_filter,
            "planned": planned,
        }
        return self._transport.send(post("v1/budgets", body)).read(Budget)

    def register_run(  # noqa: PLR0913 - the members of the request, by name
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
    ) -> Run:
        """Register a training run, which charges a budget and all that lies above it.

        Args:
            name: for people; it need not be unique.
            budget: id or path of the budget.
            event: what a step does unless `authorize` says otherwise.
            limit: the run's own limit, if it has one.
            privacy_filter: how the run's own limit is enforced.
            planned: the workload that the run's own adaptive filter is tuned for.
            privacy_unit: what the trainer protects; the ledger refuses the run if the population's differs.
            neighboring_relation: what the trainer's noise is made for; as above.

        Returns:
            The run; keep its `id` to take it up again.

        Raises:
            LedgerError: it was not registered, or no answer came.
        """
        body = {
            "name": name,
            "budget": budget,
            "event": event,
            "limit": None if limit is None else _wire_limit(limit),
            "filter": privacy_filter,
            "planned": planned,
            "privacy_unit": privacy_unit,
            "neighboring_relation": neighboring_relation,
        }
        return Run(self._transport, self._transport.send(post("v1/runs", body)).read(RunState))

    def get_run(self, run_id: str) -> Run:
        """Take up a run at its first free step, after a restart for instance.

        Args:
            run_id: its id.

        Returns:
            The run.

        Raises:
            LedgerError: there is no such run, or no answer came.
        """
        return Run(self._transport, self._transport.send(get(_path("runs", run_id))).read(RunState))

    def get_budget(self, budget_id: str) -> Budget:
        """Read a budget.

        Args:
            budget_id: its id.

        Returns:
            The budget.

        Raises:
            LedgerError: there is no such budget, or no answer came.
        """
        return self._transport.send(get(_path("budgets", budget_id))).read(Budget)

    def get_population(self, population_id: str) -> Population:
        """Read a population.

        Args:
            population_id: its id.

        Returns:
            The population.

        Raises:
            LedgerError: there is no such population, or no answer came.
        """
        return self._transport.send(get(_path("populations", population_id))).read(Population)

    def history(self, run_id: str, *, max_points: int = 500, after: str | None = None) -> History:
        """Read the decisions on a run, thinned out to a number of points.

        Args:
            run_id: its id.
            max_points: points wanted at most, at least 2.
            after: `next_cursor` of an earlier page.

        Returns:
            A page of points.

        Raises:
            LedgerError: there is no such run, or no answer came.
        """
        query = {"max_points": str(max_points)} | ({} if after is None else {"after": after})
        return self._transport.send(get(f"{_path('runs', run_id)}/history?{urlencode(query)}")).read(History)

    def epsilon(
        self,
        events: Sequence[EventCount],
        *,
        delta: float,
        neighboring_relation: NeighboringRelation | None = None,
    ) -> EpsilonEstimate:
        """Compute what events would cost together; no account is touched.

        Args:
            events: events with their counts, fixed in advance, at most 1,000.
            delta: in [1e-30, 0.5).
            neighboring_relation: which two data sets are neighbours; the ledger's default otherwise.

        Returns:
            The epsilon, `math.inf` if it has no finite bound, with the ledger's warnings.

        Raises:
            LedgerError: the events are not supported, or no answer came.
        """
        body = {"events": events, "delta": delta, "neighboring_relation": neighboring_relation}
        return self._transport.send(post("v1/accounting/epsilon", body)).read(EpsilonEstimate)


def _path(kind: str, name: str) -> str:
    return f"v1/{kind}/{quote(name, safe='')}"


def _wire_limit(limit: Limit) -> dict[str, float]:
    return {"epsilon": limit.epsilon, "delta": limit.delta}
