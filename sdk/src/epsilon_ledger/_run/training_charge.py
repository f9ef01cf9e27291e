"""One charge for a whole training, whose steps are counted locally."""

import os
import warnings
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from threading import RLock
from typing import Final, NoReturn, TypedDict, TypeVar

from epsilon_ledger._run.grants import json_copy
from epsilon_ledger._run.progress import Progress
from epsilon_ledger._run.run_protocol import RunProtocol
from epsilon_ledger._wire.coercion import whole
from epsilon_ledger._wire.errors import ChargeExceededError
from epsilon_ledger._wire.events import SAMPLES, Event
from epsilon_ledger._wire.problem_errors import RunStateConflictError
from epsilon_ledger._wire.problems import Problem
from epsilon_ledger._wire.requests import RequestFlow

T = TypeVar("T")

STATE_FORMAT: Final = 1
_STOPPED: Final = frozenset({"paused", "completed", "aborted"})


class ChargedAgainWarning(UserWarning):
    """A training that goes on from a checkpoint is charged again as a whole."""


class TrainingStateDict(TypedDict):
    """A training charge's part of a checkpoint, JSON-compatible.

    Args:
        format: of this dictionary.
        run: id of the run.
        attempt: that wrote it.
        charge: attempt and step number of the charge, unique in the run.
        event: of the whole training.
        steps: that the charge covers.
        step: steps taken so far.
        reproducible: whether a repeated step repeats its release.
        suspended: whether no step was taken afterwards.
    """

    format: int
    run: str
    attempt: int
    charge: str
    event: Event
    steps: int
    step: int
    reproducible: bool
    suspended: bool


@dataclass(frozen=True, slots=True)
class _Charge:
    """A charge of a training.

    Args:
        id: attempt and step number of the charge.
        event: of the whole training.
        steps: that it covers.
        reproducible: whether a repeated step repeats its release.
    """

    id: str
    event: Event
    steps: int
    reproducible: bool


class TrainingCharge:
    """A charge that covers all steps of a training, from `Run.charge_training`.

    Each step is counted here before its release, in about a microsecond and without the network. Use it in the process
    that made it; threads may share it. It cannot be copied or pickled.

    Args:
        protocol: of the run.
        charge: in the ledger.
        step: number of steps taken before.
    """

    def __init__(self, protocol: RunProtocol, charge: _Charge, step: int) -> None:
        self._protocol = protocol
        self._charge = charge
        self._step = step
        self._suspended = False
        self._process = os.getpid()
        # A signal's handler may suspend the training in the middle of a call.
        self._lock = RLock()

    def __repr__(self) -> str:
        """Show the run and the steps."""
        return f"<TrainingCharge {self.id} step={self.step} of {self.steps}>"

    def __reduce__(self) -> NoReturn:
        """Refuse copies, which would count the same steps again."""
        raise TypeError("A training charge cannot be copied or pickled: keep its state_dict().")

    @property
    def id(self) -> str:
        """Id of the run, and the charge's attempt and step number in it."""
        return f"{self._protocol.state.id}/{self._charge.id}"

    @property
    def event(self) -> Event:
        """Charged event of the whole training."""
        return self._charge.event

    @property
    def steps(self) -> int:
        """Number of steps that the charge covers."""
        return self._charge.steps

    @property
    def step(self) -> int:
        """Number of steps taken so far, also by earlier processes."""
        return self._step

    @property
    def remaining(self) -> int:
        """Number of steps left."""
        return self.steps - self._step

    @property
    def epsilon(self) -> float:
        """Epsilon of the run, with the whole training, at its delta."""
        return self._protocol.state.epsilon

    @property
    def used(self) -> float:
        """Used share of the capacity of the account that decides, with the whole training."""
        return self._protocol.state.used

    def authorize(self, count: int = 1) -> None:
        """Count the next steps before their noise is released.

        It sees what the run last heard from the ledger: call `run.refresh()` at checkpoints, and a run that was paused,
        ended or taken over stops here.

        Args:
            count: number of steps, at least 1.

        Raises:
            ChargeExceededError: fewer steps are left, or the training was suspended; release nothing.
            RunStateConflictError: the run is paused or has ended.
            AttemptSupersededError: another process has taken over the run.
            RuntimeError: the charge was made in another process.
        """
        if type(count) is not int or count < 1:
            count = whole("count", count)
        self._require_own_process()
        with self._lock:
            self._require_active()
            taken = self._step + count
            if taken > self.steps:
                raise ChargeExceededError(
                    f"{count} further steps are more than {self.id} has paid for: {self.remaining} of {self.steps} are "
                    "left. Release nothing; charge_training charges another training.",
                    run=self._protocol.state.id,
                )
            self._step = taken
            # Last: a suspension in between may not have counted this step.
            if self._suspended:
                self._step -= count
                self._require_not_suspended()

    def track(self, batches: Iterable[T], *, progress: bool | None = None) -> Iterator[T]:
        """Count a step before each batch, and yield the batch.

        Args:
            batches: one noisy step each.
            progress: show a bar of the steps taken, with the epsilon; None: on a terminal with rich or tqdm.

        Yields:
            The batches.

        Raises:
            LedgerError: as `authorize`.
        """
        with Progress(self._protocol.state.name, range(self.steps), enabled=progress) as bar:
            bar.show(self._protocol.state, self._step)
            for batch in batches:
                self.authorize()
                bar.show(self._protocol.state, 1)
                yield batch

    def state_dict(self) -> TrainingStateDict:
        """Return the charge's part of a checkpoint, for `charge_training(..., resume=...)`.

        Returns:
            Take it at the same point of the training as the model's, and keep it beside `run.state_dict()`. Another
            process goes on from it without a charge only if the training is `reproducible`; otherwise see `suspend`.
        """
        charge = self._charge
        return {
            "format": STATE_FORMAT,
            "run": self._protocol.state.id,
            "attempt": self._protocol.state.attempt,
            "charge": charge.id,
            "event": charge.event,
            "steps": charge.steps,
            "step": self._step,
            "reproducible": charge.reproducible,
            "suspended": self._suspended,
        }

    def suspend(self) -> TrainingStateDict:
        """Take no further step, and return the state from which one other process goes on without a charge.

        For a job that is asked to stop. The next process opens the run with `resume_run`, and needs the model, the
        sampler and the noise as they are now.

        Returns:
            The last state of this charge in this process: take it between two steps.

        Raises:
            RuntimeError: the charge was made in another process.
        """
        self._require_own_process()
        # Before the lock: a step that is being counted looks at it last.
        self._suspended = True
        with self._lock:
            return self.state_dict()

    def _require_own_process(self) -> None:
        if os.getpid() != self._process:
            raise RuntimeError(
                f"{self.id} belongs to process {self._process}, and a forked one would count the same steps once more. "
                "One process counts the steps and tells the others."
            )

    def _require_active(self) -> None:
        self._require_not_suspended()
        self._protocol.step_requests.require_attempt()
        status = self._protocol.state.status
        if status in _STOPPED:
            detail = f"The run is {status}: release nothing."
            raise RunStateConflictError(
                Problem(409, "run_state_conflict", "Run state conflict", detail, {"run_status": status})
            )

    def _require_not_suspended(self) -> None:
        if self._suspended:
            raise ChargeExceededError(
                f"{self.id} was suspended after {self._step} steps, which another process may go on from: release "
                "nothing. charge_training charges another training.",
                run=self._protocol.state.id,
            )


