"""Properties of a run that need no request."""

import os
from typing import NoReturn, TypedDict

from epsilon_ledger._run.run_protocol import RunProtocol
from epsilon_ledger._wire.coercion import whole
from epsilon_ledger._wire.models import RunState
from epsilon_ledger._wire.origins import Origin
from epsilon_ledger._wire.problems import BudgetExceededError

STATE_FORMAT = 1


class RunStateDict(TypedDict):
    """A run's part of a checkpoint, JSON-compatible.

    Args:
        format: of this dictionary.
        run: id of the run.
        attempt: that wrote it.
        step: training steps taken so far, in all attempts; None if unknown.
    """

    format: int
    run: str
    attempt: int
    step: int | None


class RunProperties:
    """Base of runs without I/O."""

    def __init__(self, protocol: RunProtocol) -> None:
        self._protocol = protocol
        self._process = os.getpid()

    def __repr__(self) -> str:
        """Show the run and its next step, even if the constructor failed."""
        if "_protocol" not in vars(self):
            return f"<{type(self).__name__} not opened>"
        return f"<{type(self).__name__} {self.id} {self.name!r} {self.status} next_step={self.next_step}>"

    def __reduce__(self) -> NoReturn:
        """Refuse copies, which would release the same steps again."""
        raise TypeError("A run cannot be copied or pickled: keep run.state_dict(), and take it up with resume_run.")

    @property
    def state(self) -> RunState:
        """The run's latest state from the ledger."""
        return self._protocol.state

    @property
    def id(self) -> str:
        """The run's id, for `client.get_run(id)`."""
        return self.state.id

    @property
    def name(self) -> str:
        """The run's name."""
        return self.state.name

    @property
    def status(self) -> str:
        """`pending`, `waiting`, `active`, `paused`, `overdrawn`, `completed` or `aborted`."""
        return self.state.status

    @property
    def attempt(self) -> int:
        """The run's attempt; a later one fences it off."""
        return self.state.attempt

    @property
    def next_step(self) -> int:
        """Number of the first step that has not been admitted."""
        return self._protocol.grants.next_step

    @property
    def url(self) -> str | None:
        """The run's page."""
        return self.state.url

    @property
    def starts_from(self) -> tuple[Origin, ...] | None:
        """The runs and outside models that the training starts from, as declared; None: nothing was declared."""
        return self.state.starts_from

    @property
    def expected_steps(self) -> int | None:
        """Number of all steps of the training, for which a refusal answers; None if unknown.

        Set it where the program learns it after the run was created. It changes no charge.
        """
        return self._protocol.step_requests.expected_steps or self.state.expected_steps

    @expected_steps.setter
    def expected_steps(self, value: int | None) -> None:
        self._protocol.step_requests.expected_steps = None if value is None else whole("expected_steps", value)

    @property
    def step(self) -> int | None:
        """Number of training steps taken so far, in all attempts.

        It can be below `next_step`, because charged steps that were never released do not count. None if the run was
        opened by its id without a `step`.
        """
        return self._protocol.grants.step

    @property
    def epsilon(self) -> float:
        """Epsilon of all that the run was charged, at `state.delta`; grants count as fully taken.

        It is as the tightest accountant for releases that were fixed in advance computes it: after a step at most 0.5 %
        above, or more if the run has more than six different events; after `refresh` at most 0.1 %.
        """
        return self.state.epsilon

    @property
    def used(self) -> float:
        """Used share of the capacity of the account that decides, `binding_account_path`; as of the latest answer."""
        return self.state.used

    @property
    def steps_remaining(self) -> int | None:
        """Number of further steps like the last one that every account admits; None if unknown."""
        return self.state.steps_remaining

    @property
    def binding_account_path(self) -> str | None:
        """Path of the account that leaves the fewest further steps, and so decides; None if unknown."""
        return self.state.binding_account_path

    @property
    def refusal(self) -> BudgetExceededError | None:
        """Refusal of what the run requested last, also if the program caught it; None if steps were charged since.

        A run that is completed after it ends as "budget_exhausted".
        """
        return self._protocol.refusal

    def state_dict(self) -> RunStateDict:
        """Return the run's part of a checkpoint, for `client.resume_run`.

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
                "more. One process asks and tells the others; or the new one creates a run of its own."
            )


def parse_state(state: RunStateDict | str) -> tuple[str, int | None]:
    """Parse a checkpoint or a run's id; return the id and the training steps taken, or None.

    Raises:
        ValueError: it is neither.
    """
    if isinstance(state, str):
        return state, None
    step = state.get("step", "")
    if state.get("format") != STATE_FORMAT or not isinstance(state.get("run"), str) or not isinstance(step, int | None):
        raise ValueError(f"This is not what run.state_dict() returned: {state!r}.")
    return state["run"], step
