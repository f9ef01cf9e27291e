"""The client: one per process, shared by its threads."""

from collections.abc import Callable, Sequence
from types import TracebackType
from typing import Self, TypeVar

import httpx

from epsilon_ledger import _calls, _planning
from epsilon_ledger._asked import asked
from epsilon_ledger._config import connection
from epsilon_ledger._events import Event, EventCount
from epsilon_ledger._facts import RunStateDict, checked_state
from epsilon_ledger._grants import Ahead
from epsilon_ledger._requests import Talk
from epsilon_ledger._run import Run
from epsilon_ledger._transport import Transport
from epsilon_ledger._values import Limit, NeighboringRelation, PrivacyFilter

T = TypeVar("T")


class LedgerClient:
    """A connection to an Epsilon Ledger, to be closed after use (it is a context manager).

    Every request is tried until it is answered: after connection errors, time-outs and the statuses 429, 502,
    503 and 504 it is sent again, with random pauses that grow, under one idempotency key, so that it has one
    effect. Threads may share a client.

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
        to = connection(url, api_key, max_attempts, give_up_after)
        http = httpx.Client(base_url=to.url, headers=to.headers, timeout=timeout, transport=transport)
        self._url = http.base_url
        self._transport = Transport(http, to.patience)

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

    create_population = asked(_calls.create_population)
    create_budget = asked(_calls.create_budget)
    get_population = asked(_calls.get_population)
    get_budget = asked(_calls.get_budget)
    get_reservation = asked(_calls.get_reservation)
    history = asked(_calls.history)
    epsilon = asked(_planning.epsilon)
    delta = asked(_planning.delta)
    trajectory = asked(_planning.trajectory)
    noise_multiplier = asked(_planning.noise_multiplier)
    sampling_probability = asked(_planning.sampling_probability)
    steps = asked(_planning.steps)
    laplace = asked(_planning.laplace)

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
        plan: Sequence[EventCount] | None = None,
        authorize_every: int = 1,
        background: bool = False,
        schedule: Callable[[int], Event] | None = None,
        lease_seconds: int | None = None,
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
            plan: what is set aside for the run at once; if it does not fit, there is no run.
            authorize_every: steps that are granted with one request. Those that were not used are returned when the
                run is completed, and forfeited if it ends otherwise, or if this process dies.
            background: whether the next grant is asked for while the steps of the last one are taken.
            schedule: what step t of the training does, from 0, in place of `event`; a decaying noise, for instance.
            lease_seconds: how long the trainer may be silent before what it holds is forfeited; 3,600 for a plan and
                600 for steps that are granted ahead, if nothing is said.

        Returns:
            The run; keep its `state_dict()` to take it up again.

        Raises:
            LedgerError: it was not registered, or no answer came.
            ValueError: `authorize_every` and its kin do not go together.
        """
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
        return Run(self._transport, self._carry(_calls.register_run(body).talk()), ahead, taken=0, with_plan=True)

    def get_run(
        self,
        run_id: str,
        *,
        authorize_every: int = 1,
        background: bool = False,
        schedule: Callable[[int], Event] | None = None,
        lease_seconds: int | None = None,
        with_plan: bool = False,
    ) -> Run:
        """Take up a run at its first free step, in its present attempt; `resume_run` begins a new one.

        Args:
            run_id: its id.
            authorize_every: as in `register_run`.
            background: as in `register_run`.
            schedule: as in `register_run`.
            lease_seconds: as in `register_run`.
            with_plan: whether to go on with the plan that an earlier process of this job has set aside. Each of its
                steps must have been asked for on its own: the ledger would not know of others.

        Returns:
            The run.

        Raises:
            LedgerError: there is no such run, or no answer came.
            ValueError: `authorize_every` and its kin do not go together.
        """
        ahead = Ahead.of(authorize_every, background, schedule, lease_seconds)
        state = self._carry(_calls.get_run(run_id).talk())
        return Run(self._transport, state, ahead, taken=state.next_step, with_plan=with_plan)

    def resume_run(
        self,
        state: RunStateDict | str,
        *,
        steps_executed: int | None = None,
        authorize_every: int = 1,
        background: bool = False,
        schedule: Callable[[int], Event] | None = None,
        lease_seconds: int | None = None,
    ) -> Run:
        """Go on from a checkpoint, in a new attempt: whatever process held the run before can charge no more.

        What was spent stays spent: steps that are repeated after the checkpoint are charged again, and what was granted
        ahead to the process before is charged in full.

        Args:
            state: what `run.state_dict()` returned when the checkpoint was written; or a run's id, to repeat nothing.
            steps_executed: of a plan that the process before had set aside with `reserve`, if that is known for sure;
                None: what is left of it is forfeited.
            authorize_every: as in `register_run`.
            background: as in `register_run`.
            schedule: as in `register_run`.
            lease_seconds: as in `register_run`.

        Returns:
            The run.

        Raises:
            RunStateConflictError: the run has ended.
            LedgerError: there is no such run, or no answer came.
            ValueError: this is no checkpoint of a run.
        """
        ahead = Ahead.of(authorize_every, background, schedule, lease_seconds)
        run_id, step = checked_state(state)
        opened = self._carry(_calls.resumed(run_id, step, steps_executed))
        return Run(self._transport, opened, ahead, taken=opened.next_step if step is None else step)

    def _carry(self, talk: Talk[T]) -> T:
        return self._transport.carry(talk)
