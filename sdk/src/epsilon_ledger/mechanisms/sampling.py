"""Poisson sampling: every record is included independently in each sample."""

from collections.abc import Sized
from typing import Final, Protocol, TypeVar

import numpy as np
from numpy.typing import NDArray

from epsilon_ledger.mechanisms import checks
from epsilon_ledger.mechanisms.mechanism import Clipped
from epsilon_ledger.mechanisms.randomness import randomness

Indices = NDArray[np.intp]

_AT_ONCE: Final = 1 << 16
"""Records that are sampled at once."""

Sample_co = TypeVar("Sample_co", bound=Sized, covariant=True)


class Sampler(Protocol[Sample_co]):
    """Source of an optimizer's samples."""

    @property
    def sampling_probability(self) -> float:
        """Probability of each record in a sample."""
        ...

    @property
    def expected_summands(self) -> float:
        """Divisor of a sum over a sample; public, unlike the actual number."""
        ...

    @property
    def clipped(self) -> Clipped:
        """The kind of summands: examples' vectors, or means of micro-batches."""
        ...

    @property
    def secure(self) -> bool:
        """Whether the samples are unpredictable; False if they are seeded."""
        ...

    def sample(self) -> Sample_co:
        """Draw a sample; its length is the number of summands."""
        ...


class PoissonSampler:
    """Samples that include each record independently with the same probability.

    Args:
        records: n, in [1, 1e12]; treated as public, like the size of a population in the ledger.
        sampling_probability: q, in (0, 1], rounded down to a multiple of 2^-64.
        expected_batch_size: public number instead of q n, if n is secret.
        insecure_seed: for tests: an integer or a numpy Generator. Samples must be as secret as noise.

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
        meaning = "the divisor of the sum"
        self._expected = (
            self._records * self._probability
            if expected_batch_size is None
            else checks.real("expected_batch_size", expected_batch_size, checks.ABOVE_ZERO, 1e12, meaning)
        )
        self._randomness = randomness(insecure_seed)

    @property
    def sampling_probability(self) -> float:
        """Probability q of each record in a sample."""
        return self._probability

    @property
    def expected_summands(self) -> float:
        """Expected size of a sample, q n."""
        return self._expected

    @property
    def clipped(self) -> Clipped:
        """One example's vector."""
        return "example"

    @property
    def secure(self) -> bool:
        """Whether the samples are unpredictable; False if they are seeded."""
        return self._randomness.secure

    def sample(self) -> Indices:
        """Draw a sample.

        Returns:
            (size of the sample,) indices of records, ascending, read-only; possibly empty.
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
    """Poisson samples divided into micro-batches, whose means are clipped instead of examples.

    Each record falls into a random micro-batch independently. Cutting the list of indices into equal pieces would move
    all later records, and their means, when one is added.

    Args:
        records: n, as for `PoissonSampler`.
        sampling_probability: q, as for `PoissonSampler`.
        microbatches: their number, in [1, 2^20], which divides the sum of the clipped means.
        insecure_seed: for tests: an integer or a numpy Generator.

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
        """Probability q of each record in a sample."""
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
        """Whether the samples are unpredictable; False if they are seeded."""
        return self._records.secure

    def sample(self) -> list[Indices]:
        """Draw a sample.

        Returns:
            Indices of the records of each non-empty micro-batch; read-only.
        """
        indices = self._records.sample()
        place = self._randomness.words(indices.size) % np.uint64(self._microbatches)
        order = np.argsort(place, kind="stable")
        _, starts = np.unique(place[order], return_index=True)
        batches = np.split(indices[order], starts[1:])
        for batch in batches:
            batch.flags.writeable = False
        return batches if indices.size else []
