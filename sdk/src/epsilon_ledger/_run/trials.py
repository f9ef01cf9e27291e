"""The trials of a sweep that is charged at once: counted here against what was declared, asked of nobody."""

import os
from collections.abc import Iterable, Iterator, Sequence
from threading import Lock
from typing import NoReturn, TypeVar

from epsilon_ledger._run.run import Run
from epsilon_ledger._wire.coercion import whole
from epsilon_ledger._wire.errors import TrialExceededError
from epsilon_ledger._wire.events import Event, EventCount
from epsilon_ledger._wire.models import RunState

T = TypeVar("T")


class Trial:
    """One training of a sweep; `attach` and its kin take it in the place of a run.

    The sweep is paid for as long as no trial does more than was declared, exactly as many trials are run as the ledger
    drew, and nothing but the best of them is looked at or released (Papernot, Steinke 2022, arXiv 2110.03620).

    A trial is used by one process; threads may share it. It cannot be copied or pickled.

    Args:
        state: the run that pays for the sweep.
        number: of the trial, from 0.
        events: all that it may do.
    """

    def __init__(self, state: RunState, number: int, events: Sequence[EventCount]) -> None:
        self.state = state
        self.number = number
        self._left = [(item["event"], whole("count", item["count"])) for item in events]
        self._taken = 0
        self._process = os.getpid()
        self._lock = Lock()

    def __reduce__(self) -> NoReturn:
        """Refuse to copy or pickle the trial: each copy would count the same steps once more."""
        raise TypeError("A trial cannot be copied or pickled: its steps are counted in one process only.")

    def __repr__(self) -> str:
        """Name the sweep's run and the trial."""
        return f"<Trial {self.id} next_step={self.next_step}>"

    @property
    def id(self) -> str:
        """The id of the run that pays for the sweep, and the number of the trial."""
        return f"{self.state.id}/{self.number}"

    @property
    def next_step(self) -> int:
        """How many steps the trial has taken."""
        return self._taken

    @property
    def epsilon(self) -> float:
        """What the whole sweep has spent, at `state.delta`."""
        return self.state.epsilon

    def refresh(self) -> RunState:
        """The run that pays for the sweep, as the ledger described it before the first trial."""
        return self.state

    def authorize(self, count: int = 1, *, event: Event | None = None) -> None:
        """Count the next steps, before their noise is released.

        Args:
            count: how many, in [1, 1e9].
            event: what each of them does; None: what was declared, if that is one event.

        Raises:
            TrialExceededError: more than was declared; release nothing of it.
            RuntimeError: this is not the process that the trial was made in.
        """
        count = whole("count", count)
        if os.getpid() != self._process:
            raise RuntimeError(
                f"{self.id} belongs to process {self._process}, and a forked one would count the same steps once more. "
                "Take all steps of a trial in the process that made it."
            )
        with self._lock:
            self._take(count, event)

    def _take(self, count: int, event: Event | None) -> None:
        if event is None:
            if len(self._left) > 1:
                raise TrialExceededError(
                    "Several events were declared for a trial: say which one it is.", run=self.state.id
                )
            event = self._left[0][0]
        places = [place for place, (declared, _) in enumerate(self._left) if declared == event]
        left = sum(self._left[place][1] for place in places)
        if count > left:
            what = "nothing of the kind was declared" if not places else f"{left} of those that were declared are left"
            raise TrialExceededError(
                f"{count} of these steps are more than the sweep has paid for: {what}. Release nothing of them; end "
                "the trial, or declare a larger one.",
                run=self.state.id,
            )
        for place in places:
            declared, rest = self._left[place]
            taken = min(rest, count)
            self._left[place] = (declared, rest - taken)
            count -= taken
            self._taken += taken

    def track(self, batches: Iterable[T]) -> Iterator[T]:
        """Count a step before each batch, and hand it out.

        Args:
            batches: one noisy step each.

        Yields:
            The batches.

        Raises:
            TrialExceededError: as `authorize`.
        """
        for batch in batches:
            self.authorize()
            yield batch


def trials(run: Run, number: int, events: Sequence[EventCount]) -> Iterator[Trial]:
    """Go through the trials of a sweep that is charged at once.

    Args:
        run: that pays for the sweep, and is charged: `client.get_run(experiment.run)`.
        number: how many: `experiment.trials`.
        events: what was declared for each of them.

    Yields:
        The trials, one after the other.

    Raises:
        TrialExceededError: the sweep is not charged yet.
    """
    if run.next_step == 0:
        run.refresh()
    if run.next_step == 0:
        raise TrialExceededError(
            "The sweep is not charged yet, so no trial of it is paid for. When it is approved, "
            "`client.charge_experiment(experiment.id)` charges it, and tells how many trials it has.",
            run=run.id,
        )
    for place in range(number):
        yield Trial(run.state, place, events)
