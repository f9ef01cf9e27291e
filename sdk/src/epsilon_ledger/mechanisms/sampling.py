"""Poisson sampling: every record is drawn by its own coin, at each step anew."""

from collections.abc import Sized
from typing import Final, Protocol, TypeVar

import numpy as np
from numpy.typing import NDArray

from epsilon_ledger.mechanisms import checks
from epsilon_ledger.mechanisms.mechanism import Clipped
from epsilon_ledger.mechanisms.randomness import randomness

Indices = NDArray[np.intp]

_AT_ONCE: Final = 1 << 16
"""Coins that are thrown together."""

Sample_co = TypeVar("Sample_co", bound=Sized, covariant=True)


class Sampler(Protocol[Sample_co]):
    """What an optimizer takes its samples from."""

    @property
    def sampling_probability(self) -> float:
        """Chance of each record to be in a sample."""
        ...

    @property
    def expected_summands(self) -> float:
        """What a sum over a sample is divided by; public, unlike the real number."""
        ...

    @property
    def clipped(self) -> Clipped:
        """What a summand is: one example's vector, or the mean of a micro-batch."""
        ...

    def sample(self) -> Sample_co:
        """Draw a sample; its length is the number of summands."""
        ...


class PoissonSampler:
    """Samples in which each record is with the same probability, independently of all others.

    Args:
        records: n, how many there are, in [1, 1e12]; taken for public, as a population's size at the ledger.
        sampling_probability: q, in (0, 1]. The real chance of a record is q rounded down to a multiple of 2^-64.
        expected_batch_size: a public number in the place of q n, where n is to stay secret.
        insecure_seed: for tests: a whole number or a numpy Generator. Samples must be as secret as noise is.

    Raises:
        ValueError: an argument is out of its bounds.

    Source:
        Abadi et al. 2016 (arXiv 1607.00133), section 3.1; Mironov, Talwar, Zhang 2019 (arXiv 1908.10530).
    """

    def __init__(
        self,
        records: int,
        sampling_probability: float,
        *,
        expected_batch_size: float | None = None,
        insecure_seed: int | np.random.Generator | None = None,
    ) -> None:
        self._records = checks.whole("records", records, 1, 10**12, "how many there are to sample from")
        self._probability = checks.real(
            "sampling_probability", sampling_probability, 2.0**-64, 1.0, "the chance of each record to be in a sample"
        )
        # An integer, because not every q 2^64 is a float.
        self._threshold = int(self._probability * 2.0**64)
        meaning = "what the sum is divided by"
        self._expected = (
            self._records * self._probability
            if expected_batch_size is None
            else checks.real("expected_batch_size", expected_batch_size, checks.ABOVE_ZERO, 1e12, meaning)
        )
        self._randomness = randomness(insecure_seed)

    @property
    def sampling_probability(self) -> float:
        """Chance q of each record to be in a sample."""
        return self._probability

    @property
    def expected_summands(self) -> float:
        """Mean size of a sample, q n."""
        return self._expected

    @property
    def clipped(self) -> Clipped:
        """One example's vector."""
        return "example"

    @property
    def secure(self) -> bool:
        """Whether nobody can predict the samples; False if they are seeded."""
        return self._randomness.secure

    def sample(self) -> Indices:
        """Draw a sample.

        Returns:
            (size of the sample,) indices of records, ascending, read-only; perhaps none.
        """
        drawn = [
            start + np.flatnonzero(self._coins(min(_AT_ONCE, self._records - start)))
            for start in range(0, self._records, _AT_ONCE)
        ]
        indices = np.concatenate(drawn)
        indices.flags.writeable = False
        return indices

    def _coins(self, count: int) -> NDArray[np.bool_]:
        if self._probability == 1.0:
            return np.ones(count, dtype=np.bool_)
        return self._randomness.words(count) < np.uint64(self._threshold)


class MicrobatchSampler:
    """Poisson samples that are divided into micro-batches, of which the mean is clipped, not each example's vector.

    Each record of a sample falls into one of the micro-batches by a draw of its own. Cutting the list of indices into
    equal pieces instead would move all later records when one is added, and with them all later means.

    Args:
        records: n, as for `PoissonSampler`.
        sampling_probability: q, as for `PoissonSampler`.
        microbatches: how many there are, in [1, 2^20]; the sum of the clipped means is divided by it.
        insecure_seed: for tests: a whole number or a numpy Generator.

    Raises:
        ValueError: an argument is out of its bounds.
    """

    def __init__(
        self,
        records: int,
        sampling_probability: float,
        microbatches: int,
        *,
        insecure_seed: int | np.random.Generator | None = None,
    ) -> None:
        self._microbatches = checks.whole("microbatches", microbatches, 1, 1 << 20, "how many there are in a sample")
        self._randomness = randomness(insecure_seed)
        self._records = PoissonSampler(records, sampling_probability, insecure_seed=self._randomness.generator)

    @property
    def sampling_probability(self) -> float:
        """Chance q of each record to be in a sample."""
        return self._records.sampling_probability

    @property
    def expected_summands(self) -> float:
        """Number of micro-batches."""
        return float(self._microbatches)

    @property
    def clipped(self) -> Clipped:
        """The mean of a micro-batch."""
        return "microbatch"

    @property
    def secure(self) -> bool:
        """Whether nobody can predict the samples; False if they are seeded."""
        return self._records.secure

    def sample(self) -> list[Indices]:
        """Draw a sample.

        Returns:
            Indices of the records of each micro-batch that is not empty; read-only.
        """
        indices = self._records.sample()
        place = self._randomness.words(indices.size) % np.uint64(self._microbatches)
        order = np.argsort(place, kind="stable")
        _, starts = np.unique(place[order], return_index=True)
        batches = np.split(indices[order], starts[1:])
        for batch in batches:
            batch.flags.writeable = False
        return batches if indices.size else []
