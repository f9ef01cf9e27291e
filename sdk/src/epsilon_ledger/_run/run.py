"""A training run, as its trainer holds it."""

import time
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import Future, wait
from contextlib import contextmanager
from threading import Lock, Thread, get_ident
from types import TracebackType
from typing import Self, TypeVar

from epsilon_ledger._net.transport import Transport
from epsilon_ledger._run.context_exit import ending, note_of
from epsilon_ledger._run.grants import PrefetchConfig
from epsilon_ledger._run.method_binding import run_method
from epsilon_ledger._run.progress import Progress
from epsilon_ledger._run.run_properties import RunFacts
from epsilon_ledger._run.run_protocol import RunDialogue
from epsilon_ledger._wire.coercion import whole
from epsilon_ledger._wire.errors import LedgerError
from epsilon_ledger._wire.events import Event, EventCount
from epsilon_ledger._wire.models import Admission, RunState
from epsilon_ledger._wire.requests import Request, RequestFlow
from epsilon_ledger._wire.responses import Response

T = TypeVar("T")


class Run(RunFacts):
    """A run that asks the ledger before each noisy step; made by `LedgerClient.register_run` and its kin.

    One run is used by one process: which step comes next, which one is unanswered and what was granted ahead is
    remembered here. In distributed training one rank asks and tells the others. Threads may share it.

    As a context manager it completes the run on a clean exit and after a refusal (a spent budget is a normal
    end), and aborts it after any other exception, except those that say that the run is in other hands or
    that the ledger does not answer: then the run stays as it is.

    Args:
        transport: how to reach the ledger.
        state: the run as the ledger described it.
        ahead: how far to ask ahead.
        step: how many steps of the training were taken before, in all attempts together; None: unknown.
        with_plan: whether the run's active reservation, if any, is this trainer's own.
    """

    def __init__(
        self, transport: Transport, state: RunState, ahead: PrefetchConfig, *, step: int | None, with_plan: bool = False
    ) -> None:
        super().__init__(RunDialogue(state, ahead, time.monotonic, step=step, with_plan=with_plan))
        self._transport = transport
        self._background = ahead.background
        self._flight: Future[Response] | None = None
        self._lock = Lock()
        self._user = 0

    def authorize(
        self,
        count: int = 1,
        *,
        event: Event | None = None,
        events: Sequence[EventCount] | None = None,
        truncate: bool = False,
    ) -> Admission:
        """Ask for the next steps, before their noise is released; they are charged when this returns.

        After `LedgerUnavailableError` the same call asks for the same steps under the same key, so that they
        are never charged twice.

        Args:
            count: repetitions of `event`, in [1, 1e9].
            event: what each step does; by default that of the schedule, or with which the run was registered.
            events: several events with their counts, at most 1,000, instead of `count` and `event`.
            truncate: whether as many of the steps as fit are enough, from the first: release `count` of the answer.

        Returns:
            The permission.

        Raises:
            BudgetExceededError: the steps do not fit; nothing was charged.
            StepsAlreadyTakenError: another process was admitted for these very steps.
            AttemptSupersededError: another process has taken the run over.
            RequestInDoubtError: an earlier call with other arguments is still unanswered.
            LedgerUnavailableError: no answer; whether the steps were charged is unknown.
            LedgerError: anything else: do not release.
        """
        count = whole("count", count)
        with self._alone():
            if self._flight is not None and self._flight.done():
                self._land()
            local = events is None and not truncate and (self._background or not self._dialogue.granting.overdue)
            admission = self._granted(count, event) if local else None
            if admission is None:
                if self._flight is not None:
                    self._land()
                talk = self._dialogue.authorize(count, event, events, truncate=truncate)
                admission = self._transport.carry(talk)
            if self._background and self._flight is None:
                request = self._dialogue.granting.look_ahead()
                if request is not None:
                    self._flight = _sent(self._transport, request)
            return admission

    def track(self, batches: Iterable[T], *, progress: bool | None = None) -> Iterator[T]:
        """Ask before each batch, and hand it out when its step is admitted.

        Args:
            batches: one noisy step each.
            progress: whether to show a bar with the epsilon; None: if there is a terminal, and rich or tqdm.

        Yields:
            The batches.

        Raises:
            LedgerError: as `authorize`.
        """
        with Progress(self.name, batches, wanted=progress) as bar:
            for batch in batches:
                bar.show(self.authorize())
                yield batch

    settle = run_method(RunDialogue.settle)
    preview = run_method(RunDialogue.preview)
    report = run_method(RunDialogue.report)
    reserve = run_method(RunDialogue.reserve)
    commit = run_method(RunDialogue.commit)
    void = run_method(RunDialogue.void)
    renew = run_method(RunDialogue.renew)
    complete = run_method(RunDialogue.complete)
    pause = run_method(RunDialogue.pause)
    resume = run_method(RunDialogue.resume)
    abort = run_method(RunDialogue.abort)
    refresh = run_method(RunDialogue.refresh)

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
        action = ending(self.status, error)
        if action is None:
            return
        try:
            if action == "complete":
                self.complete()
            else:
                # What is on its way needs no waiting for: whatever it sets aside is forfeited with the rest.
                self._flight = None
                self.abort()
        except LedgerError as second:
            if error is None:
                raise
            note_of(error, action, self.id, second)

    def _granted(self, count: int, event: Event | None) -> Admission | None:
        """Steps of a grant that is here, or on its way."""
        if self._dialogue.asking.in_doubt:
            return None
        admission = self._dialogue.granting.granted(count, event)
        if admission is None and self._flight is not None:
            self._land()
            admission = self._dialogue.granting.granted(count, event)
        return admission

    def _land(self) -> None:
        """Wait for the grant that is on its way, and take it in."""
        flight = self._flight
        assert flight is not None, "something is on its way"
        # Whoever waits may be interrupted; what is on its way arrives all the same.
        wait([flight])
        self._flight = None
        try:
            outcome: Response | LedgerError = flight.result()
        except LedgerError as error:
            outcome = error
        self._dialogue.granting.settle(outcome)

    @contextmanager
    def _alone(self) -> Iterator[None]:
        """One call after the other, of any thread."""
        self._require_own_process()
        if self._user == get_ident() and self._lock.locked():
            raise RuntimeError(
                f"{self.id} is in the middle of a call: neither a schedule nor a signal's handler can make another."
            )
        with self._lock:
            self._user = get_ident()
            try:
                yield
            finally:
                self._user = 0

    def _carry(self, talk: RequestFlow[T]) -> T:
        with self._alone():
            if self._flight is not None:
                self._land()
            return self._transport.carry(talk)


def _sent(transport: Transport, request: Request) -> Future[Response]:
    """Send a request in a thread of its own, which no exit of the program waits for."""
    flight: Future[Response] = Future()

    def send() -> None:
        try:
            flight.set_result(transport.send(request))
        except BaseException as error:  # noqa: BLE001 - whoever waits for the answer is told
            flight.set_exception(error)

    Thread(target=send, name="epsilon-ledger", daemon=True).start()
    return flight
