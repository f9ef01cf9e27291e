"""Request flows of a run, without I/O.

The flows are generators that yield requests and receive responses; `Run` and `AsyncRun` execute them.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Final, TypeVar

from epsilon_ledger._run.grants import PrefetchConfig
from epsilon_ledger._run.reservation_protocol import ReservationProtocol
from epsilon_ledger._wire.errors import UnexpectedResponseError
from epsilon_ledger._wire.events import Event, EventCount
from epsilon_ledger._wire.governance_models import Proposal
from epsilon_ledger._wire.members import wire_limit
from epsilon_ledger._wire.models import Limit, RunState, StepAuthorization
from epsilon_ledger._wire.problem_errors import ReservationRequiredError, ReservationsWaitingError
from epsilon_ledger._wire.problems import BudgetExceededError
from epsilon_ledger._wire.requests import RequestFlow, post

T = TypeVar("T")

_REACHED: Final = {"complete": "completed", "pause": "paused", "resume": "active", "abort": "aborted"}
"""Status of a run after each action."""


class RunProtocol(ReservationProtocol):
    """A run's protocol with the ledger.

    Args:
        state: latest state from the ledger.
        prefetch: prefetching of grants.
        clock: monotonic, in seconds.
        step: training steps taken before, in all attempts; None if unknown.
        with_reservation: whether the run's active reservation belongs to this trainer.
        begins_attempt: whether the run's attempt was begun for this trainer.

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
        begins_attempt: bool,
    ) -> None:
        super().__init__(state, prefetch, clock, step=step, with_reservation=with_reservation)
        self.begins_attempt = begins_attempt
        self.resumed_charges: set[str] = set()

    def authorize(
        self, count: int, event: Event | None, events: Sequence[EventCount] | None, *, truncate: bool
    ) -> RequestFlow[StepAuthorization]:
        """Authorize steps from a grant or directly; see `Run.authorize`."""
        return self._keep_refusal(self._authorize(count, event, events, truncate=truncate))

    def _authorize(
        self, count: int, event: Event | None, events: Sequence[EventCount] | None, *, truncate: bool
    ) -> RequestFlow[StepAuthorization]:
        step_requests, grants = self.step_requests, self.grants
        single = events is None and not truncate
        others_first: ReservationsWaitingError | None = None
        if grants.are_used and not step_requests.in_doubt:
            if single:
                yield from grants.renew_lease()
                authorization = grants.allocate(count, event)
                if authorization is not None:
                    return authorization
            try:
                yield from grants.resolve_pending()
                if single:
                    authorization = grants.allocate(count, event) or (yield from grants.request_grant(count, event))
                    if authorization is not None:
                        return authorization
            except ReservationsWaitingError as error:
                others_first = error  # a budget that is not for reservations only admits the steps one by one
            yield from grants.close_grant()
        try:
            if events is None and event is None and grants.prefetch.schedule is not None:
                scheduled = grants.scheduled_events(count)
                authorization = yield from step_requests.authorize(1, None, scheduled, truncate=truncate)
            else:
                authorization = yield from step_requests.authorize(count, event, events, truncate=truncate)
        except ReservationRequiredError as error:
            raise others_first or error from None
        grants.record_direct_steps(event if events is None else None, authorization.count)
        return authorization

    def resolve_in_doubt(self) -> RequestFlow[StepAuthorization | None]:
        """Settle an unanswered request for steps, so that other steps can be requested.

        The request is repeated under its key. Steps that it charges stay charged. Unless they are a report, they are
        not part of the training: release nothing for them.

        Returns:
            The charge; None if nothing was pending, or the steps were refused.

        Raises:
            LedgerUnavailableError: there is still no response; `resolve_in_doubt` may be repeated.
            LedgerError: any other failure.
        """
        try:
            settled = yield from self._keep_refusal(self.step_requests.resolve_in_doubt())
        except BudgetExceededError:
            return None
        if settled is None:
            return None
        charged, report = settled
        if report:
            self.grants.advance(charged.count)
        return charged

    def preview(
        self, count: int = 1, *, event: Event | None = None, events: Sequence[EventCount] | None = None
    ) -> RequestFlow[StepAuthorization]:
        """Preview `authorize` without charging; unused granted steps are returned first.

        Args:
            count: as in `authorize`.
            event: as in `authorize`.
            events: as in `authorize`.

        Returns:
            The authorization with `dry_run` True: release nothing.

        Raises:
            BudgetExceededError: the steps would not fit.
            StepsAlreadyTakenError: as in `authorize`.
            RequestInDoubtError: a step is unanswered, so the next one is unknown.
            LedgerError: any other failure.
        """
        self.step_requests.require_certainty()
        yield from self.grants.close_grant()
        return (yield from self.step_requests.preview(count, event, events))

    def report(
        self, count: int = 1, *, event: Event | None = None, events: Sequence[EventCount] | None = None
    ) -> RequestFlow[StepAuthorization]:
        """Report steps released without authorization; they are charged regardless of limits.

        Args:
            count: as in `authorize`.
            event: as in `authorize`.
            events: as in `authorize`.

        Returns:
            The record; if it exceeds a limit, it is `overdrawn` and the run takes no more steps.

        Raises:
            RequestInDoubtError: another step is unanswered, so the next one is unknown.
            StepsAlreadyTakenError: another process has reported these steps; `refresh` returns the next one.
            LedgerUnavailableError: it may have been recorded; the same call records it once.
            LedgerError: it is not recorded.
        """
        if not self.step_requests.in_doubt:
            yield from self.grants.close_grant()
        recorded = yield from self.step_requests.report(count, event, events)
        self.grants.advance(recorded.count)
        return recorded

    def complete(self, steps_executed: int | None = None, *, reason: str | None = None) -> RequestFlow[None]:
        """Complete the run; unused granted steps are returned.

        Args:
            steps_executed: of a reservation from `reserve`, including individually authorized ones.
            reason: "finished" or "budget_exhausted"; by default the latter, if the steps requested last were refused.

        Raises:
            RunStateConflictError: the run was aborted.
            AttemptSupersededError: another process has taken over the run.
            ReservationStateConflictError: the run has a reservation, and `steps_executed` is missing.
            LedgerError: any other failure.
        """
        # A separate request, because the end of a run does not name the grant and may arrive late.
        refused = self.refusal is not None
        yield from self.grants.close_grant()
        reason = "budget_exhausted" if refused and reason is None else reason
        body = {"steps_executed": steps_executed, "attempt": self.state.attempt, "reason": reason}
        yield from self._transition("complete", body)

    def pause(self) -> RequestFlow[None]:
        """Pause the run; unused granted steps are returned.

        Raises:
            RunStateConflictError: the run has ended.
            LedgerError: any other failure.
        """
        yield from self.grants.close_grant()
        yield from self._transition("pause", {})

    def resume(self) -> RequestFlow[None]:
        """Resume a paused run.

        Raises:
            RunStateConflictError: the run has ended.
            LedgerError: any other failure.
        """
        yield from self._transition("resume", {})

    def abort(self, *, reason: str | None = None) -> RequestFlow[None]:
        """Abort the run: its spending is final, and its reserved steps are forfeited.

        Args:
            reason: "aborted" (default), or "lost", of a run whose trainer is gone.

        Raises:
            RunStateConflictError: the run was completed.
            AttemptSupersededError: another process has taken over the run.
            LedgerError: any other failure.
        """
        yield from self._transition("abort", {"attempt": self.state.attempt, "reason": reason})
        self.grants.drop()

    def request_limit(
        self, reason: str, limit: Limit | None = None, *, account: str | None = None
    ) -> RequestFlow[tuple[Proposal, ...]]:
        """Request higher limits of accounts that the run charges; a person with the right decides each.

        A refusal's `higher_limit` names the limits with which the training would finish as planned, often of several
        accounts: by default all of them are requested. After an error, the same call requests the rest.

        Args:
            reason: for the person who decides.
            limit: the wanted one; None: those that the latest refusal names.
            account: its id or path; None: `limit` is of the account that refused last, and the other accounts that the
                refusal names are asked for, too.

        Returns:
            The open proposals.

        Raises:
            ValueError: there is no `limit`, and nothing that was refused names one.
            LedgerError: they were not all made.
        """
        proposals = []
        for wanted, higher in self._wanted_limits(limit, account):
            body = {"account": wanted, "limit": wire_limit(higher), "reason": reason}
            proposals.append((yield post(f"{self.step_requests.path}/limit-requests", body)).read(Proposal))
        return tuple(proposals)

    def _wanted_limits(self, limit: Limit | None, account: str | None) -> list[tuple[str | None, Limit]]:
        """List the limits to request, by account; None: the account that refused last."""
        if limit is not None and account is not None:
            return [(account, limit)]
        refusal = self.refusal
        offered = None if refusal is None else refusal.higher_limit
        wanted: dict[str | None, Limit] = {
            each.account: each.limit
            for each in (() if offered is None else offered.limits or ())
            if account in {None, each.account, each.account_path}
        }
        if limit is not None:
            wanted[None if refusal is None else refusal.binding_account] = limit
        if not wanted:
            raise ValueError("The request refused last names no limit that would be enough: give `limit`.")
        return list(wanted.items())

    def _transition(self, action: str, body: Mapping[str, object]) -> RequestFlow[None]:
        response = yield post(f"{self.step_requests.path}/{action}", body)
        state = response.read(RunState)
        if state.status != _REACHED[action]:
            raise UnexpectedResponseError(
                f"The ledger was asked to {action} {state.id}, and answers that it is {state.status}: look at the run.",
                status=response.status,
            )
        self.step_requests.update_state(state)
