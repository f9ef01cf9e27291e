"""Trials of a sweep that is charged as a whole, counted locally."""

import os
from collections.abc import Iterable, Iterator, Sequence
from threading import Lock
from typing import NoReturn, TypeVar

from epsilon_ledger._run.run import Run
from epsilon_ledger._wire.coercion import whole
from epsilon_ledger._wire.errors import TrialExceededError
from epsilon_ledger._wire.events import Event, EventCount
from epsilon_ledger._wire.members import wire_events
from epsilon_ledger._wire.models import RunState

T = TypeVar("T")


class Trial:
    """One training of a sweep; `attach` and the other adapters accept it like a run.

    The sweep's charge holds if every trial stays within its declaration, exactly the drawn number of trials is run, and
    only the best one is looked at or released (Papernot, Steinke 2022, arXiv 2110.03620).

    Use a trial in one process; threads may share it. It cannot be copied or pickled.

    Args:
        state: of the run that pays for the sweep.
        number: of the trial, from 0.
        events: declared events of a trial.
    """

    def __init__(self, state: RunState, number: int, events: Sequence[EventCount]) -> None:
        self.state = state
        self.number = number
        self._remaining = [(item["event"], item["count"]) for item in wire_events(events)]
        self._taken = 0
        self._process = os.getpid()
        self._lock = Lock()

    def __reduce__(self) -> NoReturn:
        """Refuse copies, which would count the same steps again."""
        raise TypeError("A trial cannot be copied or pickled: its steps are counted in one process only.")

    def __repr__(self) -> str:
        """Show the sweep's run and the trial."""
        return f"<Trial {self.id} next_step={self.next_step}>"

    @property
    def id(self) -> str:
        """Id of the sweep's run, and the trial's number."""
        return f"{self.state.id}/{self.number}"

    @property
    def next_step(self) -> int:
        """Number of steps taken."""
        return self._taken

    @property
    def epsilon(self) -> float:
        """Epsilon of the whole sweep, at `state.delta`."""
        return self.state.epsilon

    @property
    def used(self) -> float:
        """Used share of the capacity of the account that decides, with the whole sweep."""
        return self.state.used

    def refresh(self) -> RunState:
        """Return the state of the sweep's run before the first trial."""
        return self.state

    def authorize(self, count: int = 1, *, event: Event | None = None) -> None:
        """Count the next steps before their noise is released.

        Args:
            count: in [1, 1e9].
            event: of each step; None: the declared one, if there is only one.

        Raises:
            TrialExceededError: the steps exceed the declaration; release nothing.
            RuntimeError: the trial was created in another process.
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
            if len(self._remaining) > 1:
                raise TrialExceededError(
                    "Several events were declared for a trial: give the `event`.", run=self.state.id
                )
            event = self._remaining[0][0]
        places = [place for place, (declared, _) in enumerate(self._remaining) if declared == event]
        left = sum(self._remaining[place][1] for place in places)
        if count > left:
            what = "nothing of the kind was declared" if not places else f"{left} of those that were declared are left"
            raise TrialExceededError(
                f"{count} of these steps are more than the sweep has paid for: {what}. Release nothing of them; end "
                "the trial, or declare a larger one.",
                run=self.state.id,
            )
        for place in places:
            declared, rest = self._remaining[place]
            taken = min(rest, count)
            self._remaining[place] = (declared, rest - taken)
            count -= taken
            self._taken += taken

    def track(self, batches: Iterable[T]) -> Iterator[T]:
        """Count a step before each batch, and yield the batch.

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
    """Iterate over the trials of a sweep that is charged as a whole.

    Args:
        run: that pays for the sweep: `client.get_run(experiment.run)`.
        number: of trials: `experiment.trials`.
        events: declared events of a trial.

    Yields:
        The trials in order.

    Raises:
        TrialExceededError: the sweep is not charged yet.
    """
    if run.next_step == 0:
        run.refresh()
    if run.next_step == 0:
        raise TrialExceededError(
            "The sweep is not charged yet, so no trial of it is paid for. When it is approved, "
            "`client.charge_experiment(experiment.id)` charges it, and returns its number of trials.",
            run=run.id,
        )
    for place in range(number):
        yield Trial(run.state, place, events)
