"""Poisson samples: every record by its own coin, and micro-batches that one record cannot shift."""

import math
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray
from scipy import stats

from epsilon_ledger.mechanisms import MicrobatchSampler, PoissonSampler

SIGMAS = 7.0  # P(|N| > 7) = 2.6e-12
RARE = 1e-11


class Told:
    """Gives the words that it was made with."""

    secure = True
    generator = None

    def __init__(self, *words: int) -> None:
        self._words = list(words)

    def words(self, count: int) -> NDArray[np.uint64]:
        given, self._words = self._words[:count], self._words[count:]
        return np.array(given, dtype=np.uint64)


@pytest.mark.parametrize("seed", [None, 9])
@pytest.mark.parametrize("q", [0.02, 0.5, 0.9])
def test_every_record_has_its_own_coin(seed: int | None, q: float) -> None:
    records, samples = 100, 1000
    sampler = PoissonSampler(records, q, insecure_seed=seed)
    assert sampler.secure is (seed is None)
    drawn = np.zeros((samples, records), dtype=np.int64)
    for row in drawn:
        row[sampler.sample()] = 1
    per_record = drawn.sum(axis=0)
    assert np.abs(per_record - samples * q).max() < (SIGMAS + 1) * math.sqrt(samples * q * (1 - q))
    # Coins are independent: sizes have the binomial's variance, and neighbours in records or samples do not agree more.
    sizes = drawn.sum(axis=1)
    expected = records * q * (1 - q)
    kurtosis = 3 + (1 - 6 * q * (1 - q)) / expected
    assert abs(sizes.var() - expected) < SIGMAS * expected * math.sqrt((kurtosis - 1) / samples)
    centred = drawn - q
    for one, two in ((centred[:, 1:], centred[:, :-1]), (centred[1:], centred[:-1])):
        assert abs((one * two).sum()) < SIGMAS * q * (1 - q) * math.sqrt(one.size)


@given(st.floats(1e-12, 1.0, exclude_max=True))
def test_coin_has_chance_of_q_rounded_down_to_bit(q: float) -> None:
    sampler = PoissonSampler(4, q)
    limit = math.floor(q * 2**64)
    sampler._randomness = Told(limit - 1, limit, 0, 2**64 - 1)  # type: ignore[assignment]
    assert sampler.sample().tolist() == [0, 2]


@pytest.mark.parametrize("seed", [None, 4])
def test_records_fall_into_micro_batches_one_by_one(seed: int | None) -> None:
    sampler = MicrobatchSampler(50, 0.5, 5, insecure_seed=seed)
    assert sampler.secure is (seed is None)
    assert (sampler.clipped, PoissonSampler(2, 0.5).clipped) == ("microbatch", "example")
    samples = 600
    together, drawn, sizes = 0, 0, []
    for _ in range(samples):
        batches = sampler.sample()
        everybody = np.concatenate(batches) if batches else np.empty(0)
        assert np.unique(everybody).size == everybody.size
        assert all(batch.size for batch in batches)
        assert len(batches) <= 5
        sizes += [batch.size for batch in batches]
        # Two neighbouring records share a micro-batch no more often than chance.
        drawn += int(np.isin([10, 11], everybody).all())
        together += sum(int(np.isin([10, 11], batch).all()) for batch in batches)
    assert stats.binomtest(drawn, samples, 0.25).pvalue > RARE
    assert stats.binomtest(together, drawn, 0.2).pvalue > RARE
    # Equal pieces of a sample would differ by one at most.
    assert max(sizes) - min(sizes) > 5


def test_micro_batches_are_what_bits_say() -> None:
    sampler = MicrobatchSampler(6, 1.0, 3)
    sampler._randomness = Told(7, 3, 1, 4, 9, 6)  # type: ignore[assignment]
    # Modulo 3: 1, 0, 1, 1, 0, 0; the third micro-batch is empty.
    batches = sampler.sample()
    assert [batch.tolist() for batch in batches] == [[1, 4, 5], [0, 2, 3]]
    assert not any(batch.flags.writeable for batch in batches)


def test_divisor_is_public_and_sample_cannot_be_changed() -> None:
    one, two = (PoissonSampler(1000, 0.1, insecure_seed=3) for _ in range(2))
    sample = one.sample()
    assert np.array_equal(sample, two.sample())
    assert not np.array_equal(sample, one.sample())
    with pytest.raises(ValueError, match="read-only"):
        sample[0] = 0
    assert np.array_equal(PoissonSampler(200_000, 1.0).sample(), np.arange(200_000))
    assert MicrobatchSampler(3, 1e-15, 4).sample() == PoissonSampler(3, 1e-15).sample().tolist() == []
    assert PoissonSampler(1000, 0.1).expected_summands == 100
    assert PoissonSampler(1000, 0.1, expected_batch_size=128).expected_summands == 128
    assert MicrobatchSampler(1000, 0.1, 8).expected_summands == 8
    assert MicrobatchSampler(1000, 0.1, 8).sampling_probability == 0.1


def test_wrong_argument_is_refused() -> None:
    wrong: list[tuple[Any, Any, str]] = [
        *((value, 0.1, f"records is {value}") for value in (0, 1.5, True)),
        *((10, value, f"sampling_probability is {value}") for value in (0.0, 1.1, math.nan, True)),
    ]
    for records, q, answer in wrong:
        with pytest.raises(ValueError, match=answer):
            PoissonSampler(records, q)
        with pytest.raises(ValueError, match=answer):
            MicrobatchSampler(records, q, 2)
    with pytest.raises(ValueError, match="expected_batch_size is 0"):
        PoissonSampler(10, 0.1, expected_batch_size=0)
    with pytest.raises(ValueError, match="microbatches is 0"):
        MicrobatchSampler(10, 0.1, 0)
