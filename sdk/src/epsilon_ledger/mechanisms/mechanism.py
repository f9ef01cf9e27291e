"""The interface of mechanisms that add noise to a sum of clipped vectors."""

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from math import prod
from typing import Any, Literal, overload

import numpy as np
from numpy.typing import NDArray

from epsilon_ledger import Event
from epsilon_ledger.mechanisms.arrays import Array, Arrays, parts_of, shaped_like, split
from epsilon_ledger.mechanisms.releases import Authorizer, PreparedRelease, require_run

Floats = NDArray[np.float64]
Clipped = Literal["example", "microbatch"]


class ClippedSumMechanism(ABC):
    """Mechanism that clips vectors to a norm, adds them up, and adds noise."""

    @property
    @abstractmethod
    def clipping_norm(self) -> float:
        """L2 norm to which each summand of the next release is clipped."""

    @property
    @abstractmethod
    def clipped(self) -> Clipped:
        """The kind of summands: examples' vectors, or means of micro-batches."""

    @property
    @abstractmethod
    def event(self) -> Event:
        """Event of the next release on the summed records."""

    @abstractmethod
    def event_at(self, release: int) -> Event:
        """Return the event of a release, as a schedule for grants.

        Args:
            release: its number, from 0.

        Returns:
            The event.

        Raises:
            ValueError: the noise multiplier has decayed below 1e-3.
        """

    @property
    def expected_summands(self) -> float | None:
        """Expected number of summands; None if irrelevant."""
        return None

    @property
    @abstractmethod
    def secure(self) -> bool:
        """Whether the noise is unpredictable; False if it is seeded."""

    @abstractmethod
    def prepare(self, rows: Sequence[NDArray[Any]]) -> PreparedRelease:
        """Clip vectors to the current norm, and prepare the release of their sum.

        Args:
            rows: one array (n, d_j) for each parameter; row i of all of them is one summand.

        Returns:
            The release; its result is the noisy sum, (sum of the d_j,).
        """

    @abstractmethod
    def state_dict(self) -> dict[str, object]:
        """Return the state for a checkpoint, without random state."""

    @abstractmethod
    def load_state_dict(self, state: object) -> None:
        """Restore a checkpoint; an invalid state changes nothing."""

    @overload
    def clip_and_release(
        self, vectors: Array, *, run: Authorizer, sampling_probability: float | None = None
    ) -> Floats: ...
    @overload
    def clip_and_release(
        self, vectors: Sequence[Array], *, run: Authorizer, sampling_probability: float | None = None
    ) -> list[Floats]: ...
    @overload
    def clip_and_release(
        self, vectors: Mapping[str, Array], *, run: Authorizer, sampling_probability: float | None = None
    ) -> dict[str, Floats]: ...
    def clip_and_release(
        self, vectors: Arrays, *, run: Authorizer, sampling_probability: float | None = None
    ) -> Floats | list[Floats] | dict[str, Floats]:
        """Clip vectors, authorize one release of their sum, and return the noisy sum.

        After a refusal nothing has changed.

        Args:
            vectors: one array (n, ...), or several, whose row i together is the vector of summand i.
            run: to charge, or `Unmetered`.
            sampling_probability: q if the summands are a Poisson sample; None if they are all records.

        Returns:
            The noisy sum, shaped as one row of `vectors`.

        Raises:
            ValueError: the arrays differ in their number of rows, or the noise multiplier has decayed below 1e-3.
            Exception: from `run`; nothing was released and nothing has changed.
        """
        parts = parts_of(vectors)
        counts = {part.shape[0] if part.ndim else -1 for part in parts}
        if len(counts) != 1 or -1 in counts:
            raise ValueError(
                "The arrays have no common first axis, but row i of all of them is the vector of summand i."
            )
        shapes = [part.shape[1:] for part in parts]
        rows = [part.reshape(part.shape[0], prod(shape)) for part, shape in zip(parts, shapes, strict=True)]
        release = self.prepare(rows)
        release.authorize(require_run(run), sampling_probability)
        return shaped_like(vectors, split(release.draw(), shapes))
