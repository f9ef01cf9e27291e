"""What a run tells of itself without asking anybody."""

import os
from typing import NoReturn, TypedDict

from epsilon_ledger._run.run_protocol import RunDialogue
from epsilon_ledger._wire.models import RunState

STATE_FORMAT = 1


class RunStateDict(TypedDict):
    """What a checkpoint keeps of a run; JSON can hold it.

    Args:
        format: of this dictionary.
        run: id of the run.
        attempt: which wrote it.
        step: number of training steps taken so far, in all attempts together; None where that is unknown.
    """

    format: int
    run: str
    attempt: int
    step: int | None


class RunFacts:
    """The part of a run that needs no network, the same whether it is awaited or not.

    Args:
        dialogue: with the ledger.
    """

    def __init__(self, dialogue: RunDialogue) -> None:
        self._dialogue = dialogue
        self._process = os.getpid()

    def __repr__(self) -> str:
        """Name the run and its next step; debuggers ask also where its constructor has failed."""
        if "_dialogue" not in vars(self):
            return f"<{type(self).__name__} not opened>"
        return f"<{type(self).__name__} {self.id} {self.name!r} {self.status} next_step={self.next_step}>"

    def __reduce__(self) -> NoReturn:
        """A copy would hand the same steps out once more, so there is none."""
        raise TypeError("A run cannot be copied or pickled: keep run.state_dict(), and take it up with resume_run.")

    @property
    def state(self) -> RunState:
        """The run as the ledger last described it to this object."""
        return self._dialogue.state

    @property
    def id(self) -> str:
        """The id to take the run up again with: `client.get_run(id)`."""
        return self.state.id

    @property
    def name(self) -> str:
        """The name it was registered under."""
        return self.state.name

    @property
    def status(self) -> str:
        """`pending`, `active`, `paused`, `overdrawn`, `completed` or `aborted`."""
        return self.state.status

    @property
    def attempt(self) -> int:
        """Which attempt of the run this is; a later one fences it off."""
        return self.state.attempt

    @property
    def next_step(self) -> int:
        """The number of the first step that has not been admitted."""
        return self._dialogue.granting.next_step

    @property
    def step(self) -> int | None:
        """The number of training steps taken so far, in all attempts together.

        It can be below `next_step`: steps that were charged and never released are no steps of the training. None if
        the run was taken up by its id without a `step`.
        """
        return self._dialogue.granting.step

    @property
    def epsilon(self) -> float:
        """What the run has spent, at `state.delta`; what was granted ahead is counted as if it were all used."""
        return self.state.epsilon

    def state_dict(self) -> RunStateDict:
        """What a checkpoint must keep; `client.resume_run` takes the run up from it.

        Returns:
            Take it at the same point of the training as the model's.
        """
        return {
            "format": STATE_FORMAT,
            "run": self.id,
            "attempt": self.attempt,
            "step": self.step,
        }

    def _require_own_process(self) -> None:
        if os.getpid() != self._process:
            raise RuntimeError(
                f"{self.id} belongs to process {self._process}, and a forked one would release the same steps once "
                "more. One process asks and tells the others; or the new one registers a run of its own."
            )


def checked_state(state: RunStateDict | str) -> tuple[str, int | None]:
    """Read what a checkpoint kept.

    Args:
        state: of `state_dict`, or the id of a run.

    Returns:
        The run's id, and the number of training steps taken; None where that is unknown.

    Raises:
        ValueError: it is neither.
    """
    if isinstance(state, str):
        return state, None
    step = state.get("step", "")
    if state.get("format") != STATE_FORMAT or not isinstance(state.get("run"), str) or not isinstance(step, int | None):
        raise ValueError(f"This is not what run.state_dict() returned: {state!r}.")
    return state["run"], step