def charge_training(
    protocol: RunProtocol, event: Event, *, steps: int, resume: TrainingStateDict | None, reproducible: bool
) -> RequestFlow[TrainingCharge]:
    """Charge a training as a whole, or take up its charge; see `Run.charge_training`.

    Args:
        protocol: of the run.
        event: as there.
        steps: as there.
        resume: as there.
        reproducible: as there.

    Returns:
        The charge.

    Raises:
        LedgerError: as there.
        ValueError: as there.
    """
    event, steps = json_copy(event), whole("steps", steps)
    if steps > 1 and event.get("type") in SAMPLES:
        raise ValueError(
            f"{event['type']} is the event of one step, not of {steps}: give that of the whole training, such as "
            "self_composed(event, rounds)."
        )
    step = 0
    if resume is not None:
        _require_same(protocol, event, steps, resume)
        step = resume["step"]
        obstacle = _obstacle(protocol, resume, reproducible=reproducible)
        if obstacle is None:
            protocol.resumed_charges.add(resume["charge"])
            return TrainingCharge(protocol, _Charge(resume["charge"], event, steps, resume["reproducible"]), step)
        warnings.warn(_charged_again(protocol.state.id, obstacle), ChargedAgainWarning, stacklevel=2)
    made = yield from protocol.authorize(1, None, [{"event": event, "count": 1}], truncate=False)
    charge = _Charge(f"{protocol.state.attempt}/{made.first_step}", event, steps, reproducible)
    return TrainingCharge(protocol, charge, step)


def _require_same(protocol: RunProtocol, event: Event, steps: int, state: TrainingStateDict) -> None:
    if state.get("format") != STATE_FORMAT:
        raise ValueError(f"This is not what a training charge's state_dict() returned: {state!r}.")
    if state["run"] != protocol.state.id:
        raise ValueError(
            f"The checkpoint is of {state['run']}, not of {protocol.state.id}: open that run. A run that starts from "
            "its model says so when it is created, by `starts_from`, and charges a training of its own."
        )
    if (state["event"], state["steps"]) != (event, steps):
        raise ValueError(
            f"The checkpoint's charge is of {state['steps']} steps of {state['event']}, not of {steps} steps of "
            f"{event}. Leave `resume` out to charge this training."
        )


def _obstacle(protocol: RunProtocol, state: TrainingStateDict, *, reproducible: bool) -> str | None:
    """Return why steps after a checkpoint may be released twice, or None if they cannot."""
    if state["reproducible"] and reproducible:
        return None
    if not state["suspended"]:
        return (
            "steps after the checkpoint may have been released already, and a repeated step would have other noise. "
            "suspend() a training that is asked to stop, or make its noise and batches functions of the step and say "
            "`reproducible=True` from the first charge on"
        )
    if not protocol.begins_attempt or protocol.state.attempt != state["attempt"] + 1:
        return (
            f"only the process that opens attempt {state['attempt'] + 1} of the run, with resume_run, may go on from "
            "a suspended training"
        )
    if state["charge"] in protocol.resumed_charges:
        return "this process has gone on from the checkpoint before"
    return None


def _charged_again(run: str, obstacle: str) -> str:
    return (
        f"The training of {run} is charged again as a whole: {obstacle}. To charge nothing instead, turn "
        "ChargedAgainWarning into an error."
    )
