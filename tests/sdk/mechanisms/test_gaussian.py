"""Gaussian noise: what is charged is what is drawn."""

import copy
import math
import pickle
import types
from collections.abc import Generator
from typing import Any

import mpmath
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.accounting.base_rdp import gaussian_noise
from app.accounting.events import NeighboringRelation
from app.accounting.events.serialization import event_from_dict
from app.accounting.formulas.noise_schedules import scheduled_noise
from epsilon_ledger import BudgetExceededError, Event, gaussian, poisson_sampled
from epsilon_ledger._wire.noise_decay import DecayMode
from epsilon_ledger.mechanisms import GaussianNoise, Unmetered
from epsilon_ledger.mechanisms.arrays import Arrays
from tests.sdk.fake_ledger import FakeRun
from tests.sdk.mechanisms.models import UNMETERED

MANY = 200_000
# The standard deviation of n normals has a relative error of 1 / sqrt(2 n); seven of those.
SPREAD = 7 / math.sqrt(2 * MANY)


@given(st.sampled_from(["time", "step", "exp"]), st.floats(0.5, 1e6), st.floats(0, 0.01), st.integers(0, 500))
def test_decays_are_exact(mode: DecayMode, z: float, rate: float, t: int) -> None:
    noise = GaussianNoise(z, clipping_norm=1.0, decay_mode=mode, decay_rate=rate)
    noise.load_state_dict({"releases": t, "clipping_norm": 1.0})
    with mpmath.workdps(50):
        k = mpmath.mpf(rate)
        exact = z * {"time": 1 / (1 + k * t), "step": (1 - k) ** t, "exp": mpmath.exp(-k * t)}[mode]
        assert abs(noise.noise_multiplier / exact - 1) < 1e-13
    assert noise.noise_multiplier == pytest.approx(float(scheduled_noise(mode, z, rate, np.array([t]))[0]), rel=1e-12)
    assert noise.event == gaussian(noise.noise_multiplier)
    assert noise.standard_deviation == noise.noise_multiplier


@pytest.mark.parametrize("mode", ["time", "step", "exp", None])
def test_every_release_is_what_was_foretold(mode: DecayMode | None) -> None:
    run = FakeRun()
    noise = GaussianNoise(2.0, clipping_norm=3.0, decay_mode=mode, decay_rate=None if mode is None else 0.01)
    foretold = [noise.event_at(release) for release in range(20)]
    for _ in foretold:
        noise.release(np.zeros(1), run=run)
    assert run.asked == foretold
    if mode is not None:
        with pytest.raises(ValueError, match="has shrunk"):
            noise.event_at(10**6)
        noise.load_state_dict({"releases": 10**6, "clipping_norm": 3.0})
        with pytest.raises(ValueError, match=r"At release 1000000 .* below 0\.001"):
            noise.release(np.zeros(1), run=run)
        assert run.asked == foretold


@pytest.mark.parametrize("seed", [None, 3])
def test_noise_has_deviation_that_is_charged_and_follows_norm_and_decay(seed: int | None) -> None:
    noise = GaussianNoise(0.8, clipping_norm=5.0, decay_mode="exp", decay_rate=0.3, insecure_seed=seed)
    assert noise.secure is (seed is None)
    for norm in (5.0, 0.01, 700.0):
        noise.clipping_norm = norm
        run = FakeRun()
        noisy = noise.release(np.full(MANY, 2.5 * norm), run=run)
        (event,) = run.asked
        z = gaussian_noise(event_from_dict(event), NeighboringRelation.ADD_OR_REMOVE_ONE)
        assert abs(noisy.std() / (z * norm) - 1) < SPREAD
        assert abs(noisy.mean() / norm - 2.5) < 7 * z / math.sqrt(MANY)


def test_means_of_micro_batches_cost_what_half_noise_does() -> None:
    noise = GaussianNoise(3.0, clipping_norm=2.0, clipped="microbatch", insecure_seed=1)
    assert noise.event == gaussian(3.0, clipped="microbatch")
    for relation in NeighboringRelation:
        assert gaussian_noise(event_from_dict(noise.event), relation) == 1.5
    # One record turns a clipped mean by up to 4: 1.5 times that is the noise.
    assert noise.release(np.zeros(MANY), run=UNMETERED).std() == pytest.approx(1.5 * 4, rel=SPREAD)


