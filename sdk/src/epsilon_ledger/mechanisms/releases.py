"""Authorized releases: noise is drawn only after the ledger admitted its exact event."""

from collections.abc import Callable
from inspect import isawaitable, iscoroutinefunction
from threading import Lock
from typing import Protocol, Self

import numpy as np
from numpy.typing import NDArray

from epsilon_ledger import Event, poisson_sampled
from epsilon_ledger.mechanisms import checks


class Authorizer(Protocol):
    """Authorizer of releases, such as `epsilon_ledger.Run`."""

    def authorize(self, count: int = 1, *, event: Event | None = None) -> object:
        """Return if `count` releases of `event` were charged; raise otherwise."""
        ...


class Unmetered:
    """Authorizer that charges nothing.

    For tests, for synthetic or public data, and for releases charged as part of another event.

    Args:
        reason: why nothing is charged, for readers of the code.

    Raises:
        ValueError: no reason is given.
    """

    def __init__(self, reason: str) -> None:
        if not str(reason or "").strip():
            raise ValueError('Give the reason for not charging these releases: Unmetered("synthetic data").')
        self._reason = reason

    def __repr__(self) -> str:
        """Show the reason."""
        return f"Unmetered({self._reason!r})"

    def authorize(self, count: int = 1, *, event: Event | None = None) -> None:
        """Admit everything without a charge."""


class PreparedRelease:
    """A release computed up to its noise: authorize it, then draw it once.

    Args:
        event: on the records of the sample.
        draw: draws the noise, advances the mechanism, and returns the noisy vector.
        secure: whether the noise is unpredictable.
    """

    def __init__(self, event: Event, draw: Callable[[], NDArray[np.float64]], *, secure: bool) -> None:
        self._event = event
        self._draw = draw
        self._secure = secure
        self._state = "new"
        self._lock = Lock()

    def joined(self, event: Event, then: Callable[[], None]) -> Self:
        """Combine this release with another one from the same summands.

        Args:
            event: of both together.
            then: makes the other release after this one's noise was drawn.
        """

        def draw() -> NDArray[np.float64]:
            noisy = self._draw()
            then()
            return noisy

        return type(self)(event, draw, secure=self._secure)

    def authorize(self, run: Authorizer, sampling_probability: float | None = None) -> None:
        """Authorize this release.

        Args:
            run: to charge.
            sampling_probability: of the Poisson sample; None for all records.

        Raises:
            TypeError: the run is asynchronous.
            ValueError: the noise is seeded, and the run has an earlier attempt.
            Exception: from `run`; nothing was released and nothing has changed.
        """
        require_unrepeatable(run, secure=self._secure)
        answer = run.authorize(event=sampled(self._event, sampling_probability))
        if isawaitable(answer):
            raise TypeError(f"{run!r} has to be awaited and has admitted nothing: give a run that answers at once.")
        self._state = "admitted"

    def draw(self) -> NDArray[np.float64]:
        """Draw the noise and return the noisy vector, (d,).

        Raises:
            RuntimeError: the release was not admitted, or was drawn already.
        """
        with self._lock:
            if self._state != "admitted":
                raise RuntimeError("This release was not admitted, or it was drawn before: authorize a new one.")
            self._state = "drawn"
        return self._draw()


def require_run(run: Authorizer) -> Authorizer:
    """Check that a run authorizes synchronously, and return it.

    Raises:
        TypeError: it cannot authorize, or is asynchronous.
    """
    authorize = getattr(run, "authorize", None)
    if not callable(authorize) or iscoroutinefunction(authorize):
        raise TypeError(
            f"run is {run!r}, but it must be a run of the ledger, which answers at once before each release. "
            'Without a charge, give run=Unmetered("why").'
        )
    return run


def require_unrepeatable(run: Authorizer, *, secure: bool) -> None:
    """Require random numbers that an earlier attempt of the run cannot have used.

    Args:
        run: to charge.
        secure: whether the numbers are unpredictable.

    Raises:
        ValueError: they are seeded, and the run has an earlier attempt: the difference of two releases with the same
            noise has none.
    """
    attempt = getattr(getattr(run, "state", None), "attempt", 1)
    if not secure and attempt > 1:
        raise ValueError(
            f"This is attempt {attempt} of the run, and a seed would repeat the noise or the samples of attempt 1: "
            "leave the seed out."
        )


def sampled(event: Event, sampling_probability: float | None) -> Event:
    """Return an event on a Poisson sample, or the event itself without a probability.

    Raises:
        ValueError: the probability is not in (0, 1].
    """
    if sampling_probability is None:
        return event
    meaning = "the chance of each record to be in the sample"
    return poisson_sampled(
        checks.real("sampling_probability", sampling_probability, checks.ABOVE_ZERO, 1.0, meaning), event
    )
