"""Direct requests for steps, their numbers and doubts, without I/O."""

import logging
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Final

from epsilon_ledger._run.charged_state import ChargedState
from epsilon_ledger._wire.coercion import whole
from epsilon_ledger._wire.endpoints.runs import get_run
from epsilon_ledger._wire.errors import (
    LedgerError,
    LedgerUnavailableError,
    RequestInDoubtError,
    StepsAlreadyTakenError,
    UnexpectedResponseError,
)
from epsilon_ledger._wire.events import Event, EventCount
from epsilon_ledger._wire.members import wire_events
from epsilon_ledger._wire.models import RunState, StepAuthorization
from epsilon_ledger._wire.problem_errors import AttemptSupersededError, SequenceConflictError
from epsilon_ledger._wire.problems import BudgetExceededError, Problem
from epsilon_ledger._wire.requests import Request, RequestFlow, path, post
from epsilon_ledger._wire.responses import Response

_LOGGER: Final = logging.getLogger("epsilon_ledger.plans")


@dataclass(frozen=True, slots=True)
class _Pending:
    """An unanswered request for steps.

    Args:
        request: with its key.
        first_step: number of its first step.
        report: whether its steps were released before the request.
        count: number of its steps; None: as many as fit.
    """

    request: Request
    first_step: int
    report: bool
    count: int | None
    expected_steps: int | None = None