def test_arrays_of_any_form_come_back_in_that_form() -> None:
    noise = GaussianNoise(1e-3, clipping_norm=1.0)
    one = noise.release(np.arange(6, dtype=np.float32).reshape(2, 3), run=UNMETERED)
    several = noise.release([np.array(7.0), np.arange(3)], run=UNMETERED)
    named = noise.release({"w": np.ones((2, 2)), "b": np.full(1, 5.0)}, run=UNMETERED)
    assert one == pytest.approx(np.arange(6).reshape(2, 3), abs=0.02)
    assert isinstance(several, list)
    assert [part.shape for part in several] == [(), (3,)]
    assert float(several[0]) == pytest.approx(7, abs=0.02)
    assert list(named) == ["w", "b"]
    assert named["b"] == pytest.approx([5], abs=0.02)
    assert all(part.dtype == np.float64 for part in [one, *several, *named.values()])


def test_clipping_and_releasing_are_one_call_where_vectors_are_at_hand() -> None:
    vectors = {"w": np.full((4, 2, 2), 100.0), "b": np.zeros((4, 1))}
    run = FakeRun()
    noisy = GaussianNoise(1e-3, clipping_norm=2.0).clip_and_release(vectors, run=run, sampling_probability=0.5)
    assert noisy["w"] == pytest.approx(np.full((2, 2), 4.0), abs=0.04)
    assert noisy["b"].shape == (1,)
    assert run.asked == [poisson_sampled(0.5, gaussian(1e-3))]
    with pytest.raises(ValueError, match="no common first axis"):
        GaussianNoise(1.0, clipping_norm=2.0).clip_and_release([np.ones((2, 2)), np.ones((3, 2))], run=run)
    with pytest.raises(ValueError, match="no common first axis"):
        GaussianNoise(1.0, clipping_norm=2.0).clip_and_release(np.array(1.0), run=run)


def test_refusal_changes_nothing_and_prepared_release_is_drawn_once() -> None:
    noise = GaussianNoise(2.0, clipping_norm=1.0, decay_mode="step", decay_rate=0.1, insecure_seed=1)
    noise.release(np.zeros(2), run=FakeRun())
    before, total = pickle.dumps(noise), np.ones(4)
    with pytest.raises(BudgetExceededError):
        noise.release(total, run=FakeRun(0))
    with pytest.raises(BudgetExceededError):
        noise.clip_and_release(np.ones((3, 4)), run=FakeRun(0))
    assert pickle.dumps(noise) == before
    assert total.tolist() == [1] * 4
    release = noise.prepare([np.ones((3, 2))])
    with pytest.raises(BudgetExceededError):
        release.authorize(FakeRun(0))
    with pytest.raises(RuntimeError, match="not admitted"):
        release.draw()
    release.authorize(FakeRun())
    assert release.draw().shape == (2,)
    with pytest.raises(RuntimeError, match="drawn before"):
        release.draw()
    assert noise.releases == 2


def test_change_while_ledger_is_asked_does_not_reach_release() -> None:
    noise = GaussianNoise(1.0, clipping_norm=1.0, decay_mode="step", decay_rate=0.5)
    run = FakeRun()
    run.ledger.before = lambda _: noise.load_state_dict({"releases": 9, "clipping_norm": 1e-6})
    noisy = noise.release(np.zeros(MANY), run=run)
    assert run.asked == [gaussian(1.0)]
    assert abs(noisy.std() - 1) < SPREAD


def test_checkpoint_goes_on_where_it_was_written_with_other_noise() -> None:
    noise = GaussianNoise(2.0, clipping_norm=1.0, decay_mode="time", decay_rate=0.1)
    for _ in range(3):
        noise.release(np.zeros(2), run=UNMETERED)
    noise.clipping_norm = 0.5
    state = noise.state_dict()
    assert state == {"releases": 3, "clipping_norm": 0.5}
    resumed = GaussianNoise(2.0, clipping_norm=1.0, decay_mode="time", decay_rate=0.1)
    resumed.load_state_dict(state)
    assert (resumed.releases, resumed.clipping_norm, resumed.event) == (3, 0.5, noise.event)
    for other in (resumed, copy.deepcopy(noise), pickle.loads(pickle.dumps(noise))):  # noqa: S301
        assert not np.array_equal(other.release(np.zeros(9), run=UNMETERED), noise.release(np.zeros(9), run=UNMETERED))


UNCLIPPED: list[Any] = [*(np.array([1.0, bad]) for bad in (math.nan, math.inf)), [np.zeros(2), np.array([-math.inf])]]
NO_ARRAYS: list[Any] = [[], {}, ["text"], np.array(["text"]), np.array([1j]), [[1.0]], np.array([True])]


