"""What was granted is handed out, and what is to be granted next is written down. No network here."""

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

# The ledger says so only after it has looked for what it answered to the same key before: no try had an effect.
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

# Where no answer comes, a lease is renewed as often as this before it runs out.
_RENEWALS: Final = 10


class GrantAllocator:
    """The grants of a run: at most one that is handed out, and one that was asked for.

    A grant is a reservation that nobody but this object takes steps out of. What was handed out is told with the next
    grant, or at the end; if this process dies, the whole grant is forfeited, which charges it.

    Args:
        asking: the run's other half, which knows where it stands.
        ahead: how far to ask ahead.
        clock: seconds of a monotonic clock.
        step: how many steps of the training were taken before, in all attempts together; None: unknown, and then there
            is no schedule.
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
        """The number of the first step that was not admitted or handed out."""
        return self._asking.state.next_step if self._grant is None else self._grant.next_step

    def advance(self, count: int) -> None:
        """Count steps of the training that were taken."""
        if self.step is not None:
            self.step += count

    @property
    def grant(self) -> Grant | None:
        """What is handed out now."""
        return self._grant

    def granted(self, count: int, event: Event | None) -> Admission | None:
        """Hand out steps that were granted before.

        Args:
            count: how many, at least 1.
            event: what each does; None: by schedule, or the run's own.

        Returns:
            The permission; None if there is no such grant.
        """
        grant = self._grant
        if grant is None or grant.closing or self._clock() >= grant.ends_at:
            return None
        if event is None and self.ahead.schedule is None:
            event = self._asking.state.event
            if event is None:
                return None
        first_step = grant.next_step
        # If this is interrupted nobody knows which step comes next, and nothing more is handed out.
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
        """Whether the lease should begin anew, though there are steps left."""
        grant = self._grant
        return grant is not None and not grant.closing and grant.renew_at <= self._clock() < grant.ends_at

    def look_ahead(self) -> Request | None:
        """Prepare the next grant while there are steps of this one left.

        Returns:
            What is to be sent, and its outcome given to `settle`; None if it is too early.
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
        """Take in what came of the request for the next grant.

        Args:
            outcome: its answer.

        Raises:
            LedgerError: the run can go on no more, or the answer is not one of this API. After a refusal, or if no
                answer came, it goes on with the steps that were granted before, and asks again when they are used;
                but not if a limit was changed since they were granted.
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
                grant.closing = True  # its steps may have been withdrawn: what was handed out is told first
        elif isinstance(outcome, ReservationClosedError):
            self._expire()
        else:
            raise outcome

    def scheduled(self, count: int) -> Sequence[EventCount]:
        """The next steps of the training by its schedule, to be asked for on their own.

        Args:
            count: how many.

        Returns:
            The steps, each event as often as it repeats.

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
        """Note steps that were asked for on their own; another one of the same kind is worth a grant."""
        self._remember(event)
        self.advance(count)

    def drop(self) -> None:
        """Forget the grant: the run has ended."""
        self._grant = self._wish = None

    def _remember(self, event: Event | None) -> None:
        """Expect the next steps to be as this one: a copy, so that nobody changes it."""
        expected = self._expected(event)
        if self._last_event != expected:
            self._last_event = None if expected is None else as_sent(expected)

    def _expected(self, event: Event | None) -> Event | None:
        if event is not None:
            return event
        return self._asking.state.event if self.ahead.schedule is None else None

    def _planned(self, count: int, event: Event | None, needed: int) -> Steps:
        """The next steps of the training: those that were granted and not handed out, and further ones behind them.

        Args:
            count: how many.
            event: what each further one does; None: by schedule, or the run's own.
            needed: how many of them are wanted now.

        Returns:
            The steps, fewer if further ones cannot be foretold, or have no place in this plan.

        Raises:
            ValueError: nobody has said what they do.
        """
        # The ledger charges those of the old grant as the first ones of the new plan.
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
            raise ValueError("The run was registered without an event: say in `event` what the step does.")
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
        """Wish for it no more, unless it may be there: then the same request finds out."""
        if isinstance(error, _NO) or not wish.request.in_doubt:
            self._wish = None

    def _adopt(self, wish: PendingGrant, reply: Response) -> None:
        """Go on with a new grant; steps that were handed out meanwhile are the first ones of its plan."""
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
