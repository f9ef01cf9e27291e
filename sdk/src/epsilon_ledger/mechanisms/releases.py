"""Asking before releasing: noise is drawn only after the ledger admitted the very event that it is drawn for."""

from collections.abc import Callable
from inspect import isawaitable, iscoroutinefunction
from threading import Lock
from typing import Protocol, Self

import numpy as np
from numpy.typing import NDArray

from epsilon_ledger import Event, poisson_sampled
from epsilon_ledger.mechanisms import checks


class Authorizer(Protocol):
    """What is asked before each release; an `epsilon_ledger.Run` is one."""

    def authorize(self, count: int = 1, *, event: Event | None = None) -> object:
        """Return if `count` releases of `event` were admitted and charged, and raise if not."""
        ...


class Unmetered:
    """Given in the place of a run: the releases are charged to nobody.

    For tests, for synthetic or public data, and for releases that were already charged as part of another event.

    Args:
        reason: why nobody is charged, for the reader of the code.

    Raises:
        ValueError: no reason is given.
    """

    def __init__(self, reason: str) -> None:
        if not str(reason or "").strip():
            raise ValueError('Say why these releases are charged to nobody: Unmetered("synthetic data").')
        self._reason = reason

    def __repr__(self) -> str:
        """Tell the reason."""
        return f"Unmetered({self._reason!r})"

    def authorize(self, count: int = 1, *, event: Event | None = None) -> None:
        """Admit everything and charge nobody."""


class PreparedRelease:
    """A release that is computed up to its noise; ask for it, then draw it once.

    Args:
        event: what it does to the records of the sample.
        draw: draws the noise, moves the mechanism on, and returns the noisy vector.
    """

    def __init__(self, event: Event, draw: Callable[[], NDArray[np.float64]]) -> None:
        self._event = event
        self._draw = draw
        self._state = "new"
        self._lock = Lock()

    def joined(self, event: Event, then: Callable[[], None]) -> Self:
        """Return this release together with another one from the same summands.

        Args:
            event: what both do to the records of the sample.
            then: makes the other release, after the noise of this one was drawn.

        Returns:
            Both, to be authorized and drawn in the place of this one.
        """

        def draw() -> NDArray[np.float64]:
            noisy = self._draw()
            then()
            return noisy

        return type(self)(event, draw)

    def authorize(self, run: Authorizer, sampling_probability: float | None = None) -> None:
        """Ask the ledger for this release.

        Args:
            run: which is charged.
            sampling_probability: of the Poisson sample that the records are; None if they are all records.

        Raises:
            TypeError: the run gave no answer but something to wait for.
            Exception: whatever `run` raises; nothing was released and nothing has changed.
        """
        answer = run.authorize(event=sampled(self._event, sampling_probability))
        if isawaitable(answer):
            raise TypeError(f"{run!r} has to be awaited and has admitted nothing: give a run that answers at once.")
        self._state = "admitted"

    def draw(self) -> NDArray[np.float64]:
        """Draw the noise of this release.

        Returns:
            (d,) the noisy vector.

        Raises:
            RuntimeError: it was not admitted, or it was drawn already.
        """
        with self._lock:
            if self._state != "admitted":
                raise RuntimeError("This release was not admitted, or it was drawn before: authorize a new one.")
            self._state = "drawn"
        return self._draw()


def checked_run(run: Authorizer) -> Authorizer:
    """Return what is asked before each release.

    Args:
        run: a run of the ledger, or `Unmetered`.

    Returns:
        The same.

    Raises:
        TypeError: it cannot be asked, or only be awaited.
    """
    authorize = getattr(run, "authorize", None)
    if not callable(authorize) or iscoroutinefunction(authorize):
        raise TypeError(
            f"run is {run!r}, but it must be a run of the ledger, which answers at once before each release. "
            'If nobody is to be charged, say so: run=Unmetered("why").'
        )
    return run


def sampled(event: Event, sampling_probability: float | None) -> Event:
    """Return an event on a Poisson sample, or the event itself if it saw all records.

    Args:
        event: what is done to the sample.
        sampling_probability: chance of each record to be in the sample; None if all are.

    Returns:
        The event that is charged.

    Raises:
        ValueError: the chance is no number in (0, 1].
    """
    if sampling_probability is None:
        return event
    meaning = "the chance of each record to be in the sample"
    return poisson_sampled(
        checks.real("sampling_probability", sampling_probability, checks.ABOVE_ZERO, 1.0, meaning), event
    )
