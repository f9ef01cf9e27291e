"""Selections of batches whose steps can be charged one by one."""

from abc import ABC, abstractmethod
from collections.abc import Iterator
from numbers import Real
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from epsilon_ledger import (
    Event,
    poisson_sampled,
    sampled_with_replacement,
    sampled_without_replacement,
    truncated_poisson_sampled,
)
from epsilon_ledger._jax.errors import UnsupportedTrainingError
from epsilon_ledger._wire.coercion import whole

_REFUSED: Final = {
    "BallsInBinsSampling": "a record is in every n-th batch, so that steps cannot be charged one by one",
    "BMinSepSampling": "a batch depends on those before it, so that steps cannot be charged one by one",
}


class Batches(ABC):
    """Batches, and what their selection makes of a step's noise.

    Args:
        iterations: number of batches; None: as many as wanted.
    """

    def __init__(self, iterations: int | None) -> None:
        self.iterations = iterations

    @abstractmethod
    def charge(self, mechanism: Event, records: Any) -> Event:  # noqa: ANN401 - a number, or the user of each record
        """Return the event of a step on one of the batches."""

    @abstractmethod
    def draw(self, records: Any) -> Iterator[Any]:  # noqa: ANN401 - as above
        """Draw batches of indices, from the operating system's entropy."""


class PoissonBatches(Batches):
    """Poisson samples.

    Args:
        probability: of each record, in (0, 1].
    """

    def __init__(self, probability: float) -> None:
        super().__init__(None)
        self.probability = probability

    def charge(self, mechanism: Event, records: Any) -> Event:  # noqa: ANN401, ARG002 - as above
        """Return the Poisson-sampled event."""
        return poisson_sampled(self.probability, mechanism)

    def draw(self, records: Any) -> Iterator[NDArray[np.intp]]:  # noqa: ANN401 - as above
        """Draw samples for ever."""
        records, generator = whole("num_examples", records), np.random.default_rng()
        while True:
            size = generator.binomial(records, self.probability)
            yield generator.choice(records, size=size, replace=False, shuffle=False)


class SelectedBatches(Batches):
    """Batches of a strategy of jax-privacy.

    Args:
        strategy: to draw from.

    Raises:
        UnsupportedTrainingError: its steps cannot be charged one by one.
    """

    def __init__(self, strategy: Any) -> None:  # noqa: ANN401 - mypy does not read jax-privacy
        from jax_privacy import batch_selection as theirs  # noqa: PLC0415 - the strategy has imported it

        self._strategy = strategy
        self._by_user = type(strategy) is theirs.UserSelectionStrategy
        self._base = strategy.base_strategy if self._by_user else strategy
        super().__init__(getattr(self._base, "iterations", None))
        name = type(self._base).__name__
        if type(self._base) is theirs.CyclicPoissonSampling:
            if self._base.cycle_length != 1:
                raise UnsupportedTrainingError(
                    f"With cycle_length={self._base.cycle_length} a record can only be in every "
                    f"{self._base.cycle_length}th batch, which pays off with correlated noise, for a training that is "
                    f"charged as a whole. Leave cycle_length at 1."
                )
        elif type(self._base) is not theirs.FixedBatchSampling:
            reason = _REFUSED.get(name, "what its selection does to a step's cost is not known here")
            raise UnsupportedTrainingError(f"{name}: {reason}. Use CyclicPoissonSampling, or give event=...")

    def charge(self, mechanism: Event, records: Any) -> Event:  # noqa: ANN401 - as above
        """Return the event of a step on a Poisson sample, cut or not, or on a batch of a fixed size."""
        units = len(np.unique(records)) if self._by_user else whole("num_examples", records)
        base = self._base
        if not hasattr(base, "sampling_prob"):
            sampled = sampled_with_replacement if base.replace else sampled_without_replacement
            return sampled(units, int(base.batch_size), mechanism)
        if base.truncated_batch_size is None:
            return poisson_sampled(float(base.sampling_prob), mechanism)
        return truncated_poisson_sampled(units, float(base.sampling_prob), int(base.truncated_batch_size), mechanism)

    def draw(self, records: Any) -> Iterator[Any]:  # noqa: ANN401 - as above
        """Draw batches from the strategy."""
        return iter(self._strategy.batch_iterator(records, np.random.default_rng()))


def read_batches(batches: Any) -> Batches:  # noqa: ANN401 - a probability or a strategy
    """Read a selection of batches.

    Args:
        batches: Poisson sampling probability, or a strategy of jax-privacy.

    Raises:
        UnsupportedTrainingError: its steps cannot be charged one by one.
        ValueError: the probability is not in (0, 1].
    """
    if not isinstance(batches, bool) and isinstance(batches, Real):
        probability = float(batches)
        if not 0.0 < probability <= 1.0:
            raise ValueError(f"batches must be a probability in (0, 1], not {probability}.")
        return PoissonBatches(probability)
    if type(batches).__module__.partition(".")[0] == "jax_privacy":
        return SelectedBatches(batches)
    raise UnsupportedTrainingError(
        f"How {type(batches).__name__} selects records is not known here. Give batches=... a Poisson sampling "
        f"probability, or jax_privacy.batch_selection.CyclicPoissonSampling. The size of a shuffled loader's batches "
        f"over n is no sampling probability."
    )
