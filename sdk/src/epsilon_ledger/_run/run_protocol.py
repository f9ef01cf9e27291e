"""What a run asks of the ledger and does with the answers. No network here.

The use cases are generators that yield requests and are sent replies; `Run` and `AsyncRun` carry them.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

from epsilon_ledger._run.grant_client import GrantClient
from epsilon_ledger._run.grants import PrefetchConfig
from epsilon_ledger._run.step_requests import StepRequests, wire_events
from epsilon_ledger._wire.coercion import whole
from epsilon_ledger._wire.endpoints import get_run, path
from epsilon_ledger._wire.events import Event, EventCount
from epsilon_ledger._wire.models import Admission, Reservation, RunState
from epsilon_ledger._wire.requests import RequestFlow, post


class RunDialogue:
    """One run, seen from its trainer.

    Args:
        state: the run as the ledger described it.
        ahead: how far to ask ahead.
        clock: seconds of a monotonic clock.
        step: how many steps of the training were taken before, in all attempts together; None: unknown.
        with_plan: whether the run's active reservation, if any, is this trainer's own.

    Raises:
        ValueError: the run has a plan of its own and is to ask ahead as well.
    """

    def __init__(
        self, state: RunState, ahead: PrefetchConfig, clock: Callable[[], float], *, step: int | None, with_plan: bool
    ) -> None:
        self.asking = StepRequests(state, state.reservation if with_plan else None)
        self.granting = GrantClient(self.asking, ahead, clock, step)
        if ahead.every > 1 and self.asking.plan is not None:
            raise ValueError("The run has a plan that is set aside: leave authorize_every at 1.")

    @property
    def state(self) -> RunState:
        """The run as the ledger last described it."""
        return self.asking.state

    def authorize(
        self, count: int, event: Event | None, events: Sequence[EventCount] | None, *, truncate: bool
    ) -> RequestFlow[Admission]:
        """Ask for the next steps, out of a grant or on their own; `Run.authorize` says more."""
        asking, granting = self.asking, self.granting
        single = events is None and not truncate
        if not asking.in_doubt:
            if single:
                yield from granting.renewed()
                admission = granting.granted(count, event)
                if admission is not None:
                    return admission
            yield from granting.resolved()
            if single:
                admission = granting.granted(count, event) or (yield from granting.new_grant(count, event))
                if admission is not None:
                    return admission
            yield from granting.closed()
        if events is None and event is None and granting.ahead.schedule is not None:
            admission = yield from asking.ask(1, None, granting.scheduled(count), truncate=truncate)
        else:
            admission = yield from asking.ask(count, event, events, truncate=truncate)
        granting.alone(event if events is None else None, admission.count)
        return admission

    def settle(self) -> RequestFlow[Admission | None]:
        """Find out about steps that were asked for and not answered, so that others can be asked for.

        The request is sent again under its key. Steps that it charges stay charged. Unless they are a report, they
        are no steps of the training: release nothing for them.

        Returns:
            What the ledger charged; None if nothing was pending, or if the steps were refused.

        Raises:
            LedgerUnavailableError: there is still no answer; `settle` may be called again.
            LedgerError: anything else.
        """
        settled = yield from self.asking.settle()
        if settled is None:
            return None
        charged, report = settled
        if report:
            self.granting.advance(charged.count)
        return charged

    def preview(
        self, count: int = 1, *, event: Event | None = None, events: Sequence[EventCount] | None = None
    ) -> RequestFlow[Admission]:
        """Ask what `authorize` would answer now, without charging anything. What is granted ahead is given back first.

        Args:
            count: as in `authorize`.
            event: as in `authorize`.
            events: as in `authorize`.

        Returns:
            What would be admitted; `dry_run` is True, and nothing may be released.

        Raises:
            BudgetExceededError: the steps would not fit.
            StepsAlreadyTakenError: as in `authorize`.
            RequestInDoubtError: a step is unanswered, so it is unknown which one comes next.
            LedgerError: anything else.
        """
        self.asking.require_certainty()
        yield from self.granting.closed()
        return (yield from self.asking.preview(count, event, events))

    def report(
        self, count: int = 1, *, event: Event | None = None, events: Sequence[EventCount] | None = None
    ) -> RequestFlow[Admission]:
        """Tell of steps that were released without having been asked for; they are charged whatever the limits say.

        Args:
            count: as in `authorize`.
            event: as in `authorize`.
            events: as in `authorize`.

        Returns:
            What was recorded; `overdrawn` if it went over a limit, and then the run takes no more steps.

        Raises:
            RequestInDoubtError: another step is unanswered, so it is unknown which one comes next.
            StepsAlreadyTakenError: another process has told of these very steps; `refresh` says which one comes next.
            LedgerUnavailableError: it may be recorded, or not; the same call records it once.
            LedgerError: it is not recorded.
        """
        if not self.asking.in_doubt:
            yield from self.granting.closed()
        recorded = yield from self.asking.report(count, event, events)
        self.granting.advance(recorded.count)
        return recorded

    def reserve(self, plan: Sequence[EventCount], *, lease_seconds: int = 3600) -> RequestFlow[Reservation]:
        """Set the whole cost of a plan aside, at once or not at all; the run's steps are then taken out of it.

        Args:
            plan: events with their counts, at most 1,000.
            lease_seconds: how long the trainer may be silent, in 1 ... 604,800; `renew` begins it anew.

        Returns:
            The reservation.

        Raises:
            BudgetExceededError: the plan does not fit; nothing is held.
            ReservationStateConflictError: the run has an active reservation.
            ValueError: the run asks ahead, which makes reservations of its own.
            LedgerError: anything else.
        """
        if self.granting.ahead.every > 1:
            raise ValueError("A run that asks ahead makes its own reservations; leave authorize_every at 1.")
        body = {"plan": wire_events(plan), "lease_seconds": lease_seconds, "attempt": self.state.attempt}
        made = (yield post(f"{self.asking.path}/reservations", body)).read(Reservation)
        self.asking.plan = made.id
        self.asking.state = replace(self.state, reservation=made.id)
        return made

    def commit(self, steps_executed: int) -> RequestFlow[Reservation]:
        """End the run's plan: what was executed is spent, the rest is given back.

        Args:
            steps_executed: of the plan, those that were authorised one by one among them.

        Returns:
            The reservation as it ended.

        Raises:
            ReservationClosedError: it ended in another way before.
            LedgerError: anything else.
        """
        return (yield from self._end_plan("commit", {"steps_executed": whole("steps_executed", steps_executed, 0)}))

    def void(self) -> RequestFlow[Reservation]:
        """Give back a plan of which nothing was used.

        Returns:
            The reservation as it ended.

        Raises:
            ReservationClosedError: it ended in another way before.
            ReservationStateConflictError: steps were taken out of it.
            LedgerError: anything else.
        """
        return (yield from self._end_plan("void", {}))

    def renew(self) -> RequestFlow[Reservation]:
        """Begin the lease of the run's plan anew.

        Returns:
            The reservation as it is.

        Raises:
            ReservationClosedError: it has ended; if its lease ran out, what was left is forfeited.
            LedgerError: anything else.
        """
        return (yield post(f"{path('reservations', self._own_plan())}/renew", {})).read(Reservation)

    def complete(self, steps_executed: int | None = None) -> RequestFlow[None]:
        """End the run: nothing more will be released under it. Steps that were granted ahead and not used are returned.

        Args:
            steps_executed: of a plan that was set aside with `reserve`, those that were authorised among them.

        Raises:
            RunStateConflictError: the run was aborted.
            AttemptSupersededError: another process has taken the run over.
            ReservationStateConflictError: the run has a plan, and `steps_executed` is missing.
            LedgerError: anything else.
        """
        # In a request of its own: the end of a run does not say which grant it is the end of, and may come late.
        yield from self.granting.closed()
        yield from self._tell("complete", {"steps_executed": steps_executed, "attempt": self.state.attempt})

    def pause(self) -> RequestFlow[None]:
        """Stop the run from taking steps until it is resumed. Steps that were granted ahead and not used are returned.

        Raises:
            RunStateConflictError: the run has ended.
            LedgerError: anything else.
        """
        yield from self.granting.closed()
        yield from self._tell("pause", {})

    def resume(self) -> RequestFlow[None]:
        """Let a paused run take steps again.

        Raises:
            RunStateConflictError: the run has ended.
            LedgerError: anything else.
        """
        yield from self._tell("resume", {})

    def abort(self) -> RequestFlow[None]:
        """End the run as failed; what it spent stays spent, and what it holds is forfeited.

        Raises:
            RunStateConflictError: the run was completed.
            AttemptSupersededError: another process has taken the run over.
            LedgerError: anything else.
        """
        yield from self._tell("abort", {"attempt": self.state.attempt})
        self.granting.drop()

    def refresh(self) -> RequestFlow[RunState]:
        """Read the run anew.

        Returns:
            The run as it is: steps that were granted ahead are in its epsilon when their grant has ended.

        Raises:
            LedgerError: no answer came.
        """
        told = (yield get_run(self.state.id).request).read(RunState)
        if self.granting.grant is None and not self.asking.in_doubt:
            self.asking.update_state(told)
        return told

    def _own_plan(self) -> str:
        if self.asking.plan is None:
            raise ValueError("This run has set no plan aside: call reserve first.")
        return self.asking.plan

    def _end_plan(self, action: str, body: Mapping[str, object]) -> RequestFlow[Reservation]:
        ended = (yield post(f"{path('reservations', self._own_plan())}/{action}", body)).read(Reservation)
        self.asking.update_state((yield get_run(self.state.id).request).read(RunState))
        return ended

    def _tell(self, action: str, body: Mapping[str, object]) -> RequestFlow[None]:
        self.asking.update_state((yield post(f"{self.asking.path}/{action}", body)).read(RunState))
