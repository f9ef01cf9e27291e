"""Clipping, and sums that neither order nor size can change in a single bit."""

import math
from fractions import Fraction
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from epsilon_ledger.mechanisms.clipping import ClippedSum, clipped_sum, rounded_norm
from epsilon_ledger.mechanisms.lattice import LARGEST, Lattice

Floats = NDArray[np.float64]

sizes = st.tuples(st.integers(1, 12), st.integers(1, 9), st.integers(0, 5))
norms = st.floats(1e-9, 1e9)


def gradients(seed: int, size: tuple[int, int, int], spread: float = 3.0) -> list[Floats]:
    """Vectors of two parameters whose norms differ by orders of magnitude."""
    draw = np.random.default_rng(seed)
    count, one, two = size
    scales = np.exp(spread * draw.standard_normal((count, 1)))
    return [scales * draw.standard_normal((count, one)), scales * draw.standard_normal((count, two))]


def clipped_one_by_one(rows: list[Floats], norm: float) -> Floats:
    """The definition, in plain Python."""
    total = [0.0] * sum(part.shape[1] for part in rows)
    for vector in np.concatenate(rows, axis=1).tolist():
        length = math.sqrt(math.fsum(value * value for value in vector))
        factor = min(1.0, norm / length) if length else 1.0
        total = [one + factor * value for one, value in zip(total, vector, strict=True)]
    return np.array(total)


def real(total: ClippedSum, lattice: Lattice) -> Floats:
    return total.multiples * lattice.spacing


@given(st.integers(0, 1000), sizes, norms)
def test_every_vector_is_scaled_down_to_norm_over_all_its_parts(
    seed: int, size: tuple[int, int, int], norm: float
) -> None:
    rows = [part * norm for part in gradients(seed, size)]
    lattice = Lattice.for_scales(norm)
    total = clipped_sum(rows, norm, lattice)
    expected = clipped_one_by_one(rows, norm)
    assert np.abs(real(total, lattice) - expected).max() <= size[0] * (lattice.spacing / 2 + 1e-14 * norm)
    lengths = np.linalg.norm(np.concatenate(rows, axis=1), axis=1)
    assert (total.within, total.count) == (int(np.count_nonzero(lengths <= norm)), size[0])


@given(st.integers(0, 1000), sizes, norms, st.data())
def test_one_vector_more_moves_sum_by_exactly_itself_clipped(
    seed: int, size: tuple[int, int, int], norm: float, data: st.DataObject
) -> None:
    rows = [part * norm for part in gradients(seed, size)]
    lattice = Lattice.for_scales(norm, norm * data.draw(st.floats(1e-3, 1e3)))
    out = data.draw(st.integers(0, size[0] - 1))
    everybody = clipped_sum(rows, norm, lattice)
    others = clipped_sum([np.delete(part, out, axis=0) for part in rows], norm, lattice)
    alone = clipped_sum([part[[out]] for part in rows], norm, lattice)
    assert np.array_equal(everybody.multiples, others.multiples + alone.multiples)
    assert (everybody.within, everybody.count) == (others.within + alone.within, others.count + 1)
    coordinates = [Fraction(value) * Fraction(lattice.spacing) for value in alone.multiples.tolist()]
    limit = rounded_norm(norm, len(coordinates), lattice)
    assert sum(value * value for value in coordinates) <= Fraction(limit) ** 2


def test_order_and_blocks_of_vectors_change_no_bit(monkeypatch: pytest.MonkeyPatch) -> None:
    lattice = Lattice.for_scales(1.0)
    for seed in range(20):
        rows = gradients(seed, (50, 7, 5))
        order = np.random.default_rng(seed).permutation(50)
        whole = clipped_sum(rows, 1.0, lattice)
        turned = clipped_sum([part[order] for part in rows], 1.0, lattice)
        with monkeypatch.context() as small:
            small.setattr("epsilon_ledger.mechanisms.clipping._AT_ONCE", 1 + 12 * (seed % 3))
            blocks = clipped_sum(rows, 1.0, lattice)
        assert whole.multiples.tobytes() == turned.multiples.tobytes() == blocks.multiples.tobytes()
        assert (blocks.within, blocks.count) == (whole.within, 50)


