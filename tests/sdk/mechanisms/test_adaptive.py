"""Adaptive clipping: the norm follows a quantile, and the count that it follows is charged for what it is."""

import math
from typing import Any, Literal

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from app.accounting.base_rdp import gaussian_noise
from app.accounting.events import NeighboringRelation as Relation
from app.accounting.events.serialization import event_from_dict
from epsilon_ledger import adaptive_clipping, composed, gaussian, poisson_sampled
from epsilon_ledger.mechanisms import AdaptiveClipping, GaussianNoise
from tests.sdk.fake_ledger import FakeRun
from tests.sdk.mechanisms.models import UNMETERED

Mode = Literal["geometric", "linear"]

MANY = 300


def mechanism(norm: float = 1.0, rate: float = 0.2, mode: Mode = "geometric", **noise: Any) -> AdaptiveClipping:  # noqa: ANN401 - passed on
    stddev = noise.pop("stddev", 1e-5)
    how: dict[str, Any] = {"learning_rate": rate, "mode": mode, "fraction_stddev": stddev}
    inner = GaussianNoise(2.0, clipping_norm=norm, **noise)
    return AdaptiveClipping(inner, expected_summands=100.0, clipping_norm_bounds=(1e-3, 50), **how)


def vectors(within: int, beyond: int, norm: float) -> NDArray[np.float64]:
    return np.array([[norm * 0.5, 0.0]] * within + [[0.0, norm * 2]] * beyond).reshape(-1, 2)


@given(st.sampled_from(["geometric", "linear"]), st.integers(0, 150), st.integers(0, 150), st.floats(0.5, 5))
def test_norm_moves_by_formula(mode: Mode, within: int, beyond: int, norm: float) -> None:
    adaptive = mechanism(norm, mode=mode)
    adaptive.clip_and_release(vectors(within, beyond, norm), run=UNMETERED)
    # The divisor is the expected 100; what is counted is the sum of bits less 1/2.
    fraction = 0.5 + (within - beyond) / 2 / 100
    moved = norm - 0.2 * (fraction - 0.5) if mode == "linear" else norm * math.exp(-0.2 * (fraction - 0.5))
    assert adaptive.clipping_norm == pytest.approx(moved, abs=0.2 * 50 * 1e-5 * 8)


@pytest.mark.parametrize("seed", [None, 5])
def test_sum_and_count_have_deviations_that_are_charged(seed: int | None) -> None:
    run = FakeRun()
    noise = GaussianNoise(1.5, clipping_norm=2.0, insecure_seed=seed)
    # lr = 1, linear, target 1/2: the norm moves by exactly the noisy count over the expected number.
    adaptive = AdaptiveClipping(noise, expected_summands=40.0, learning_rate=1.0, fraction_stddev=0.01, mode="linear")
    rows = np.full((3, 50), 100.0)
    sums, counts = [], []
    for _ in range(MANY):
        noise.clipping_norm = 2.0
        sums.append(adaptive.clip_and_release(rows, run=run))
        counts.append((2.0 - adaptive.clipping_norm) * 40)
    answer = adaptive_clipping(gradient_noise_multiplier=1.5, count_noise_stddev=0.4)
    assert run.asked == [answer] * MANY
    assert adaptive.secure is (seed is None)
    assert np.std(sums) == pytest.approx(1.5 * 2.0, rel=7 / math.sqrt(2 * 50 * MANY))
    assert np.mean(sums) == pytest.approx(3 * 2 / math.sqrt(50), abs=7 * 3 / math.sqrt(50 * MANY))
    assert np.std(counts) == pytest.approx(0.4, rel=7 / math.sqrt(2 * MANY))
    assert np.mean(counts) == pytest.approx(-3 / 2, abs=7 * 0.4 / math.sqrt(MANY))
    # An example moves the sum by 2 and the count by 1/2: the distance in units of the noise is what z stands for.
    z = gaussian_noise(event_from_dict(answer), Relation.ADD_OR_REMOVE_ONE)
    assert z == pytest.approx(1 / math.hypot(2 / 3.0, 0.5 / 0.4), rel=1e-12)
    assert adaptive.noise_multiplier == pytest.approx(z, rel=1e-12)