class StepRequests:
    """Direct step requests of a run, one at a time.

    Args:
        state: latest state from the ledger.
        reservation: id of the run's active reservation if it belongs to this trainer; steps of other reservations
            belong to another process.

    `expected_steps` is the number of all steps of the training, if the program has learned it after the registration.
    """

    def __init__(self, state: RunState, reservation: str | None) -> None:
        self._state = ChargedState(state)
        self.path = path("runs", state.id)  # under the ledger's address
        self.reservation = reservation
        self.expected_steps: int | None = None
        self._pending: _Pending | None = None
        self._latest_attempt = state.attempt

    @property
    def state(self) -> RunState:
        """The run's latest state."""
        return self._state.current

    @state.setter
    def state(self, state: RunState) -> None:
        self._state.replace(state)

    @property
    def in_doubt(self) -> bool:
        """Whether a step is unanswered."""
        return self._pending is not None

    def require_certainty(self) -> None:
        """Require that no step is unanswered.

        Raises:
            RequestInDoubtError: a step is unanswered.
        """
        if self._pending is not None:
            raise self._in_doubt_error(self._pending.first_step)

    def update_state(self, state: RunState) -> None:
        """Store the ledger's state; this trainer keeps its own attempt."""
        self._latest_attempt = state.attempt
        self.state = replace(state, attempt=self.state.attempt)

    def require_attempt(self) -> None:
        """Require that no later attempt is known.

        Raises:
            AttemptSupersededError: another process has taken over the run.
        """
        own, latest = self.state.attempt, self._latest_attempt
        if own != latest:
            detail = f"Attempt {own} of {self.state.id} was superseded; the current one is {latest}."
            members = {"attempt": own, "current_attempt": latest}
            raise AttemptSupersededError(Problem(412, "attempt_superseded", "Superseded", detail, members))

    def authorize(
        self, count: int, event: Event | None, events: Sequence[EventCount] | None, *, truncate: bool
    ) -> RequestFlow[StepAuthorization]:
        """Request steps directly; see `Run.authorize`.

        Raises:
            LedgerError: as `Run.authorize`.
        """
        if self._pending is None and self._state.reservation not in {None, self.reservation}:
            yield from self._require_no_foreign_reservation()
        unusual: dict[str, object] = {"on_exceed": "truncate"} if truncate else {}
        body = steps_body(self._state, count, event, events) | unusual
        pending = self._next_request(body, None if truncate else _requested_count(count, events))
        authorization = self._parse_authorization((yield from self._send(pending)), pending)
        # In this order: after an interrupt in between, the repeated request gets the same response.
        self.record_charge(authorization)
        self._pending = None
        return authorization

    def _require_no_foreign_reservation(self) -> RequestFlow[None]:
        """Require that no other process's reservation is active any more: the ledger would take the steps from it."""
        self.update_state((yield get_run(self.state.id).request).read(RunState))
        if self.state.reservation is not None:
            raise foreign_reservation_error(self.state.id, self.state.reservation, self.state.next_step)

    def resolve_in_doubt(self) -> RequestFlow[tuple[StepAuthorization, bool] | None]:
        """Repeat the pending request, as `RunProtocol.resolve_in_doubt`.

        Returns:
            The charge and whether it is a report; None if nothing was pending or charged.

        Raises:
            BudgetExceededError: the steps were refused.
            LedgerError: as `RunProtocol.resolve_in_doubt`.
        """
        pending = self._pending
        if pending is None:
            return None
        try:
            response = yield from self._send(pending)
        except SequenceConflictError:
            return None
        parse = self._parse_report if pending.report else self._parse_authorization
        charged = parse(response, pending)
        self.record_charge(charged)
        self._pending = None
        return charged, pending.report

    def _send(self, pending: _Pending) -> RequestFlow[Response]:
        """Send a request for steps; it stays pending until its response is accepted or proves that it had no effect."""
        self._pending = pending
        try:
            return (yield pending.request)
        except LedgerError as error:
            # After a refusal or a conflict, nothing was or will be charged under this key.
            if isinstance(error, (BudgetExceededError, SequenceConflictError)) or not pending.request.in_doubt:
                self._pending = None
            if isinstance(error, LedgerUnavailableError):
                error.add_note(
                    "Release nothing. Make this call again with the same arguments: it asks for the same steps "
                    "under the same key, which are charged once at most."
                )
            raise

    def record_charge(self, authorization: StepAuthorization) -> None:
        """Update the state after a charge, and log its warnings and the plans that it ended."""
        for each in (*(authorization.ended_plans or ()), *(authorization.warnings or ())):
            _LOGGER.warning("%s", each)
        self._state.charge(authorization)

    def _next_request(self, body: dict[str, object], count: int | None, *, report: bool = False) -> _Pending:
        """Prepare a request for the next steps, or return the identical pending one.

        Raises:
            RequestInDoubtError: a different one is pending.
        """
        pending = self._pending
        if pending is None:
            expected = self.expected_steps
            request = post(f"{self.path}/steps", body | {"expected_steps": expected})
            return _Pending(request, self._state.next_step, report, count, expected)
        body |= {"expected_steps": pending.expected_steps}  # it may have become known meanwhile
        if post(f"{self.path}/steps", body | {"first_step": pending.first_step}).body != pending.request.body:
            raise self._in_doubt_error(pending.first_step)
        return pending

    def _in_doubt_error(self, first_step: int) -> RequestInDoubtError:
        return RequestInDoubtError(
            f"Step {first_step} of {self.state.id} was asked for and is still unanswered, so it may have been charged. "
            f"Make that call again with its arguments, or call resolve_in_doubt(), then ask for others.",
            first_step=first_step,
        )

    def _parse_own(self, response: Response) -> StepAuthorization:
        """Parse an authorization, and refuse one of another process."""
        authorization = response.read(StepAuthorization)
        if not response.is_own:
            self._pending = None
            raise _foreign_steps_error(authorization)
        if authorization.reservation is not None and authorization.reservation != self.reservation:
            self._pending = None
            raise foreign_reservation_error(
                authorization.run, authorization.reservation, authorization.first_step, authorization.next_step
            )
        return authorization

    def _parse_authorization(self, response: Response, pending: _Pending) -> StepAuthorization:
        """Parse an authorization, and require that it is ours and matches the request."""
        authorization = self._parse_own(response)
        self._require_asked(authorization, "admitted", pending.first_step, pending.count, response.status)
        return authorization

    def _require_asked(
        self,
        said: StepAuthorization,
        decision: str,
        first_step: int,
        count: int | None,
        status: int,
        *,
        dry_run: bool = False,
    ) -> None:
        """Require that a response decides on the steps that were asked for.

        Raises:
            UnexpectedResponseError: it is about other steps, or decides something else.
        """
        asked = (decision, dry_run, self._state.id, first_step, said.count if count is None else count)
        if (said.decision, said.dry_run, said.run, said.first_step, said.count) == asked and (
            said.next_step == first_step + said.count
        ):
            return
        done = {"admitted": "admit", "reported": "record"}[decision]
        raise UnexpectedResponseError(
            f"The ledger's answer does not {done} step {first_step} of {self.state.id}: release nothing.", status=status
        )

    def preview(
        self, count: int, event: Event | None, events: Sequence[EventCount] | None
    ) -> RequestFlow[StepAuthorization]:
        """Preview steps, as `Run.preview`."""
        body = steps_body(self.state, count, event, events) | {"expected_steps": self.expected_steps}
        first_step = self.state.next_step
        response = yield post(f"{self.path}/steps?dry_run=true", body)
        previewed = self._parse_own(response)
        asked = _requested_count(count, events)
        self._require_asked(previewed, "admitted", first_step, asked, response.status, dry_run=True)
        return previewed

    def report(
        self, count: int, event: Event | None, events: Sequence[EventCount] | None
    ) -> RequestFlow[StepAuthorization]:
        """Report steps, as `Run.report`."""
        body = steps_body(self.state, count, event, events) | {"mode": "report"}
        pending = self._next_request(body, _requested_count(count, events), report=True)
        recorded = self._parse_report((yield from self._send(pending)), pending)
        self.record_charge(recorded)
        self._pending = None
        return recorded

    def _parse_report(self, response: Response, pending: _Pending) -> StepAuthorization:
        """Parse the response to a report, and require that it is ours and matches the request."""
        recorded = response.read(StepAuthorization)
        if not response.is_own:
            self._pending = None
            raise _foreign_steps_error(recorded)
        self._require_asked(recorded, "reported", pending.first_step, pending.count, response.status)
        return recorded