def test_clipping_takes_all_tensors_together() -> None:
    # Each tensor has norm 5, each value is below 5: only both tensors together exceed the norm of 6.
    rows = [np.array([[3.0, 4.0]]), np.array([[0.0, 5.0]])]
    lattice = Lattice.for_scales(6.0)
    total = clipped_sum(rows, 6.0, lattice)
    assert real(total, lattice) == pytest.approx(np.array([3, 4, 0, 5]) * 6 / math.sqrt(50), abs=1e-7)
    assert total.within == 0
    below = clipped_sum(rows, 7.1, lattice)
    assert real(below, lattice).tolist() == [3, 4, 0, 5]
    assert below.within == 1
    # "At most the norm" is within.
    assert clipped_sum(rows[:1], 5.0, lattice).within == 1


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf, 1e200])
@pytest.mark.parametrize("kind", [np.float32, np.float64])
def test_vector_without_finite_norm_counts_as_zero(bad: float, kind: type[np.floating]) -> None:
    with np.errstate(over="ignore"):
        rows = [np.array([[0.5], [bad], [0.25]]).astype(kind), np.array([[0.0], [0.5], [0.25]]).astype(kind)]
    lattice = Lattice.for_scales(1.0)
    total = clipped_sum(rows, 1.0, lattice)
    assert real(total, lattice).tolist() == [0.75, 0.25]
    assert (total.within, total.count) == (2, 3)


def test_more_summands_than_can_be_added_exactly_are_refused() -> None:
    with pytest.raises(ValueError, match="at most 4194304 can be added up exactly"):
        clipped_sum([np.empty(((1 << 22) + 1, 0))], 1.0, Lattice.for_scales(1.0))


@given(st.floats(1e-9, 1e15), st.floats(1e-9, 1e15))
def test_spacing_is_power_of_two_that_fits_larger_scale(one: float, two: float) -> None:
    spacing = Lattice.for_scales(one, two).spacing
    assert math.frexp(spacing)[0] == 0.5
    assert 2**28 <= max(one, two) / spacing < 2**29


@given(
    st.lists(st.floats(-1e6, 1e6), min_size=1, max_size=20), st.floats(1e-3, 1e6), st.integers(0, 1000), st.floats(0, 1)
)
def test_noise_is_added_without_rounding(values: list[float], scale: float, seed: int, move: float) -> None:
    lattice = Lattice.for_scales(1.0, scale)
    here, there = lattice.multiples(np.array(values)), lattice.multiples(np.array(values) + move)
    noise = np.random.default_rng(seed).standard_normal(len(values))
    one, two = lattice.add(here, noise.copy(), scale), lattice.add(there, noise.copy(), scale)
    # The same noise on two data sets: the outputs differ by what the data differ by, to the last bit.
    assert np.array_equal(two - one, (there - here) * lattice.spacing)
    alone = lattice.add(np.zeros(len(values)), noise.copy(), scale)
    assert np.array_equal(one, alone + here * lattice.spacing)
    assert np.abs(alone - noise * scale).max() <= lattice.spacing
    assert np.array_equal(np.rint(one / lattice.spacing), one / lattice.spacing)


def test_values_are_limited_and_never_moved_apart() -> None:
    lattice = Lattice.for_scales(1.0)
    values = np.array([-1e300, -1e8, -0.3, 0.0, 0.3, 1e7, 1e300])
    multiples = lattice.multiples(values)
    assert multiples[0] == -LARGEST
    assert multiples[-1] == LARGEST
    assert multiples[1:-1] * lattice.spacing == pytest.approx(values[1:-1].clip(-(2**24), 2**24), abs=lattice.spacing)
    assert all(
        (after - before - 1) * lattice.spacing <= value - last
        for (before, after), (last, value) in zip(pairwise(multiples), pairwise(values), strict=True)
    )


@given(st.floats(1e-9, 1e9), st.floats(1e-3, 1e6), st.integers(1, 10**9))
def test_rounding_makes_noise_larger_by_no_more_than_is_documented(norm: float, z: float, size: int) -> None:
    larger = rounded_norm(norm, size, Lattice.for_scales(norm, z * norm)) / norm - 1
    assert larger <= math.sqrt(size) * max(1.0, z) * 2.0**-28 + (size + 16) * 2.0**-52
    assert rounded_norm(1.0, 10**6, Lattice.for_scales(1.0, 1e6)) == pytest.approx(2.95, abs=0.01)