def test_means_of_micro_batches_move_count_and_sum_twice_as_far() -> None:
    adaptive = mechanism(stddev=0.01, clipped="microbatch")
    assert adaptive.clipped == "microbatch"
    assert adaptive.event == composed([gaussian(2.0, clipped="microbatch"), gaussian(2.0, clipped="microbatch")])
    for relation in Relation:
        z = gaussian_noise(event_from_dict(adaptive.event), relation)
        # The mean goes from one end of the ball to the other, its bit from 0 to 1.
        assert z == pytest.approx(1 / math.hypot(2 / 2.0, 1 / 1.0), rel=1e-12)
    assert adaptive.noise_multiplier / 2 == pytest.approx(z, rel=1e-12)


@pytest.mark.parametrize("mode", ["geometric", "linear"])
def test_norm_stays_within_its_bounds(mode: Mode) -> None:
    for within, beyond in ((1000, 0), (0, 1000)):
        adaptive = mechanism(1.0, mode=mode, rate=1000.0)
        for _ in range(3):
            adaptive.clip_and_release(vectors(within, beyond, adaptive.clipping_norm), run=UNMETERED)
            assert adaptive.clipping_norm == (1e-3 if within else 50)


def test_next_noise_follows_moved_norm_and_decay() -> None:
    noise = GaussianNoise(4.0, clipping_norm=1.0, decay_mode="step", decay_rate=0.5)
    adaptive = AdaptiveClipping(noise, expected_summands=10.0, learning_rate=2.0, fraction_stddev=1e-3)
    run = FakeRun()
    # None of 10 is within: C grows to e.
    adaptive.clip_and_release(np.full((10, 1), 50.0), run=run, sampling_probability=0.1)
    assert adaptive.clipping_norm == pytest.approx(math.e, rel=0.02)
    noisy = adaptive.clip_and_release(np.zeros((0, 100_000)), run=run, sampling_probability=0.1)
    assert noisy.std() == pytest.approx(2.0 * math.e, rel=0.05)
    assert run.asked == [
        poisson_sampled(0.1, adaptive_clipping(gradient_noise_multiplier=z, count_noise_stddev=0.01))
        for z in (4.0, 2.0)
    ]
    assert adaptive.releases == 2


WRONG: list[tuple[dict[str, Any], str]] = [
    ({"expected_summands": 0}, "expected_summands is 0"),
    ({"expected_summands": math.inf}, "expected_summands is inf"),
    ({"learning_rate": 0.0}, "learning_rate is"),
    ({"learning_rate": math.nan}, "learning_rate is nan"),
    ({"target_unclipped_quantile": 1.1}, "target_unclipped_quantile is"),
    ({"target_unclipped_quantile": True}, "target_unclipped_quantile is"),
    ({"fraction_stddev": 0.0}, "fraction_stddev is"),
    ({"fraction_stddev": 1e-6}, "fraction_stddev times expected_summands is 9"),
    ({"fraction_stddev": 1e5}, r"at least 0\.001 and at most 500000"),
    ({"mode": "exponential"}, '"geometric" or "linear"'),
    ({"clipping_norm_bounds": (0.0, 1.0)}, "the first of clipping_norm_bounds is"),
    ({"clipping_norm_bounds": (0.1, math.inf)}, "the second of clipping_norm_bounds is"),
    ({"clipping_norm_bounds": (2.0, 3.0)}, r"clipping_norm of the noise is 1\.0"),
]


def test_arguments_out_of_bounds_are_refused() -> None:
    for arguments, answer in WRONG:
        with pytest.raises(ValueError, match=answer):
            AdaptiveClipping(GaussianNoise(1.0, clipping_norm=1.0), **{"expected_summands": 10.0} | arguments)
