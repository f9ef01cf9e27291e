"""Schedules as segments: the counts, the direction of the rounding, and the lemma behind it."""

from itertools import pairwise
from math import exp

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from app.accounting.errors import InvalidEventError
from app.accounting.formulas.mechanisms import gaussian_rdp
from app.accounting.formulas.noise_schedules import (
    EXACT_STEPS,
    KNOTS,
    DecayMode,
    least_noise_segments,
    scheduled_noise,
    segments,
)
from app.accounting.formulas.sampled_gaussian import sampled_gaussian_rdp
from tests.soak import thinned

DIGITS = 15
ORDERS = np.array([1.5, 3.0, 8.5, 16.0, 40.0, 300.0])


def rdp_of(q: float, z: float) -> NDArray[np.float64]:
    return sampled_gaussian_rdp(q, z, ORDERS) if q < 1 else gaussian_rdp(z, ORDERS)


@pytest.mark.parametrize("step", [0, 1, 7, 10_000])
def test_the_formulas_are_mindarmours(step: int) -> None:
    t = np.array([step])
    assert scheduled_noise("time", 4.0, 6e-4, t) == pytest.approx(4.0 / (1 + 6e-4 * step), rel=1e-15)
    assert scheduled_noise("step", 4.0, 6e-4, t) == pytest.approx(4.0 * (1 - 6e-4) ** step, rel=1e-12)
    assert scheduled_noise("exp", 4.0, 6e-4, t) == pytest.approx(4.0 * exp(-6e-4 * step), rel=1e-14)


@pytest.mark.parametrize("mode", ["time", "step", "exp"])
def test_few_steps_are_charged_each_by_itself(mode: DecayMode) -> None:
    plan = segments(mode, 4.0, 6e-4, 17, EXACT_STEPS)
    assert [z for z, _ in plan] == scheduled_noise(mode, 4.0, 6e-4, np.arange(17, 17 + EXACT_STEPS)).tolist()
    assert {halves for _, halves in plan} == {2}


@pytest.mark.parametrize("steps", [1, 1000, 1001, 10_000_000])
@pytest.mark.parametrize("mode", ["time", "step", "exp"])
def test_constant_noise_is_one_segment(mode: DecayMode, steps: int) -> None:
    assert segments(mode, 1.5, 0.0, 10**9, steps) == [(1.5, 2 * steps)]
    assert least_noise_segments(mode, 1.5, 0.0, 10**9, steps) == [(1.5, steps)]


@given(
    mode=st.sampled_from(["time", "step", "exp"]),
    rate=st.floats(-9, -5.5).map(lambda exponent: 10**exponent),
    first=st.integers(0, 10**6),
    steps=st.integers(1, 10**6),
)
def test_the_halves_add_up_and_the_noise_shrinks(mode: DecayMode, rate: float, first: int, steps: int) -> None:
    plan = segments(mode, 30.0, rate, first, steps)
    assert sum(halves for _, halves in plan) == 2 * steps
    assert min(halves for _, halves in plan) >= 1
    assert len(plan) <= max(EXACT_STEPS, KNOTS)
    ends = scheduled_noise(mode, 30.0, rate, np.array([first, first + steps - 1]))
    noise = [z for z, _ in plan]
    assert noise[0] == ends[0]
    assert noise[-1] == ends[1]
    assert all(before > after for before, after in pairwise(noise))
    reached = first - 1
    for z, count in least_noise_segments(mode, 30.0, rate, first, steps):
        reached += count
        assert scheduled_noise(mode, 30.0, rate, np.array([reached]))[0] == z
    assert reached == first + steps - 1


SCHEDULES: list[tuple[DecayMode, float, float, int, float]] = [
    ("time", 8.0, 1e-3, 0, 0.01),
    ("time", 8.0, 6e-4, 1000, 1.0),
    ("time", 1e5, 1.0, 0, 0.01),
    ("step", 5.0, 4e-4, 0, 0.01),
    ("exp", 2.0, 1e-4, 0, 0.001),
    ("exp", 1e3, 1.5e-3, 0, 0.01),
    ("exp", 1e5, 3.6e-3, 0, 1.0),
]


@pytest.mark.parametrize(("mode", "z0", "rate", "first", "q"), thinned(SCHEDULES, 3))
def test_many_steps_are_never_charged_too_little_and_hardly_too_much(
    mode: DecayMode, z0: float, rate: float, first: int, q: float
) -> None:
    steps = 1200
    plan = segments(mode, z0, rate, first, steps)
    at_knots = np.array([rdp_of(q, z) for z, _ in plan])
    halves = np.array([count for _, count in plan])
    charged = halves @ at_knots / 2
    exact = np.sum(
        [rdp_of(q, float(z)) for z in scheduled_noise(mode, z0, rate, np.arange(first, first + steps))], axis=0
    )
    assert np.all(charged >= exact * (1 - 1e-12))
    assert np.all(charged <= exact * (1 + 5e-4))
    # The bound on the excess that holds without knowing the exact sum: the distances follow from the halves.
    distances = [halves[0] - 1]
    for count in halves[1:-1]:
        distances.append(count - distances[-1])
    assert sum(distances) == steps - 1
    assert np.all(charged - exact <= (np.array(distances) - 1) / 2 @ np.diff(at_knots, axis=0) + 1e-12 * exact)


@pytest.mark.parametrize(
    ("mode", "rate", "first", "steps", "below"),
    [("time", 1.0, 0, 2000, 1000), ("step", 0.5, 0, 12, 10), ("exp", 1.0, 3, 10_000, 7), ("exp", 1e6, 4, 5, 4)],
)
def test_a_schedule_that_runs_out_of_noise_is_refused_with_the_step(
    mode: DecayMode, rate: float, first: int, steps: int, below: int
) -> None:
    with pytest.raises(InvalidEventError, match=f"falls below 0.001 at step {below}, .* to step {first + steps - 1}:"):
        segments(mode, 1.0, rate, first, steps)
    if below > first:
        assert segments(mode, 1.0, rate, first, below - first)[-1][0] >= 1e-3
