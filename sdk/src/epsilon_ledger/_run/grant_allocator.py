"""Allocation of granted steps and preparation of the next grant, without I/O."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Final

from epsilon_ledger._run.grants import MOST_EVENTS, Grant, PendingGrant, PrefetchConfig, Steps, as_sent
from epsilon_ledger._run.step_requests import StepRequests
from epsilon_ledger._wire.errors import LedgerError, LedgerUnavailableError, UnexpectedResponseError
from epsilon_ledger._wire.events import Event, EventCount
from epsilon_ledger._wire.models import Admission, HeldPlan
from epsilon_ledger._wire.problem_errors import (
    AccountQuarantinedError,
    AttemptSupersededError,
    InvalidRequestError,
    NotFoundError,
    RequestTooLargeError,
    ReservationClosedError,
    ReservationStateConflictError,
    RunStateConflictError,
)
from epsilon_ledger._wire.problems import BudgetExceededError
from epsilon_ledger._wire.requests import Request, post
from epsilon_ledger._wire.responses import Response

# The ledger checks the idempotency key first, so that after these errors no attempt had an effect.
_NO: Final = (
    BudgetExceededError,
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
_RENEWALS: Final = 10


class GrantAllocator:
    """The grants of a run: at most one in use, and one requested.

    A grant is a reservation used only by this object. Its use is reported with the next grant, or at the end; if this
    process dies, the whole grant is forfeited and charged.

    Args:
        asking: the run's direct step requests and state.
        ahead: prefetching of grants.
        clock: monotonic, in seconds.
        step: training steps taken before, in all attempts; None if unknown, which excludes a schedule.
    """

    def __init__(
        self, asking: StepRequests, ahead: PrefetchConfig, clock: Callable[[], float], step: int | None
    ) -> None:
        assert ahead.schedule is None or step is not None, "a schedule needs to know which step comes next"
        self.ahead = ahead
        self.step = step
        self._asking = asking
        self._clock = clock
        self._grant: Grant | None = None
        self._wish: PendingGrant | None = None
        self._last_event: Event | None = None
        self._enough = False

    @property
    def next_step(self) -> int:
        """Number of the first step neither admitted nor allocated."""
        return self._asking.state.next_step if self._grant is None else self._grant.next_step

    def advance(self, count: int) -> None:
        """Count training steps as taken."""
        if self.step is not None:
            self.step += count

    @property
    def grant(self) -> Grant | None:
        """The grant in use."""
        return self._grant

    def granted(self, count: int, event: Event | None) -> Admission | None:
        """Allocate steps from the grant, or return None.

        Args:
            count: at least 1.
            event: of each step; None: by schedule, or the run's own.
        """
        grant = self._grant
        if grant is None or grant.closing or self._clock() >= grant.ends_at:
            return None
        if event is None and self.ahead.schedule is None:
            event = self._asking.state.event
            if event is None:
                return None
        first_step = grant.next_step
        # After an interrupt here the next step is unknown, and nothing more is allocated.
        grant.closing = True
        taken = grant.steps.take(count, event)
        self.advance(count if taken else 0)
        grant.closing = False
        if not taken:
            return None
        held = grant.held
        return Admission(
            decision="admitted",
            run=self._asking.state.id,
            first_step=first_step,
            count=count,
            next_step=first_step + count,
            epsilon=held.epsilon_planned,
            delta=held.delta,
            epsilon_limit=held.epsilon_limit,
            steps_remaining=held.steps_remaining + grant.steps.left,
            binding_account=held.binding_account,
            binding_account_path=held.binding_account_path,
            dry_run=False,
            reservation=held.id,
            requested_count=count,
            overdrawn=False,
        )

    @property
    def overdue(self) -> bool:
        """Whether the lease should be renewed although steps are left."""
        grant = self._grant
        return grant is not None and not grant.closing and grant.renew_at <= self._clock() < grant.ends_at

    def look_ahead(self) -> Request | None:
        """Prepare the request for the next grant, or None if it is too early.

        Its outcome goes to `settle`.
        """
        if self._wish is not None:
            return self._wish.request
        grant, every = self._grant, self.ahead.every
        if grant is None or grant.closing or self._clock() >= grant.ends_at:
            return None
        left, early = grant.steps.left, self._clock() < grant.renew_at
        if early and (self._enough or left > every // 2):
            return None
        planned = self._planned(left if self._enough else left + every, self._last_event, left)
        if not planned.left or (early and planned.left == left):
            return None
        self._wish = self._wished(planned)
        return self._wish.request

    def settle(self, outcome: Response | LedgerError) -> None:
        """Process the outcome of the request for the next grant.

        Raises:
            LedgerError: the run cannot continue, or the response is not one of this API. After a refusal or without a
                response the steps granted before are used first, unless a limit has changed since.
        """
        wish, grant = self._wish, self._grant
        assert wish is not None, "an answer is to a wish"
        if not isinstance(outcome, LedgerError):
            self._adopt(wish, outcome)
            return
        self._drop(wish, outcome)
        if isinstance(outcome, LedgerUnavailableError):
            if grant is not None:
                grant.renew_at = self._clock() + self.ahead.lease_seconds / _RENEWALS
        elif isinstance(outcome, (BudgetExceededError, InvalidRequestError, RequestTooLargeError)):
            self._enough = True
            if grant is not None and isinstance(outcome, BudgetExceededError) and grant.precedes(outcome.limit_change):
                grant.closing = True  # a limit change may have removed its steps: report the used ones first
        elif isinstance(outcome, ReservationClosedError):
            self._expire()
        else:
            raise outcome

    def scheduled(self, count: int) -> Sequence[EventCount]:
        """Return the next `count` steps of the schedule, to be requested directly.

        Raises:
            ValueError: they are too many for one request.
        """
        schedule = self.ahead.schedule
        assert schedule is not None, "asked where there is one"
        assert self.step is not None, "known where there is a schedule"
        if count > MOST_EVENTS:
            raise ValueError(f"At most {MOST_EVENTS} steps of a schedule can be asked for at once, not {count}.")
        repeated: list[EventCount] = []
        for event in map(schedule, range(self.step, self.step + count)):
            if repeated and repeated[-1]["event"] == event:
                repeated[-1]["count"] += 1
            else:
                repeated.append({"event": event, "count": 1})
        return repeated

    def alone(self, event: Event | None, count: int) -> None:
        """Record steps that were requested directly; further steps of the same kind are worth a grant."""
        self._remember(event)
        self.advance(count)

    def drop(self) -> None:
        """Discard the grant of an ended run."""
        self._grant = self._wish = None

    def _remember(self, event: Event | None) -> None:
        """Expect further steps like this one; a copy protects it from changes."""
        expected = self._expected(event)
        if self._last_event != expected:
            self._last_event = None if expected is None else as_sent(expected)

    def _expected(self, event: Event | None) -> Event | None:
        if event is not None:
            return event
        return self._asking.state.event if self.ahead.schedule is None else None

    def _planned(self, count: int, event: Event | None, needed: int) -> Steps:
        """Plan the next steps: those granted but not allocated, then further ones.

        Args:
            count: number of steps.
            event: of each further step; None: by schedule, or the run's own.
            needed: number of steps needed now.

        Returns:
            The steps; fewer if further ones cannot be predicted or do not fit into the plan.

        Raises:
            ValueError: their events are unknown.
        """
        # The ledger charges the old grant's steps as the first of the new plan.
        going_on = self._grant is not None and not self._grant.closing
        steps = self._grant.steps.rest() if self._grant is not None and going_on else Steps()
        schedule = self.ahead.schedule
        if event is None and schedule is not None:
            assert self.step is not None, "known where there is a schedule"
            while steps.left < count and len(steps) < MOST_EVENTS:
                try:
                    fits = steps.add(schedule(self.step + steps.left), 1)
                except Exception:
                    # A schedule may end where the training ends.
                    if steps.left < needed:
                        raise
                    break
                if not fits:
                    break
            return steps
        event = event if event is not None else self._asking.state.event
        if event is None:
            raise ValueError("The run was registered without an event: give the step's `event`.")
        if steps.left < count:
            steps.add(event, count - steps.left)
        return steps

    def _wished(self, planned: Steps) -> PendingGrant:
        body: dict[str, object] = {
            "plan": planned.wire(),
            "lease_seconds": self.ahead.lease_seconds,
            "attempt": self._asking.state.attempt,
        }
        used = 0
        if self._grant is not None:
            used = self._grant.used
            body["preceding"] = {"reservation": self._grant.held.id, "steps_executed": used}
        return PendingGrant(post(f"{self._asking.path}/reservations", body), planned, used, self._clock())

    def _drop(self, wish: PendingGrant, error: LedgerError) -> None:
        """Drop the request, unless it may have had an effect: then it must be repeated."""
        if isinstance(error, _NO) or not wish.request.in_doubt:
            self._wish = None

    def _adopt(self, wish: PendingGrant, reply: Response) -> None:
        """Adopt a new grant; steps allocated meanwhile are the first of its plan."""
        held, before = reply.read(HeldPlan), self._grant
        if before is None or before.held.id != held.id:
            steps, meanwhile = wish.steps.rest(), 0 if before is None else before.used - wish.used
            as_asked = [planned.count for planned in held.plan] == [planned["count"] for planned in steps.wire()]
            if held.steps_planned != steps.left or (meanwhile and not steps.take(meanwhile, None)):
                raise UnexpectedResponseError(
                    f"The ledger's answer grants other steps than {self._asking.state.id} asked for: release nothing.",
                    status=reply.status,
                )
            if meanwhile and not as_asked:
                # Which of its steps these are, the ledger would not know: all of them are charged.
                steps.take(steps.left, None)
            lease = self.ahead.lease_seconds
            renew_at, ends_at = wish.asked_at + lease / 2, wish.asked_at + lease
            unsure = not as_asked or (before is not None and before.closing and meanwhile > 0)
            self._grant = Grant(held, steps, renew_at, ends_at, closing=unsure)
            self._wish = None
            self._asking.state = replace(
                self._asking.state,
                next_step=held.next_step,
                epsilon=held.epsilon_planned,
                delta=held.delta,
                epsilon_limit=held.epsilon_limit,
                steps_remaining=held.steps_remaining,
                binding_account=held.binding_account,
                binding_account_path=held.binding_account_path,
                reservation=held.id,
            )
        self._wish = None

    def _expire(self) -> None:
        if self._grant is not None:
            self._grant.ends_at = self._clock()
