"""A training run, as its trainer holds it."""

from collections.abc import Sequence
from dataclasses import replace
from operator import index
from types import TracebackType
from typing import Self
from urllib.parse import quote

from epsilon_ledger._errors import (
    LedgerError,
    LedgerUnavailableError,
    RequestInDoubtError,
    StepsAlreadyTakenError,
    UnexpectedResponseError,
)
from epsilon_ledger._events import Event, EventCount
from epsilon_ledger._problems import (
    BudgetExceededError,
    RunStateConflictError,
    SequenceConflictError,
    SequenceGapError,
)
from epsilon_ledger._replies import Reply
from epsilon_ledger._transport import Request, Transport, post
from epsilon_ledger._values import Admission, RunState

_TERMINAL = frozenset({"completed", "aborted"})

# After these the run is in other hands, or may be taken up again: leaving the `with` block must not end it.
_RUN_GOES_ON = (
    LedgerUnavailableError,
    RequestInDoubtError,
    StepsAlreadyTakenError,
    SequenceConflictError,
    SequenceGapError,
    RunStateConflictError,
)


class Run:
    """A run that asks the ledger before each noisy step; made by `LedgerClient.register_run` and `get_run`.

    One run is used by one thread of one process: which step comes next, and which one is unanswered, is
    remembered here. In distributed training one rank asks and tells the others.

    As a context manager it completes the run on a clean exit and after a refusal (a spent budget is a normal
    end), and aborts it after any other exception, except those that say that the run is in other hands or
    that the ledger does not answer: then the run stays as it is.

    Args:
        transport: how to reach the ledger.
        state: the run as the ledger described it.
    """

    def __init__(self, transport: Transport, state: RunState) -> None:
        self._transport = transport
        self._state = state
        self._path = f"v1/runs/{quote(state.id, safe='')}"
        # The step that was sent and not answered, with the number of its first step.
        self._pending: tuple[Request, int] | None = None

    def __repr__(self) -> str:
        """Name the run and say how far it is."""
        return f"<Run {self.id} {self.name!r} {self.status} next_step={self.next_step}>"

    @property
    def state(self) -> RunState:
        """The run as the ledger last described it to this object."""
        return self._state

    @property
    def id(self) -> str:
        """The id to take the run up again with: `client.get_run(id)`."""
        return self._state.id

    @property
    def name(self) -> str:
        """The name it was registered under."""
        return self._state.name

    @property
    def status(self) -> str:
        """`active`, `paused`, `completed` or `aborted`."""
        return self._state.status

    @property
    def next_step(self) -> int:
        """The number of the first step that has not been admitted."""
        return self._state.next_step

    @property
    def epsilon(self) -> float:
        """What the run has spent, at `state.delta`."""
        return self._state.epsilon

    def authorize(
        self, count: int = 1, *, event: Event | None = None, events: Sequence[EventCount] | None = None
    ) -> Admission:
        """Ask for the next steps, before their noise is released; they are charged when this returns.

        After `LedgerUnavailableError` the same call asks for the same steps under the same key, so that they
        are never charged twice.

        Args:
            count: repetitions of `event`, in [1, 1e9].
            event: what each step does; by default the event that the run was registered with.
            events: several events with their counts, at most 1,000, instead of `count` and `event`.

        Returns:
            The permission.

        Raises:
            BudgetExceededError: the steps do not fit; nothing was charged.
            StepsAlreadyTakenError: another process was admitted for these very steps.
            RequestInDoubtError: an earlier call with other arguments is still unanswered.
            LedgerUnavailableError: no answer; whether the steps were charged is unknown.
            LedgerError: anything else: do not release.
        """
        request, first_step = self._next_request(count, event, events)
        self._pending = request, first_step
        try:
            reply = self._transport.send(request)
        except LedgerError as error:
            # A refusal and a conflict settle the matter: under this key nothing was and nothing will be charged.
            if isinstance(error, (BudgetExceededError, SequenceConflictError)) or not request.in_doubt:
                self._pending = None
            if isinstance(error, LedgerUnavailableError):
                error.add_note(
                    "Release nothing. Call authorize again with the same arguments: it asks for the same steps "
                    "under the same key, which are charged once at most."
                )
            raise
        admission = self._checked(reply, first_step)
        self._pending = None
        self._state = replace(
            self._state,
            next_step=admission.next_step,
            epsilon=admission.epsilon,
            delta=admission.delta,
            epsilon_limit=admission.epsilon_limit,
            steps_remaining=admission.steps_remaining,
            binding_account=admission.binding_account,
            binding_account_path=admission.binding_account_path,
        )
        return admission

    def preview(
        self, count: int = 1, *, event: Event | None = None, events: Sequence[EventCount] | None = None
    ) -> Admission:
        """Ask what `authorize` would answer now, without charging anything.

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
        if self._pending is not None:
            raise self._in_doubt(self._pending[1])
        request = post(f"{self._path}/steps?dry_run=true", _steps(count, event, events, self.next_step))
        return self._ours(self._transport.send(request))

    def complete(self) -> None:
        """End the run: nothing more will be released under it.

        Raises:
            RunStateConflictError: the run was aborted.
            LedgerError: anything else.
        """
        self._tell("complete")

    def pause(self) -> None:
        """Stop the run from taking steps until it is resumed.

        Raises:
            RunStateConflictError: the run has ended.
            LedgerError: anything else.
        """
        self._tell("pause")

    def resume(self) -> None:
        """Let a paused run take steps again.

        Raises:
            RunStateConflictError: the run has ended.
            LedgerError: anything else.
        """
        self._tell("resume")

    def abort(self) -> None:
        """End the run as failed; what it spent stays spent.

        Raises:
            RunStateConflictError: the run was completed.
            LedgerError: anything else.
        """
        self._tell("abort")

    def __enter__(self) -> Self:
        """Hand out the run."""
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        """Complete or abort the run, unless it has ended or must go on."""
        if self.status in _TERMINAL or isinstance(error, _RUN_GOES_ON):
            return
        action = "complete" if error is None or isinstance(error, BudgetExceededError) else "abort"
        try:
            self._tell(action)
        except LedgerError as second:
            if error is None:
                raise
            # The first exception is the one that the caller must see.
            error.add_note(f"The ledger could not be told to {action} the run {self.id}: {second}")

    def _next_request(
        self, count: int, event: Event | None, events: Sequence[EventCount] | None
    ) -> tuple[Request, int]:
        """Prepare the next step, or find it again if it is the one that is unanswered."""
        first_step = self.next_step if self._pending is None else self._pending[1]
        request = post(f"{self._path}/steps", _steps(count, event, events, first_step))
        if self._pending is None:
            return request, first_step
        if self._pending[0].body != request.body:
            raise self._in_doubt(first_step)
        return self._pending

    def _in_doubt(self, first_step: int) -> RequestInDoubtError:
        return RequestInDoubtError(
            f"Step {first_step} of {self.id} was asked for and is still unanswered, so it may have been charged. "
            f"Call authorize with the arguments of that call first, then ask for others.",
            first_step=first_step,
        )

    def _ours(self, reply: Reply) -> Admission:
        """Read an admission, and turn away one that was given to somebody else."""
        admission = reply.read(Admission)
        if not reply.ours:
            self._pending = None
            raise StepsAlreadyTakenError(
                f"Steps {admission.first_step} to {admission.next_step - 1} of {self.id} were admitted before this "
                f"process asked for them: noise may have been released for them already, and a second release is "
                f"not paid for. If an earlier process of this job has ended, take the run up with get_run(id), "
                f"which goes on at the first free step; if another one still trains, stop this one.",
                run=self.id,
                first_step=admission.first_step,
                next_step=admission.next_step,
            )
        return admission

    def _checked(self, reply: Reply, first_step: int) -> Admission:
        """Read an admission, and believe it only if it is ours and answers what was asked."""
        admission = self._ours(reply)
        if (
            admission.decision != "admitted"
            or admission.dry_run
            or admission.run != self.id
            or admission.first_step != first_step
            or admission.next_step != first_step + admission.count
        ):
            raise UnexpectedResponseError(
                f"The ledger's answer does not admit step {first_step} of {self.id}: release nothing.",
                status=reply.status,
            )
        return admission

    def _tell(self, action: str) -> None:
        self._state = self._transport.send(post(f"{self._path}/{action}", {})).read(RunState)


def _steps(count: int, event: Event | None, events: Sequence[EventCount] | None, first_step: int) -> dict[str, object]:
    """Write the body of a step request; counts of numpy's integer types are accepted."""
    if events is None:
        return {"first_step": first_step, "count": index(count), "event": event}
    if event is not None or count != 1:
        raise ValueError("Give either events, or count and event.")
    told = [{"event": item["event"], "count": index(item["count"])} for item in events]
    return {"first_step": first_step, "events": told}
