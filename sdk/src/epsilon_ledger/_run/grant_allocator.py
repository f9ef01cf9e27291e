"""Allocation of granted steps and preparation of the next grant, without I/O."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Final

from epsilon_ledger._run.grants import MAX_EVENTS, Grant, PendingGrant, PrefetchConfig, StepQueue, json_copy
from epsilon_ledger._run.step_requests import StepRequests
from epsilon_ledger._wire.errors import LedgerError, LedgerUnavailableError, UnexpectedResponseError
from epsilon_ledger._wire.events import Event, EventCount
from epsilon_ledger._wire.models import StepAuthorization
from epsilon_ledger._wire.problem_errors import (
    AccountQuarantinedError,
    AttemptSupersededError,
    InvalidRequestError,
    NotFoundError,
    RequestTooLargeError,
    ReservationClosedError,
    ReservationStateConflictError,
    ReservationsWaitingError,
    RunStateConflictError,
)
from epsilon_ledger._wire.problems import BudgetExceededError
from epsilon_ledger._wire.requests import Request, post
from epsilon_ledger._wire.reservation_models import CreatedReservation
from epsilon_ledger._wire.responses import Response

# The ledger checks the idempotency key first, so that after these errors no attempt had an effect.
_DEFINITE_REFUSALS: Final = (
    BudgetExceededError,
    ReservationsWaitingError,
    RunStateConflictError,
    AttemptSupersededError,
    ReservationStateConflictError,
    ReservationClosedError,
    AccountQuarantinedError,
    NotFoundError,
    InvalidRequestError,
    RequestTooLargeError,
)

# Attempts to renew a lease before it expires, if no response arrives.
_RENEWAL_ATTEMPTS: Final = 10


class GrantAllocator:
    """The grants of a run: at most one in use, and one requested.

    A grant is a reservation used only by this object. Its use is reported with the next grant, or at the end; if this
    process dies, the whole grant is forfeited and charged.

    Args:
        step_requests: the run's direct step requests and state.
        prefetch: prefetching of grants.
        clock: monotonic, in seconds.
        step: training steps taken before, in all attempts; None if unknown, which excludes a schedule.
    """

    def __init__(
        self, step_requests: StepRequests, prefetch: PrefetchConfig, clock: Callable[[], float], step: int | None
    ) -> None:
        assert prefetch.schedule is None or step is not None, "a schedule needs to know which step comes next"
        self.prefetch = prefetch
        self.step = step
        self._step_requests = step_requests
        self._clock = clock
        self._grant: Grant | None = None
        self._pending_grant: PendingGrant | None = None
        self._last_event: Event | None = None
        self._at_limit = False

    @property
    def are_used(self) -> bool:
        """Whether steps may come from grants; otherwise each is requested directly."""
        return self.prefetch.every > 1

    @property
    def next_step(self) -> int:
        """Number of the first step neither admitted nor allocated."""
        return self._step_requests.state.next_step if self._grant is None else self._grant.next_step

    def advance(self, count: int) -> None:
        """Count training steps as taken."""
        if self.step is not None:
            self.step += count

    @property
    def grant(self) -> Grant | None:
        """The grant in use."""
        return self._grant

    def allocate(self, count: int, event: Event | None) -> StepAuthorization | None:
        """Allocate steps from the grant, or return None.

        Args:
            count: at least 1.
            event: of each step; None: by schedule, or the run's own.
        """
        grant = self._grant
        if grant is None or grant.closing or self._clock() >= grant.ends_at:
            return None
        if event is None and self.prefetch.schedule is None:
            event = self._step_requests.state.event
            if event is None:
                return None
        # After an interrupt here the next step is unknown, and nothing more is allocated.
        grant.closing = True
        taken = grant.steps.take(count, event)
        self.advance(count if taken else 0)
        grant.closing = False
        if not taken:
            return None
        reservation, next_step = grant.reservation, grant.next_step
        return StepAuthorization(
            decision="admitted",
            run=self._step_requests.state.id,
            first_step=next_step - count,
            count=count,
            next_step=next_step,
            epsilon=reservation.epsilon_including_reserved,
            delta=reservation.delta,
            used=reservation.used_including_reserved,
            steps_remaining=reservation.steps_remaining + grant.steps.remaining,
            binding_account=reservation.binding_account,
            binding_account_path=reservation.binding_account_path,
            dry_run=False,
            reservation=reservation.id,
            requested_count=count,
            overdrawn=False,
        )

    @property
    def renewal_due(self) -> bool:
        """Whether the lease should be renewed although steps are left."""
        grant = self._grant
        return grant is not None and not grant.closing and grant.renew_at <= self._clock() < grant.ends_at

    def prefetch_request(self) -> Request | None:
        """Prepare the request for the next grant, or None if it is too early.

        Its outcome goes to `handle_outcome`.
        """
        if self._pending_grant is not None:
            return self._pending_grant.request
        grant, every, now = self._grant, self.prefetch.every, self._clock()
        if grant is None or grant.closing or now >= grant.ends_at:
            return None
        left, early = grant.steps.remaining, now < grant.renew_at
        if early and (self._at_limit or left > every // 2):
            return None
        planned = self._plan_steps(left if self._at_limit else left + every, self._last_event, left)
        if not planned.remaining or (early and planned.remaining == left):
            return None
        self._pending_grant = self._prepare_grant(planned)
        return self._pending_grant.request

    def handle_outcome(self, outcome: Response | LedgerError) -> None:
        """Process the outcome of the request for the next grant.

        Raises:
            LedgerError: the run cannot continue, or the response is not one of this API. After a refusal or without a
                response the steps granted before are used first, unless a limit has changed since.
        """
        pending, grant = self._pending_grant, self._grant
        assert pending is not None, "a response belongs to a request"
        if not isinstance(outcome, LedgerError):
            self._adopt(pending, outcome)
            return
        self._drop(pending, outcome)
        if isinstance(outcome, LedgerUnavailableError):
            self._renew_later()
        elif isinstance(outcome, ReservationsWaitingError):
            self._at_limit = True
            self._renew_later()
        elif isinstance(outcome, (BudgetExceededError, InvalidRequestError, RequestTooLargeError)):
            self._at_limit = True
            if grant is not None and isinstance(outcome, BudgetExceededError) and grant.precedes(outcome.limit_change):
                grant.closing = True  # a limit change may have removed its steps: report the used ones first
        elif isinstance(outcome, ReservationClosedError):
            self._expire()
        else:
            raise outcome

    def scheduled_events(self, count: int) -> Sequence[EventCount]:
        """Return the next `count` steps of the schedule, to be requested directly.

        Raises:
            ValueError: they are too many for one request.
        """
        schedule = self.prefetch.schedule
        assert schedule is not None, "asked where there is one"
        assert self.step is not None, "known where there is a schedule"
        if count > MAX_EVENTS:
            raise ValueError(f"At most {MAX_EVENTS} steps of a schedule can be asked for at once, not {count}.")
        repeated: list[EventCount] = []
        for event in map(schedule, range(self.step, self.step + count)):
            if repeated and repeated[-1]["event"] == event:
                repeated[-1]["count"] += 1
            else:
                repeated.append({"event": event, "count": 1})
        return repeated

    def record_direct_steps(self, event: Event | None, count: int) -> None:
        """Record steps that were requested directly; further steps of the same kind are worth a grant."""
        if self.are_used:
            self._remember_event(event)
        self.advance(count)

    def drop(self) -> None:
        """Discard the grant of an ended run."""
        self._grant = self._pending_grant = None

    def _remember_event(self, event: Event | None) -> None:
        """Expect further steps like this one; a copy protects it from changes."""
        expected = self._expected_event(event)
        if self._last_event != expected:
            self._last_event = None if expected is None else json_copy(expected)

    def _expected_event(self, event: Event | None) -> Event | None:
        if event is not None:
            return event
        return self._step_requests.state.event if self.prefetch.schedule is None else None

    def _plan_steps(self, count: int, event: Event | None, needed: int) -> StepQueue:
        """Plan the next steps: those granted but not allocated, then further ones.

        Args:
            count: number of steps.
            event: of each further step; None: by schedule, or the run's own.
            needed: number of steps needed now.

        Returns:
            The steps; fewer if further ones cannot be predicted or do not fit into one reservation.

        Raises:
            ValueError: their events are unknown.
        """
        # The ledger charges the old grant's steps as the first of the new one.
        going_on = self._grant is not None and not self._grant.closing
        steps = self._grant.steps.copy() if self._grant is not None and going_on else StepQueue()
        schedule = self.prefetch.schedule
        if event is None and schedule is not None:
            assert self.step is not None, "known where there is a schedule"
            while steps.remaining < count and len(steps) < MAX_EVENTS:
                try:
                    fits = steps.add(schedule(self.step + steps.remaining), 1)
                except Exception:
                    # A schedule may end where the training ends.
                    if steps.remaining < needed:
                        raise
                    break
                if not fits:
                    break
            return steps
        event = event if event is not None else self._step_requests.state.event
        if event is None:
            raise ValueError("The run was created without an event: give the step's `event`.")
        if steps.remaining < count:
            steps.add(event, count - steps.remaining)
        return steps

    def _prepare_grant(self, planned: StepQueue) -> PendingGrant:
        body: dict[str, object] = {
            "events": planned.to_wire(),
            "lease_seconds": self.prefetch.lease_seconds,
            "attempt": self._step_requests.state.attempt,
            "expected_steps": self._step_requests.expected_steps,
        }
        used = 0
        if self._grant is not None:
            used = self._grant.used
            body["preceding"] = {"reservation": self._grant.reservation.id, "steps_executed": used}
        request = post(f"{self._step_requests.path}/reservations", body)
        return PendingGrant(request, planned, used, self.next_step, self._clock())

    def _drop(self, pending: PendingGrant, error: LedgerError) -> None:
        """Drop the request, unless it may have had an effect: then it must be repeated."""
        if isinstance(error, _DEFINITE_REFUSALS) or not pending.request.in_doubt:
            self._pending_grant = None

    def _adopt(self, pending: PendingGrant, response: Response) -> None:
        """Adopt a new grant; steps allocated meanwhile are its first."""
        reservation, before = response.read(CreatedReservation), self._grant
        if before is None or before.reservation.id != reservation.id:
            steps, meanwhile = pending.steps.copy(), 0 if before is None else before.used - pending.used
            as_asked = [planned.count for planned in reservation.events] == [
                planned["count"] for planned in steps.to_wire()
            ]
            is_next = reservation.next_step >= pending.next_step  # else it is an earlier grant's answer
            as_many = reservation.steps_reserved == steps.remaining
            if not is_next or not as_many or (meanwhile and not steps.take(meanwhile, None)):
                raise UnexpectedResponseError(
                    f"The ledger's answer grants other steps than {self._step_requests.state.id} asked for: release "
                    "nothing.",
                    status=response.status,
                )
            if meanwhile and not as_asked:
                # Which of its steps these are, the ledger would not know: all of them are charged.
                steps.take(steps.remaining, None)
            lease = self.prefetch.lease_seconds
            renew_at, ends_at = pending.requested_at + lease / 2, pending.requested_at + lease
            unsure = not as_asked or (before is not None and before.closing and meanwhile > 0)
            self._grant = Grant(reservation, steps, renew_at, ends_at, closing=unsure)
            self._pending_grant = None
            self._step_requests.state = replace(
                self._step_requests.state,
                next_step=reservation.next_step,
                epsilon=reservation.epsilon_including_reserved,
                delta=reservation.delta,
                used=reservation.used_including_reserved,
                steps_remaining=reservation.steps_remaining,
                binding_account=reservation.binding_account,
                binding_account_path=reservation.binding_account_path,
                reservation=reservation.id,
            )
        self._pending_grant = None

    def _renew_later(self) -> None:
        if self._grant is not None:
            self._grant.renew_at = self._clock() + self.prefetch.lease_seconds / _RENEWAL_ATTEMPTS

    def _expire(self) -> None:
        if self._grant is not None:
            self._grant.ends_at = self._clock()
