"""Request flows of a run's reservation, without I/O."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from datetime import timedelta
from http import HTTPStatus
from typing import Final, TypeVar

from epsilon_ledger._run.grant_client import GrantClient
from epsilon_ledger._run.grants import PrefetchConfig
from epsilon_ledger._run.reservation_waits import OnWait, ReservationWait, wait_end
from epsilon_ledger._run.step_requests import StepRequests
from epsilon_ledger._wire.coercion import whole
from epsilon_ledger._wire.endpoints.runs import get_run
from epsilon_ledger._wire.errors import LedgerError, ReservationNotGrantedError, UnexpectedResponseError
from epsilon_ledger._wire.events import EventCount
from epsilon_ledger._wire.members import wire_events
from epsilon_ledger._wire.models import RunState
from epsilon_ledger._wire.problems import BudgetExceededError
from epsilon_ledger._wire.requests import RequestFlow, path, post
from epsilon_ledger._wire.reservation_models import Reservation

T = TypeVar("T")

_ENDS: Final = {"commit": "committed", "void": "voided"}
"""Status of a reservation after each action."""


class ReservationProtocol:
    """The part of a run's protocol that is about its reservation and its state.

    Args:
        state: latest state from the ledger.
        prefetch: prefetching of grants.
        clock: monotonic, in seconds.
        step: training steps taken before, in all attempts; None if unknown.
        with_reservation: whether the run's active reservation belongs to this trainer.

    Raises:
        ValueError: the run has a reservation of its own and prefetches grants.
    """

    def __init__(
        self,
        state: RunState,
        prefetch: PrefetchConfig,
        clock: Callable[[], float],
        *,
        step: int | None,
        with_reservation: bool,
    ) -> None:
        self.step_requests = StepRequests(state, state.reservation if with_reservation else None)
        self.grants = GrantClient(self.step_requests, prefetch, clock, step)
        self._refused: tuple[int, BudgetExceededError] | None = None
        prefetch.require_none(has_reservation=self.step_requests.reservation is not None)

    @property
    def state(self) -> RunState:
        """The run's latest state from the ledger."""
        return self.step_requests.state

    @property
    def refusal(self) -> BudgetExceededError | None:
        """Refusal of what was requested last; None if steps were charged since."""
        # Any charge moves the next step on, also one from a grant, which does not come by here.
        if self._refused is None or self._refused[0] != self.grants.next_step:
            return None
        return self._refused[1]

    def reserve(
        self,
        events: Sequence[EventCount],
        *,
        lease_seconds: int = 3600,
        wait: timedelta | None = None,
        on_wait: OnWait | None = None,
    ) -> RequestFlow[Reservation]:
        """Reserve the whole cost of steps or nothing; the run's steps are then taken from the reservation.

        Args:
            events: in order, each with its count; at most 1,000.
            lease_seconds: maximum silence of the trainer, in 1 ... 604,800; `renew` restarts it.
            wait: how long they may wait for budget, as in `create_run`; Ctrl-C or another exception cancels the
                reservation, not the run. None: they are reserved at once or refused.
            on_wait: as in `create_run`.

        Returns:
            The reservation.

        Raises:
            BudgetExceededError: the events do not fit, or never would; nothing is reserved.
            ReservationsWaitingError: they fit, but others are served first, and they may not wait.
            ReservationNotGrantedError: the reservation has waited in vain, or was cancelled.
            ReservationStateConflictError: the run has an active reservation, or one that waits.
            ValueError: the run prefetches grants, which are reservations themselves.
            LedgerError: any other failure.
        """
        self.grants.prefetch.require_none(has_reservation=True)
        body = {
            "events": wire_events(events, "events"),
            "lease_seconds": lease_seconds,
            "attempt": self.state.attempt,
            "wait_until": wait_end(wait),
            "expected_steps": self.step_requests.expected_steps,
        }
        steps = sum(item["count"] for item in events)
        return (yield from self._keep_refusal(self._reserve(body, steps, on_wait, waits=wait is not None)))

    def wait_for_reservation(self, *, on_wait: OnWait | None = None) -> RequestFlow[Reservation]:
        """Wait until the run's reservation is granted, and claim it; the run's steps are then taken from it.

        For a trainer that has restarted while its reservation waited, or was granted and not claimed by any process.
        Use the reservation in one process. An exception leaves the reservation as it is.

        Args:
            on_wait: as in `create_run`.

        Returns:
            The reservation.

        Raises:
            ReservationNotGrantedError: the reservation has waited in vain, or was cancelled.
            StepsAlreadyTakenError: another process has claimed it.
            ValueError: the run has no reservation, or prefetches grants.
            LedgerError: any other failure; the reservation goes on waiting.
        """
        self.grants.prefetch.require_none(has_reservation=True)
        state = yield from self.refresh()
        if state.reservation is not None and state.reservation == self.step_requests.reservation:
            return (yield from self._lease("claim"))
        wanted = state.waiting_reservation or state.reservation
        if wanted is not None:
            return (yield from self._claim(ReservationWait(state.id, wanted, on_wait).claim()))
        if state.end_reason == "not_granted":
            raise ReservationNotGrantedError(
                f"The reservation of {state.id} has waited in vain, or was cancelled, and the run is {state.status}: "
                "create another run.",
                run=state.id,
            )
        raise ValueError(f"{state.id} is {state.status} and has no reservation: call reserve first.")

    def commit(self, steps_executed: int) -> RequestFlow[Reservation]:
        """Commit the run's reservation: executed steps are spent, the rest is returned.

        Args:
            steps_executed: of the reservation, including individually authorized ones.

        Returns:
            The closed reservation.

        Raises:
            ReservationClosedError: it was already closed differently.
            LedgerError: any other failure.
        """
        return (
            yield from self._end_reservation("commit", {"steps_executed": whole("steps_executed", steps_executed, 0)})
        )

    def void(self) -> RequestFlow[Reservation]:
        """Void an unused reservation.

        Returns:
            The closed reservation.

        Raises:
            ReservationClosedError: it was already closed differently.
            ReservationStateConflictError: steps were taken from it.
            LedgerError: any other failure.
        """
        return (yield from self._end_reservation("void", {}))

    def renew(self) -> RequestFlow[Reservation]:
        """Renew the lease of the run's reservation.

        Returns:
            The current reservation.

        Raises:
            ReservationClosedError: it is closed; if its lease expired, its remainder is forfeited.
            ReservationStateConflictError: nobody has claimed it since its grant: call `wait_for_reservation`.
            LedgerError: any other failure.
        """
        return (yield from self._lease("renew"))

    def _lease(self, action: str) -> RequestFlow[Reservation]:
        response = yield post(f"{path('reservations', self._own_reservation())}/{action}", {})
        return self._require_reservation(response.read(Reservation), "active", response.status)

    def refresh(self) -> RequestFlow[RunState]:
        """Get the run's current state.

        Returns:
            The state; granted steps are part of its epsilon once their grant has ended.

        Raises:
            LedgerError: no response arrived.
        """
        state = (yield get_run(self.state.id).request).read(RunState)
        if self.grants.grant is None and not self.step_requests.in_doubt:
            self.step_requests.update_state(state)
        return state

    def _keep_refusal(self, flow: RequestFlow[T]) -> RequestFlow[T]:
        """Keep the refusal with which a flow ends, and pass it on."""
        try:
            return (yield from flow)
        except BudgetExceededError as refusal:
            self._refused = self.grants.next_step, refusal
            raise

    def _reserve(
        self, body: dict[str, object], steps: int, on_wait: OnWait | None, *, waits: bool
    ) -> RequestFlow[Reservation]:
        response = yield post(f"{self.step_requests.path}/reservations", body)
        made = response.read(Reservation, waits=waits)
        accepted = response.status == HTTPStatus.ACCEPTED
        self._require_reservation(made, "waiting" if accepted else "active", response.status, steps)
        if not accepted:
            self.step_requests.reservation = made.id
            self.step_requests.state = replace(self.state, reservation=made.id)
            return made
        release = post(f"{path('reservations', made.id)}/void", {})
        return (yield from self._claim(ReservationWait(self.state.id, made.id, on_wait).claim_or_give_up(release)))

    def _claim(self, claim: RequestFlow[tuple[RunState, Reservation]]) -> RequestFlow[Reservation]:
        """Adopt the reservation that a wait claims; if it is not granted, get the state in which it leaves the run."""
        try:
            state, claimed = yield from claim
        except ReservationNotGrantedError as error:
            try:
                yield from self.refresh()
            except LedgerError as second:
                error.add_note(f"The ledger did not answer what has become of {self.state.id}: {second}")
            raise
        self.step_requests.reservation = claimed.id
        self.step_requests.update_state(state)
        return claimed

    def _require_reservation(
        self, said: Reservation, reached: str, status: int, steps: int | None = None
    ) -> Reservation:
        """Require that a response is about this run's reservation, with so many steps, and has set it to a status.

        Raises:
            UnexpectedResponseError: it is about another reservation, or says something else of it.
        """
        asked = (self.state.id, reached, said.steps_reserved if steps is None else steps)
        if (said.run, said.status, said.steps_reserved) != asked:
            raise UnexpectedResponseError(
                f"The ledger's answer is about {said.steps_reserved} steps of {said.run} that are {said.status}, not "
                f"about the reservation of {self.state.id}: release nothing.",
                status=status,
            )
        return said

    def _own_reservation(self) -> str:
        if self.step_requests.reservation is None:
            raise ValueError("This run has no reservation: call reserve first.")
        return self.step_requests.reservation

    def _end_reservation(self, action: str, body: Mapping[str, object]) -> RequestFlow[Reservation]:
        response = yield post(f"{path('reservations', self._own_reservation())}/{action}", body)
        ended = self._require_reservation(response.read(Reservation), _ENDS[action], response.status)
        self.step_requests.update_state((yield get_run(self.state.id).request).read(RunState))
        return ended