@pytest.mark.parametrize(("totals", "answer"), [(UNCLIPPED, "not clipped"), (NO_ARRAYS, "give")])
def test_sum_without_finite_numbers_is_not_asked_for(totals: list[Arrays], answer: str) -> None:
    run = FakeRun()
    for total in totals:
        with pytest.raises(ValueError, match=answer):
            GaussianNoise(1.0, clipping_norm=1.0).release(total, run=run)
    assert run.asked == []


NO_NUMBERS: list[Any] = [0, -1, math.nan, math.inf, True, "1", None]
WRONG: list[tuple[dict[str, Any], str]] = [
    *(
        ({"noise_multiplier": value}, r"noise_multiplier is .* at least 0\.001 and at most 1e\+06")
        for value in (*NO_NUMBERS, 1e-4, 2e6, 1j, np.True_, np.array([1.0, 2.0]))
    ),
    *(
        ({"clipping_norm": value}, r"clipping_norm is .* at least 1e-09 and at most 1e\+09")
        for value in (*NO_NUMBERS, 1e-10, 1e10)
    ),
    ({"decay_mode": "exp"}, "both decay_mode and decay_rate"),
    ({"decay_rate": 0.1}, "both decay_mode and decay_rate"),
    ({"decay_mode": "linear", "decay_rate": 0.1}, '"time", "step" or "exp"'),
    ({"decay_mode": "step", "decay_rate": 1.0}, "at least 0 and below 1"),
    ({"decay_mode": "exp", "decay_rate": -0.1}, r"at least 0 and at most 1e\+06"),
    ({"decay_mode": "time", "decay_rate": math.nan}, "decay_rate is nan"),
    ({"decay_mode": "time", "decay_rate": True}, "decay_rate is True"),
    ({"clipped": "batch"}, '"example" or "microbatch"'),
]


def test_wrong_argument_is_refused() -> None:
    for arguments, answer in WRONG:
        with pytest.raises(ValueError, match=answer):
            GaussianNoise(**{"noise_multiplier": 1.0, "clipping_norm": 1.0} | arguments)
        if "clipping_norm" in arguments:
            noise = GaussianNoise(1.0, clipping_norm=1.0)
            with pytest.raises(ValueError, match="clipping_norm is"):
                noise.clipping_norm = arguments["clipping_norm"]
            assert noise.clipping_norm == 1.0


def test_state_of_something_else_changes_nothing() -> None:
    noise = GaussianNoise(1.0, clipping_norm=2.0)
    wrong: list[Any] = [None, {}, {"releases": 1}, {"releases": 1, "clipping_norm": 1.0, "more": 0}]
    wrong += [{"releases": releases, "clipping_norm": 1.0} for releases in (-1, True)]
    for state in (*wrong, {"releases": 1, "clipping_norm": math.nan}):
        with pytest.raises(ValueError, match=r"must be|has the members"):
            noise.load_state_dict(state)
    assert noise.state_dict() == {"releases": 0, "clipping_norm": 2.0}


class Awaited:
    async def authorize(self, count: int = 1, *, event: Event | None = None) -> None:
        pass


class AwaitedGenerator:
    @types.coroutine
    def authorize(self, count: int = 1, *, event: Event | None = None) -> Generator[object, None, None]:
        yield count, event


def test_release_without_run_needs_reason() -> None:
    noise = GaussianNoise(1.0, clipping_norm=1.0)
    with pytest.raises(TypeError, match='run=Unmetered\\("why"\\)'):
        noise.release(np.zeros(1), run=None)  # type: ignore[call-overload]
    with pytest.raises(TypeError, match="run"):
        noise.release(np.zeros(1))  # type: ignore[call-overload]
    for run in (Awaited(), AwaitedGenerator()):
        with pytest.raises(TypeError, match="at once"):
            noise.release(np.zeros(1), run=run)
    for reason in ("", " ", None):
        with pytest.raises(ValueError, match="Give the reason"):
            Unmetered(reason)  # type: ignore[arg-type]
    assert repr(UNMETERED) == "Unmetered('a test')"
    assert noise.releases == 0
    for q in (0.0, 1.5, math.nan, True):
        with pytest.raises(ValueError, match="sampling_probability is"):
            noise.release(np.zeros(1), run=UNMETERED, sampling_probability=q)
