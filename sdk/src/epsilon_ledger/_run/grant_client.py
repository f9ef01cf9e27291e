"""Grants: steps that are set aside ahead of time, each grant following on the one before. No network here."""

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
    """What a run asks the ledger about its grants."""

    def renewed(self) -> RequestFlow[None]:
        """Ask for the next grant if the lease of this one would run out otherwise.

        Raises:
            LedgerError: the run can go on no more.
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
        """Ask for a grant and hand its first steps out.

        Args:
            count: as in `granted`.
            event: as in `granted`.

        Returns:
            The permission; None if these steps cannot be had so, and are to be asked for on their own.

        Raises:
            BudgetExceededError: a limit was lowered since the grant before was made, and these steps do not fit.
            LedgerError: no grant, and no answer that would explain it.
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
                # One of the steps ahead, perhaps: those that are wanted now are asked for on their own.
                return None
            if refusal is not None and refusal.max_count_that_fits < count:
                if self._grant is not None and self._grant.precedes(refusal.limit_change):
                    yield from self.closed()  # that may freeze the run: what was handed out is over the new limit
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
        """Give back what is left of a grant, and tell what was handed out of it.

        Raises:
            LedgerError: the ledger does not know it yet; the grant hands out nothing more.
        """
        try:
            yield from self.resolved()
        except LedgerError:
            if self._wish is not None:
                raise
            # The ledger said no: there is nothing more to give back.
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
        """Whether the next steps can be foretold: by the schedule, or because they are as the ones before."""
        if self.ahead.every == 1:
            return False
        if self.ahead.schedule is not None:
            return event is None
        expected = self._expected(event)
        return expected is not None and (self._last_event is None or self._last_event == expected)

    def _lost(self) -> RequestFlow[None]:
        """The grant has ended otherwise: all of it is charged, and its steps have no numbers in the ledger.

        Raises:
            AttemptSupersededError: another process has taken the run over.
        """
        self._expire()
        self._asking.update_state((yield get_run(self._asking.state.id).request).read(RunState))
        self._grant = None
        self._asking.require_attempt()
