"""Request flows for grants, each of which continues the previous one, without I/O."""

from dataclasses import replace

from epsilon_ledger._run.grant_allocator import GrantAllocator
from epsilon_ledger._wire.endpoints.runs import get_run
from epsilon_ledger._wire.errors import LedgerError, LedgerUnavailableError
from epsilon_ledger._wire.events import Event
from epsilon_ledger._wire.models import RunState, StepAuthorization
from epsilon_ledger._wire.problem_errors import InvalidRequestError, RequestTooLargeError, ReservationClosedError
from epsilon_ledger._wire.problems import BudgetExceededError
from epsilon_ledger._wire.requests import RequestFlow, path, post
from epsilon_ledger._wire.responses import Response

_FIT_ATTEMPTS = 3


class GrantClient(GrantAllocator):
    """Request flows for a run's grants."""

    def renew_lease(self) -> RequestFlow[None]:
        """Request the next grant if this one's lease is about to expire.

        Raises:
            LedgerError: the run cannot continue.
        """
        request = self.prefetch_request() if self.renewal_due else None
        if request is None:
            return
        outcome: Response | LedgerError
        try:
            outcome = yield request
        except LedgerError as error:
            outcome = error
        self.handle_outcome(outcome)

    def request_grant(self, count: int, event: Event | None) -> RequestFlow[StepAuthorization | None]:
        """Request a grant and allocate its first steps.

        Arguments as in `granted`.

        Returns:
            The authorization; None if the steps have to be requested directly.

        Raises:
            BudgetExceededError: a limit was lowered since the previous grant, and the steps do not fit.
            LedgerError: there is no grant for another reason.
        """
        if not self._is_predictable(event):
            return None
        size = max(count, self.prefetch.every)
        for _ in range(_FIT_ATTEMPTS):
            planned = self._plan_steps(size, event, count)
            if planned.remaining < count:
                return None
            self._pending_grant = self._prepare_grant(planned)
            try:
                refusal = yield from self.resolve_pending()
            except (InvalidRequestError, RequestTooLargeError):
                # Perhaps a later step does not fit: request the needed ones directly.
                return None
            if refusal is not None and refusal.max_steps_that_fit < count:
                if self._grant is not None and self._grant.precedes(refusal.limit_change):
                    yield from self.close_grant()  # this may overdraw the run: the used steps may exceed the new limit
                    raise refusal
                return None
            if refusal is not None:
                size = refusal.max_steps_that_fit
            elif self._grant is not None:
                self._remember_event(event)
                self._at_limit = size < self.prefetch.every
                return self.allocate(count, event)
        return None

    def resolve_pending(self) -> RequestFlow[BudgetExceededError | None]:
        """Repeat the pending grant request until it is granted or refused; return the refusal.

        Raises:
            LedgerError: the outcome is unknown, or the run cannot continue.
        """
        pending = self._pending_grant
        if pending is None:
            return None
        try:
            response = yield pending.request
        except LedgerError as error:
            self._drop(pending, error)
            if isinstance(error, BudgetExceededError):
                return error
            if isinstance(error, ReservationClosedError):
                yield from self._handle_lost_grant()
                return None
            if isinstance(error, LedgerUnavailableError):
                error.add_note("Release nothing. Call authorize again: it repeats the request under the same key.")
            raise
        self._adopt(pending, response)
        return None

    def close_grant(self) -> RequestFlow[None]:
        """Return the unused steps of a grant and report the used ones.

        Raises:
            LedgerError: the ledger has not confirmed it; the grant allocates nothing more.
        """
        try:
            yield from self.resolve_pending()
        except LedgerError:
            if self._pending_grant is not None:
                raise
            # The ledger refused: nothing is left to return.
        grant = self._grant
        if grant is None:
            return
        grant.closing = True
        try:
            yield post(f"{path('reservations', grant.reservation.id)}/commit", {"steps_executed": grant.used})
        except ReservationClosedError:
            yield from self._handle_lost_grant()
            return
        self._step_requests.state = replace(self._step_requests.state, next_step=grant.next_step, reservation=None)
        self._grant = None

    def _is_predictable(self, event: Event | None) -> bool:
        """Return whether the next steps are predictable: by schedule, or like the last ones."""
        if self.prefetch.schedule is not None:
            return event is None
        expected = self._expected_event(event)
        return expected is not None and (self._last_event is None or self._last_event == expected)

    def _handle_lost_grant(self) -> RequestFlow[None]:
        """Handle a grant that ended otherwise: all of it is charged, and its steps have no numbers.

        Raises:
            AttemptSupersededError: another process has taken over the run.
        """
        self._expire()
        self._step_requests.update_state((yield get_run(self._step_requests.state.id).request).read(RunState))
        self._grant = None
        self._step_requests.require_attempt()
