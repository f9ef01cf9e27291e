"""The demo's DP-SGD does what it tells the ledger."""

import numpy as np
import pytest

from app.demo.training import (
    DELTA,
    MODEL,
    DpSgd,
    Floats,
    accuracy,
    clipped,
    load_patients,
    per_example_gradients,
    poisson_sample,
    step_event,
)


@pytest.fixture
def rng() -> np.random.Generator:
    return np.random.default_rng(20_261_121)


def test_clipping_bounds_the_norm_and_keeps_directions_and_short_gradients(rng: np.random.Generator) -> None:
    gradients = rng.normal(size=(500, 30)) * np.geomspace(1e-6, 1e6, 500)[:, np.newaxis]
    assert np.linalg.norm(clipped(gradients, 0.7), axis=1).max() <= 0.7 * (1 + 1e-12)
    gradients = rng.normal(size=(200, 5))
    shortened, norms = clipped(gradients, 1.0), np.linalg.norm(gradients, axis=1, keepdims=True)
    assert shortened == pytest.approx(gradients / np.maximum(norms, 1.0))
    short = norms[:, 0] <= 1.0
    assert 0 < short.sum() < 200
    assert np.array_equal(shortened[short], gradients[short])
    assert clipped(np.zeros((3, 2)), 1.0).tolist() == [[0.0, 0.0]] * 3


def test_gradients_are_those_of_the_logistic_loss(rng: np.random.Generator) -> None:
    weights, features = rng.normal(size=4), rng.normal(size=(6, 4))
    labels = np.array([0.0, 1.0, 1.0, 0.0, 1.0, 0.0])

    def losses(at: Floats) -> Floats:
        return np.logaddexp(0.0, features @ at) - labels * (features @ at)

    h = 1e-6
    numeric = np.column_stack([(losses(weights + h * e) - losses(weights - h * e)) / (2 * h) for e in np.eye(4)])
    assert per_example_gradients(weights, features, labels) == pytest.approx(numeric, abs=1e-8)
    found = per_example_gradients(np.array([1e6]), np.array([[1.0], [-1.0]]), np.array([0.0, 1.0]))
    assert found.tolist() == [[1.0], [pytest.approx(1.0)]]


def test_noise_has_the_scale_that_the_ledger_is_told(rng: np.random.Generator) -> None:
    model = DpSgd(sampling_probability=0.5, noise_multiplier=3.0, clipping_norm=0.25, learning_rate=2.0)
    # Features of zero have gradients of zero: what is left is noise.
    moved = model.step(np.zeros(40_000), np.zeros((8, 40_000)), np.ones(8), rng)
    noise_on_the_sum = moved * (0.5 * 8) / 2.0
    assert noise_on_the_sum.std() == pytest.approx(3.0 * 0.25, rel=0.02)
    assert noise_on_the_sum.mean() == pytest.approx(0.0, abs=0.02)


def test_one_record_moves_the_sum_by_at_most_the_norm(rng: np.random.Generator) -> None:
    model = DpSgd(sampling_probability=1.0, noise_multiplier=1.0, clipping_norm=0.5, learning_rate=1.0)
    weights = rng.normal(size=3)
    features, labels = 100.0 * rng.normal(size=(20, 3)), rng.integers(0, 2, 20).astype(float)

    def noisy_sum(rows: int) -> Floats:
        # The same seed draws the same noise; a step divides by the public number of records.
        coins = np.random.default_rng(7)
        coins.random(20 - rows)
        return (weights - model.step(weights, features[:rows], labels[:rows], coins)) * rows

    difference = np.linalg.norm(noisy_sum(20) - noisy_sum(19))
    assert 0.0 < difference <= 0.5 * (1 + 1e-9)


def test_poisson_samples_have_mean_and_variance_of_independent_coins_and_may_be_empty(rng: np.random.Generator) -> None:
    drawn = np.array([poisson_sample(455, 0.07, rng) for _ in range(4_000)])
    sizes = drawn.sum(axis=1)
    assert sizes.mean() == pytest.approx(455 * 0.07, rel=0.01)
    assert sizes.var() == pytest.approx(455 * 0.07 * 0.93, rel=0.1)
    assert drawn.mean(axis=0) == pytest.approx(0.07, abs=0.025)
    model = DpSgd(sampling_probability=1e-12, noise_multiplier=1.0, clipping_norm=1.0, learning_rate=1e-13)
    assert np.all(np.isfinite(model.step(np.zeros(2), np.ones((3, 2)), np.ones(3), rng)))


def test_event_told_to_the_ledger_is_the_one_used() -> None:
    features = np.array([[1.0], [2.0], [-1.0], [-3.0]])
    assert accuracy(np.array([1.0]), features, np.array([1.0, 0.0, 0.0, 0.0])) == 0.75
    assert step_event() == {
        "type": "poisson_sampled",
        "sampling_probability": MODEL.sampling_probability,
        "event": {"type": "gaussian", "noise_multiplier": MODEL.noise_multiplier},
    }


def test_patients_are_scaled_by_published_ranges_and_split_equally_each_time() -> None:
    patients, again = load_patients(), load_patients()
    assert np.array_equal(patients.features, again.features)
    assert patients.features.shape == (455, 31)
    assert patients.test_features.shape == (114, 31)
    assert 1 / patients.count > DELTA
    every = np.vstack([patients.features, patients.test_features])
    # The published ranges are rounded, so a scaled value may lie a little outside.
    assert np.abs(every).max() < 1.03
    assert np.all(every.max(axis=0) > 0.97)
    assert np.all(every[:, -1] == 1.0)
