"""The run for blocking programs."""

from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import Future
from itertools import chain
from threading import Lock, Thread, get_ident
from types import TracebackType
from typing import Self, TypeVar

from epsilon_ledger._net.transport import Transport
from epsilon_ledger._run.context_exit import add_failure_note, completion_reason, exit_action
from epsilon_ledger._run.epochs import epoch_event, epoch_steps
from epsilon_ledger._run.grants import PrefetchConfig
from epsilon_ledger._run.method_binding import run_method
from epsilon_ledger._run.progress import Progress
from epsilon_ledger._run.run_base import RunBase
from epsilon_ledger._run.run_protocol import RunProtocol
from epsilon_ledger._run.training_charge import TrainingCharge, TrainingStateDict, charge_training
from epsilon_ledger._wire.coercion import whole
from epsilon_ledger._wire.errors import LedgerError
from epsilon_ledger._wire.events import Event, EventCount
from epsilon_ledger._wire.models import RunState, StepAuthorization
from epsilon_ledger._wire.requests import Request, RequestFlow
from epsilon_ledger._wire.responses import Response

T = TypeVar("T")


class Run(RunBase[Future[Response]]):
    """A training run that authorizes each noisy step, opened by `create_run`, `get_run` or `resume_run`.

    Use a run in one process: it keeps the next step, unanswered steps and grants. In distributed training one rank
    authorizes for all. Threads may share it.

    As a context manager it completes the run on a clean exit and after a refusal, since a spent budget is a normal end.
    It ends as "budget_exhausted" if its last request was refused, even if the refusal was caught within the block.
    It aborts the run after any other exception, except those that say that another process has the run or that the
    ledger does not answer: they leave the run as it is.

    Args:
        transport: to the ledger.
        state: latest state from the ledger.
        prefetch: prefetching of grants.
        step: training steps taken before, in all attempts; None if unknown.
        with_reservation: whether the run's active reservation belongs to this trainer.
        begins_attempt: whether the run's attempt was begun for this trainer.
    """

    def __init__(
        self,
        transport: Transport,
        state: RunState,
        prefetch: PrefetchConfig,
        *,
        step: int | None,
        with_reservation: bool = False,
        begins_attempt: bool = False,
    ) -> None:
        super().__init__(state, prefetch, step=step, with_reservation=with_reservation, begins_attempt=begins_attempt)
        self._transport = transport
        self._lock = Lock()
        self._owner = 0

    def authorize(
        self,
        count: int = 1,
        *,
        event: Event | None = None,
        events: Sequence[EventCount] | None = None,
        truncate: bool = False,
    ) -> StepAuthorization:
        """Authorize the next steps before their noise is released; they are charged on return.

        After `LedgerUnavailableError` repeat the call with the same arguments: it has the same key and charges once.

        Args:
            count: repetitions of `event`, in [1, 1e9].
            event: of each step; by default the schedule's or the run's.
            events: events with counts, at most 1,000, instead of `count` and `event`.
            truncate: accept the first steps that fit: release the authorization's `count`.

        Returns:
            The permission to release.

        Raises:
            BudgetExceededError: the steps do not fit; nothing was charged.
            StepsAlreadyTakenError: another process was admitted for these steps.
            AttemptSupersededError: another process has taken over the run.
            RequestInDoubtError: an earlier call with other arguments is unanswered.
            LedgerUnavailableError: no response; the steps may have been charged.
            LedgerError: any other failure: do not release.
        """
        if type(count) is not int or count < 1:
            count = whole("count", count)
        self._require_no_call()
        # As in _execute, without the generators: this is called in every step of a training.
        with self._lock:
            self._owner = get_ident()
            try:
                granted = self._take_granted(count, event) if events is None and not truncate else None
                if granted is not None:
                    return granted
                return self._transport.execute(self._authorize(count, event, events, truncate=truncate))
            finally:
                self._owner = 0

    def track(self, batches: Iterable[T], *, progress: bool | None = None) -> Iterator[T]:
        """Authorize a step before each batch, and yield the batch.

        Args:
            batches: one noisy step each.
            progress: show a bar with the epsilon; None: on a terminal with rich or tqdm.

        Yields:
            The batches.

        Raises:
            LedgerError: as `authorize`.
        """
        with Progress(self.name, batches, enabled=progress) as bar:
            for batch in batches:
                authorization = self.authorize()
                bar.show(authorization, authorization.count)
                yield batch

    def charge_training(
        self,
        event: Event,
        *,
        steps: int,
        resume: TrainingStateDict | None = None,
        reproducible: bool = False,
    ) -> TrainingCharge:
        """Charge a training as a whole, before its first step; its steps are then counted locally.

        For DP-FTRL and other correlated noise, whose steps have no cost of their own. The charge covers each of its
        steps once, in the process that made it. A process that goes on from a checkpoint may release steps again that
        an earlier one has released, so the whole training is charged again (`ChargedAgainWarning`), except

        * from `TrainingCharge.suspend()`, once, by the process that opened the run's next attempt with `resume_run`;
        * from any `TrainingCharge.state_dict()`, if the training is `reproducible`.

        After `LedgerUnavailableError` repeat the call with the same arguments: it charges once. Save a checkpoint
        before the first step, since a charge that no checkpoint names is lost with the process.

        Args:
            event: of the whole training, not of a step.
            steps: number of steps that it covers, at least 1.
            resume: state of the charge in the checkpoint; None: a new training.
            reproducible: the caller states that step t repeats its release bit by bit in every process: noise and batch
                are functions of a key in the checkpoint and t, and the program, its settings, the data and the hardware
                stay the same. If any of them changes, the difference of two releases has no noise.

        Returns:
            The charge: call its `authorize` before each step.

        Raises:
            BudgetExceededError: the training does not fit; nothing was charged.
            ChargedAgainWarning: it would be charged again, if warnings are errors; nothing was charged.
            ValueError: `resume` is of another run or training, or `event` is that of one step.
            LedgerError: as `authorize`.
        """
        flow = charge_training(self._protocol, event, steps=steps, resume=resume, reproducible=reproducible)
        return self._execute(flow)

    def charge_epoch(
        self,
        batches: Iterable[object],
        event: Event | None = None,
        *,
        events: Sequence[EventCount] | None = None,
        steps: int | None = None,
        assume_disjoint: bool = False,
    ) -> TrainingCharge:
        """Charge an epoch of fixed batches as one event, before its first batch; its batches are then counted locally.

        Where no record is in two batches of an epoch, such as those of a shuffled loader, a replaced record changes one
        batch only. So the epoch costs one batch, under `replace_one` and `replace_special`. Each batch allows one
        noisy release. Begin every epoch anew, also after a restart: it is charged again.

        Args:
            batches: of the epoch, examined but not read. The caller knows that a pass has each record once at most, and
                that no record decides about the batch of any record. Loaders of torch and datasets of MindSpore
                are checked for it.
            event: of each batch; by default the run's.
            events: of the batches, with counts, where the noise changes; the one with the least noise is charged.
            steps: maximum number of batches; by default that of `events`, or the length of `batches`.
            assume_disjoint: the caller vouches for batches that the check does not know.

        Returns:
            The charge: call its `authorize` before each batch's release.

        Raises:
            BudgetExceededError: the epoch does not fit; nothing was charged.
            ValueError: the population is under `add_or_remove_one`, a record may be in several batches, or their number
                is unknown; nothing was charged.
            LedgerError: as `authorize`.
        """
        epoch = (
            epoch_event(self.state, event, events),
            epoch_steps(batches, events, steps, assume_disjoint=assume_disjoint),
        )
        return self.charge_training(epoch[0], steps=epoch[1])

    def track_epoch(
        self,
        batches: Iterable[T],
        event: Event | None = None,
        *,
        events: Sequence[EventCount] | None = None,
        steps: int | None = None,
        assume_disjoint: bool = False,
        progress: bool | None = None,
    ) -> Iterator[T]:
        """Charge an epoch of fixed batches as one event, and yield its batches; see `charge_epoch`.

        Args:
            batches: as of `charge_epoch`, one noisy step each.
            event: as there.
            events: as there.
            steps: as there.
            assume_disjoint: as there.
            progress: show a bar with the epsilon; None: on a terminal with rich or tqdm.

        Yields:
            The batches. An epoch without batches is not charged.

        Raises:
            ChargeExceededError: there are more batches than were charged.
            ValueError: as of `charge_epoch`.
            LedgerError: as `authorize`.
        """
        charged = epoch_event(self.state, event, events)
        most = epoch_steps(batches, events, steps, assume_disjoint=assume_disjoint)
        return self._track_epoch(batches, charged, most, progress=progress)

    def _track_epoch(self, batches: Iterable[T], event: Event, steps: int, *, progress: bool | None) -> Iterator[T]:
        source = iter(batches)
        for first in source:
            charge = self.charge_training(event, steps=steps)
            yield from charge.track(chain([first], source), progress=progress)

    resolve_in_doubt = run_method(RunProtocol.resolve_in_doubt)
    preview = run_method(RunProtocol.preview)
    report = run_method(RunProtocol.report)
    reserve = run_method(RunProtocol.reserve)
    wait_for_reservation = run_method(RunProtocol.wait_for_reservation)
    commit = run_method(RunProtocol.commit)
    void = run_method(RunProtocol.void)
    renew = run_method(RunProtocol.renew)
    complete = run_method(RunProtocol.complete)
    pause = run_method(RunProtocol.pause)
    resume = run_method(RunProtocol.resume)
    abort = run_method(RunProtocol.abort)
    refresh = run_method(RunProtocol.refresh)
    request_limit = run_method(RunProtocol.request_limit)

    def __enter__(self) -> Self:
        """Return the run."""
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        """Complete or abort the run, unless it has ended or must go on."""
        action = exit_action(self.status, error)
        if action is None:
            return
        try:
            if action == "complete":
                self.complete(reason=completion_reason(error))
            else:
                # A grant in flight needs no waiting: it is forfeited with the rest.
                self._inflight = None
                self.abort()
        except LedgerError as second:
            if error is None:
                raise
            add_failure_note(error, action, self.id, second)

    def _require_no_call(self) -> None:
        """Require that this thread is not in a call already; the calls of several threads wait for each other."""
        self._require_own_process()
        if self._owner == get_ident() and self._lock.locked():
            raise RuntimeError(
                f"{self.id} is in the middle of a call: neither a schedule nor a signal's handler can make another."
            )

    def _execute(self, flow: RequestFlow[T]) -> T:
        self._require_no_call()
        with self._lock:
            self._owner = get_ident()
            try:
                return self._transport.execute(self._alone(flow))
            finally:
                self._owner = 0

    def _start(self, request: Request) -> Future[Response]:
        """Send a request in a daemon thread, which does not delay the program's exit."""
        inflight: Future[Response] = Future()

        def send() -> None:
            try:
                inflight.set_result(self._transport.send(request))
            except BaseException as error:  # noqa: BLE001 - raised from the future
                inflight.set_exception(error)

        Thread(target=send, name="epsilon-ledger", daemon=True).start()
        return inflight