def steps_body(
    state: RunState | ChargedState, count: int, event: Event | None, events: Sequence[EventCount] | None
) -> dict[str, object]:
    """Build the body of a step request; numpy integers are accepted."""
    numbered: dict[str, object] = {"first_step": state.next_step, "attempt": state.attempt}
    if events is None:
        return numbered | {"count": whole("count", count), "event": event}
    if event is not None or count != 1:
        raise ValueError("Give either events, or count and event.")
    return numbered | {"events": wire_events(events)}


def _requested_count(count: int, events: Sequence[EventCount] | None) -> int:
    return count if events is None else sum(item["count"] for item in events)


def _foreign_steps_error(authorization: StepAuthorization) -> StepsAlreadyTakenError:
    return StepsAlreadyTakenError(
        f"Steps {authorization.first_step} to {authorization.next_step - 1} of {authorization.run} were admitted "
        f"before this process asked for them: noise may have been released for them already, and a second release is "
        f"not paid for. If an earlier process of this job has ended, take the run up with resume_run or get_run, "
        f"which go on at a free step; if another one still trains, stop this one.",
        run=authorization.run,
        first_step=authorization.first_step,
        next_step=authorization.next_step,
    )


def foreign_reservation_error(
    run: str, reservation: str, first_step: int, next_step: int | None = None
) -> StepsAlreadyTakenError:
    """Build the error for steps from another process's reservation."""
    return StepsAlreadyTakenError(
        f"Steps of {run} from {first_step} on are set aside as the reservation {reservation}, and may have been handed "
        f"out by the process that made it: release nothing. If that process has ended, take the run up with "
        f"resume_run, which charges what is left of its reservation; if each of its steps was asked for on its own, "
        f"get_run(..., with_reservation=True) goes on with it.",
        run=run,
        first_step=first_step,
        next_step=first_step if next_step is None else next_step,
    )
