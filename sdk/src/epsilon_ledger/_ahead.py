"""Grants: steps that are set aside ahead of time, each grant following on the one before. No network here."""

from collections.abc import Callable
from dataclasses import replace

from epsilon_ledger._asking import Asking
from epsilon_ledger._calls import get_run, path
from epsilon_ledger._errors import LedgerError, LedgerUnavailableError, UnexpectedResponseError
from epsilon_ledger._events import Event
from epsilon_ledger._grants import MOST_EVENTS, Ahead, Grant, Steps, Wish
from epsilon_ledger._kinds import ReservationTerminalError
from epsilon_ledger._problems import BudgetExceededError
from epsilon_ledger._replies import Reply
from epsilon_ledger._requests import Request, Talk, post
from epsilon_ledger._values import Admission, HeldPlan, RunState

_TRIES_TO_FIT = 3


class Granting:
    """The grants of a run: at most one that is handed out, and one that was asked for.

    A grant is a reservation that nobody but this object takes steps out of. What was handed out is told with the next
    grant, or at the end; if this process dies, the whole grant is forfeited, which charges it.

    Args:
        asking: the run's other half, which knows where it stands.
        ahead: how far to ask ahead.
        clock: seconds of a monotonic clock.
        taken: how many steps of the training were taken before, in all attempts together.
    """

    def __init__(self, asking: Asking, ahead: Ahead, clock: Callable[[], float], taken: int) -> None:
        self.ahead = ahead
        self.taken = taken
        self._asking = asking
        self._clock = clock
        self._grant: Grant | None = None
        self._wish: Wish | None = None
        self._last_event: Event | None = None
        self._enough = False

    @property
    def next_step(self) -> int:
        """The number of the first step that was not admitted or handed out."""
        return self._asking.state.next_step if self._grant is None else self._grant.next_step

    @property
    def grant(self) -> Grant | None:
        """What is handed out now."""
        return self._grant

    # What needs no network.

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
        if not grant.steps.take(count, event):
            return None
        grant.used += count
        self.taken += count
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

    def look_ahead(self) -> Request | None:
        """Prepare the next grant while there are steps of this one left.

        Returns:
            What is to be sent, and its outcome given to `settle`; None if it is too early.
        """
        if self._wish is not None:
            return self._wish.request
        grant, every = self._grant, self.ahead.every
        if grant is None or grant.closing or self._enough:
            return None
        if grant.steps.left > every // 2 and self._clock() < grant.renew_at:
            return None
        self._wish = self._wished(self.planned(grant.steps.left + every, self._last_event))
        return self._wish.request

    def settle(self, outcome: Reply | LedgerError) -> None:
        """Take in what came of the request for the next grant.

        Args:
            outcome: its answer.

        Raises:
            LedgerError: the run can go on no more, or the answer is not one of this API. After a refusal, or if no
                answer came, it goes on with the steps that were granted before, and asks again when they are used.
        """
        wish = self._wish
        assert wish is not None, "an answer is to a wish"
        if isinstance(outcome, LedgerUnavailableError):
            if not wish.request.in_doubt:
                self._wish = None
            return
        self._wish = None
        if isinstance(outcome, BudgetExceededError):
            self._enough = True
        elif isinstance(outcome, ReservationTerminalError):
            self._expire()
        elif isinstance(outcome, LedgerError):
            raise outcome
        else:
            self._adopt(wish, outcome)

    def planned(self, count: int, event: Event | None) -> Steps:
        """The next steps of the training.

        Args:
            count: how many.
            event: what each does; None: by schedule, or the run's own.

        Returns:
            The steps; by a schedule at most 1,000.

        Raises:
            ValueError: nobody has said what they do.
        """
        schedule = self.ahead.schedule
        if event is None and schedule is not None:
            return Steps([(schedule(self.taken + further), 1) for further in range(min(count, MOST_EVENTS))])
        event = event if event is not None else self._asking.state.event
        if event is None:
            raise ValueError("The run was registered without an event: say in `event` what the step does.")
        return Steps([(event, count)])

    # What takes the network.

    def new_grant(self, count: int, event: Event | None) -> Talk[Admission | None]:
        """Ask for a grant and hand its first steps out.

        Args:
            count: as in `granted`.
            event: as in `granted`.

        Returns:
            The permission; None if these steps cannot be had so, and are to be asked for on their own.

        Raises:
            LedgerError: no grant, and no answer that would explain it.
        """
        if not self._worth_it(event):
            return None
        size = max(count, self.ahead.every)
        for _ in range(_TRIES_TO_FIT):
            planned = self.planned(size, event)
            if planned.left < count:
                return None
            self._wish = self._wished(planned)
            refusal = yield from self.resolved()
            if refusal is not None and refusal.max_count_that_fits < count:
                return None
            if refusal is not None:
                size = refusal.max_count_that_fits
                continue
            self._last_event = self._expected(event)
            admission = self.granted(count, event)
            if admission is not None:
                self._enough = size < self.ahead.every
                return admission
        return None

    def resolved(self) -> Talk[BudgetExceededError | None]:
        """Ask for the wished grant, if there is one, until it is there or refused.

        Returns:
            The refusal.

        Raises:
            LedgerError: neither is known, or the run can go on no more.
        """
        wish = self._wish
        if wish is None:
            return None
        try:
            reply = yield wish.request
        except LedgerUnavailableError as error:
            if not wish.request.in_doubt:
                self._wish = None
            error.add_note("Release nothing. Call authorize again: it repeats the request under the same key.")
            raise
        except BudgetExceededError as refusal:
            self._wish = None
            return refusal
        except ReservationTerminalError:
            self._wish = None
            yield from self._lost()
            return None
        except LedgerError:
            self._wish = None
            raise
        self._wish = None
        self._adopt(wish, reply)
        return None

    def closed(self) -> Talk[None]:
        """Give back what is left of a grant, and tell what was handed out of it.

        Raises:
            LedgerError: the ledger does not know it yet; the grant hands out nothing more.
        """
        yield from self.resolved()
        grant = self._grant
        if grant is None:
            return
        grant.closing = True
        try:
            yield post(f"{path('reservations', grant.held.id)}/commit", {"steps_executed": grant.used})
        except ReservationTerminalError:
            yield from self._lost()
            return
        self._grant = None
        self._asking.state = replace(self._asking.state, next_step=grant.next_step, reservation=None)

    def alone(self, event: Event | None, count: int) -> None:
        """Note steps that were asked for on their own; another one of the same kind is worth a grant."""
        self._last_event = self._expected(event)
        self.taken += count

    def drop(self) -> None:
        """Forget the grant: the run has ended."""
        self._grant = self._wish = None

    def _expected(self, event: Event | None) -> Event | None:
        if event is not None:
            return event
        return self._asking.state.event if self.ahead.schedule is None else None

    def _worth_it(self, event: Event | None) -> bool:
        """Whether the next steps can be foretold: by the schedule, or because they are as the ones before."""
        if self.ahead.every == 1:
            return False
        if self.ahead.schedule is not None:
            return event is None
        expected = self._expected(event)
        return expected is not None and (self._last_event is None or self._last_event == expected)

    def _wished(self, planned: Steps) -> Wish:
        body: dict[str, object] = {
            "plan": planned.wire(),
            "lease_seconds": self.ahead.lease_seconds,
            "attempt": self._asking.state.attempt,
        }
        used = 0
        if self._grant is not None:
            used = self._grant.used
            body["follows"] = {"reservation": self._grant.held.id, "steps_executed": used}
        return Wish(post(f"{self._asking.path}/reservations", body), planned, used, self._clock())

    def _adopt(self, wish: Wish, reply: Reply) -> None:
        """Go on with a new grant; steps that were handed out meanwhile are the first ones of its plan."""
        held = reply.read(HeldPlan)
        meanwhile = 0 if self._grant is None else self._grant.used - wish.used
        if held.steps_planned != wish.steps.left or (meanwhile and not wish.steps.take(meanwhile, None)):
            raise UnexpectedResponseError(
                f"The ledger's answer grants other steps than {self._asking.state.id} asked for: release nothing.",
                status=reply.status,
            )
        lease = self.ahead.lease_seconds
        self._grant = Grant(held, wish.steps, meanwhile, wish.asked_at + lease / 2, wish.asked_at + lease)
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

    def _expire(self) -> None:
        if self._grant is not None:
            self._grant.ends_at = self._clock()

    def _lost(self) -> Talk[None]:
        """The grant's lease ran out: all of it is charged, and its steps have no numbers in the ledger."""
        self._asking.state = (yield get_run(self._asking.state.id).request).read(RunState)
        self._grant = None
