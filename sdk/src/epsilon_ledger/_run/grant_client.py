"""Request flows for grants, each of which continues the previous one, without I/O."""

from dataclasses import replace

from epsilon_ledger._run.grant_allocator import GrantAllocator
from epsilon_ledger._wire.endpoints import get_run, path
from epsilon_ledger._wire.errors import LedgerError, LedgerUnavailableError
from epsilon_ledger._wire.events import Event
from epsilon_ledger._wire.models import Admission, RunState
from epsilon_ledger._wire.problem_errors import InvalidRequestError, RequestTooLargeError, ReservationClosedError
from epsilon_ledger._wire.problems import BudgetExceededError
from epsilon_ledger._wire.requests import RequestFlow, post
from epsilon_ledger._wire.responses import Response

_TRIES_TO_FIT = 3


class GrantClient(GrantAllocator):
    """Request flows for a run's grants."""

    def renewed(self) -> RequestFlow[None]:
        """Request the next grant if this one's lease is about to expire.

        Raises:
            LedgerError: the run cannot continue.
        """
        request = self.look_ahead() if self.overdue else None
        if request is None:
            return
        outcome: Response | LedgerError
        try:
            outcome = yield request
        except LedgerError as error:
            outcome = error
        self.settle(outcome)

    def new_grant(self, count: int, event: Event | None) -> RequestFlow[Admission | None]:
        """Request a grant and allocate its first steps.

        Arguments as in `granted`.

        Returns:
            The admission; None if the steps have to be requested directly.

        Raises:
            BudgetExceededError: a limit was lowered since the previous grant, and the steps do not fit.
            LedgerError: there is no grant for another reason.
        """
        if not self._worth_it(event):
            return None
        size = max(count, self.ahead.every)
        for _ in range(_TRIES_TO_FIT):
            planned = self._planned(size, event, count)
            if planned.left < count:
                return None
            self._wish = self._wished(planned)
            try:
                refusal = yield from self.resolved()
            except (InvalidRequestError, RequestTooLargeError):
                # Perhaps a later step does not fit: request the needed ones directly.
                return None
            if refusal is not None and refusal.max_count_that_fits < count:
                if self._grant is not None and self._grant.precedes(refusal.limit_change):
                    yield from self.closed()  # this may overdraw the run: the used steps may exceed the new limit
                    raise refusal
                return None
            if refusal is not None:
                size = refusal.max_count_that_fits
            elif self._grant is not None:
                self._remember(event)
                self._enough = size < self.ahead.every
                return self.granted(count, event)
        return None

    def resolved(self) -> RequestFlow[BudgetExceededError | None]:
        """Repeat the pending grant request until it is granted or refused; return the refusal.

        Raises:
            LedgerError: the outcome is unknown, or the run cannot continue.
        """
        wish = self._wish
        if wish is None:
            return None
        try:
            reply = yield wish.request
        except LedgerError as error:
            self._drop(wish, error)
            if isinstance(error, BudgetExceededError):
                return error
            if isinstance(error, ReservationClosedError):
                yield from self._lost()
                return None
            if isinstance(error, LedgerUnavailableError):
                error.add_note("Release nothing. Call authorize again: it repeats the request under the same key.")
            raise
        self._adopt(wish, reply)
        return None

    def closed(self) -> RequestFlow[None]:
        """Return the unused steps of a grant and report the used ones.

        Raises:
            LedgerError: the ledger has not confirmed it; the grant allocates nothing more.
        """
        try:
            yield from self.resolved()
        except LedgerError:
            if self._wish is not None:
                raise
            # The ledger refused: nothing is left to return.
        grant = self._grant
        if grant is None:
            return
        grant.closing = True
        try:
            yield post(f"{path('reservations', grant.held.id)}/commit", {"steps_executed": grant.used})
        except ReservationClosedError:
            yield from self._lost()
            return
        self._asking.state = replace(self._asking.state, next_step=grant.next_step, reservation=None)
        self._grant = None

    def _worth_it(self, event: Event | None) -> bool:
        """Return whether the next steps are predictable: by schedule, or like the last ones."""
        if self.ahead.every == 1:
            return False
        if self.ahead.schedule is not None:
            return event is None
        expected = self._expected(event)
        return expected is not None and (self._last_event is None or self._last_event == expected)

    def _lost(self) -> RequestFlow[None]:
        """Handle a grant that ended otherwise: all of it is charged, and its steps have no numbers.

        Raises:
            AttemptSupersededError: another process has taken over the run.
        """
        self._expire()
        self._asking.update_state((yield get_run(self._asking.state.id).request).read(RunState))
        self._grant = None
        self._asking.require_attempt()
