"""Laplace noise for local privacy: the sensitivity is said, and what is charged is what is drawn."""

import math
import pickle
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray
from scipy import stats

from app.accounting.base_rdp import rdp
from app.accounting.events import NeighboringRelation as Relation
from app.accounting.events.serialization import event_from_dict
from epsilon_ledger import BudgetExceededError, laplace
from epsilon_ledger.mechanisms import LaplaceNoise
from tests.sdk.fake_ledger import FakeRun
from tests.sdk.mechanisms.models import UNMETERED

MANY = 200_000
KOLMOGOROV = 3.5  # P(sqrt(n) D > 3.5) is at most 5e-11


def softmax(values: NDArray[np.float64]) -> NDArray[np.float64]:
    powers = np.exp(values - values.max(axis=1, keepdims=True))
    return np.asarray(powers / powers.sum(axis=1, keepdims=True))


@pytest.mark.parametrize("seed", [None, 3])
@pytest.mark.parametrize(("epsilon", "sensitivity"), [(0.5, 2.0), (100.0, 2.0), (4.0, 1e-6)])
def test_noise_has_scale_that_is_charged(seed: int | None, epsilon: float, sensitivity: float) -> None:
    noise = LaplaceNoise(epsilon=epsilon, l1_sensitivity=sensitivity, insecure_seed=seed)
    assert noise.secure is (seed is None)
    assert noise.scale == pytest.approx(sensitivity / epsilon, rel=1e-15)
    assert noise.event == laplace(1 / epsilon)
    values = np.full((MANY // 10, 10), 0.1)
    noisy = noise.release(values, run=UNMETERED)
    assert noisy.shape == values.shape
    drawn = np.sort((noisy - values).ravel() / noise.scale)
    at = stats.laplace.cdf(drawn)
    assert np.abs(at - (np.arange(MANY) + 0.5) / MANY).max() * math.sqrt(MANY) < KOLMOGOROV


def test_vectors_of_probabilities_are_two_apart_and_epsilon_says_so() -> None:
    certain = softmax(np.array([[800.0, 0.0, 0.0], [0.0, 800.0, 0.0]]))
    distance = float(np.abs(certain[0] - certain[1]).sum())
    assert distance == 2
    noise = LaplaceNoise(epsilon=1.0, l1_sensitivity=distance)
    assert noise.scale == 2  # with a sensitivity of 1 it would be 1, and the real epsilon 2
    # The loss of an output at one of the two vectors, by the density: at most epsilon, and reached.
    outputs = np.random.default_rng(1).uniform(-3, 3, (1000, 3))
    losses = (np.abs(outputs - certain[1]) - np.abs(outputs - certain[0])).sum(axis=1) / noise.scale
    assert np.abs(losses).max() <= noise.epsilon
    assert np.abs(certain[0] - certain[1]).sum() / noise.scale == noise.epsilon


@given(st.floats(2e-3, 4e5), st.floats(1e-9, 1e9), st.sampled_from(list(Relation)))
def test_service_charges_client_epsilon_under_every_relation(
    noise_multiplier: float, sensitivity: float, relation: Relation
) -> None:
    noise = LaplaceNoise(noise_multiplier, l1_sensitivity=sensitivity, neighboring_relation=relation.value)
    assert noise.scale == noise_multiplier * sensitivity
    answer = noise_multiplier * (2 if relation is Relation.REPLACE_ONE else 1)
    assert noise.event == laplace(answer)
    # The largest loss, epsilon, is the divergence of infinite order.
    price = float(rdp(event_from_dict(noise.event), np.array([2.0**60]), relation)[0])
    assert price == pytest.approx(noise.epsilon, rel=1e-9)


def test_each_release_is_asked_for_once_for_all_clients() -> None:
    run = FakeRun(2)
    noise = LaplaceNoise(3.0, l1_sensitivity=2.0, insecure_seed=1)
    first = noise.release(np.zeros((4, 3)), run=run)
    second = noise.release(np.zeros((4, 3)), run=run)
    assert run.asked == [laplace(3.0)] * 2
    assert np.unique([first, second]).size == 24
    before = pickle.dumps(noise)
    with pytest.raises(BudgetExceededError):
        noise.release(np.zeros((4, 3)), run=run)
    assert pickle.dumps(noise) == before
    assert noise.releases == 2


def test_rounding_to_lattice_is_paid_for_by_scale() -> None:
    noise = LaplaceNoise(1.0, l1_sensitivity=2.0, insecure_seed=1)
    width = 4096
    noisy = noise.release(np.zeros((50, width)), run=UNMETERED)
    plain = np.random.default_rng(1).laplace(size=noisy.size).reshape(noisy.shape)
    spacing = 2.0**-27
    assert np.array_equal(noisy, np.rint(plain * ((2 + width * spacing) / spacing)) * spacing)


NO_NUMBERS: list[Any] = [0, -1, math.nan, math.inf, True, "1"]
WRONG: list[tuple[dict[str, Any], str]] = [
    *(({"l1_sensitivity": value}, "l1_sensitivity is") for value in (*NO_NUMBERS, 1e-10, 1e10)),
    *(({"noise_multiplier": value}, "noise_multiplier is") for value in NO_NUMBERS),
    *(({"noise_multiplier": None, "epsilon": value}, "epsilon is") for value in NO_NUMBERS),
    ({"noise_multiplier": None}, "noise_multiplier or epsilon, and not both"),
    ({"epsilon": 1.0}, "noise_multiplier or epsilon, and not both"),
    ({"neighboring_relation": "replace"}, "add_or_remove_one, replace_one, replace_special"),
    ({"noise_multiplier": 6e5, "neighboring_relation": "replace_one"}, "the event's noise multiplier is"),
]


def test_wrong_argument_is_refused() -> None:
    for arguments, answer in WRONG:
        with pytest.raises(ValueError, match=answer):
            LaplaceNoise(**{"noise_multiplier": 1.0, "l1_sensitivity": 1.0} | arguments)
    with pytest.raises(TypeError, match="l1_sensitivity"):
        LaplaceNoise(1.0)  # type: ignore[call-arg]


def test_values_of_another_form_are_not_asked_for_and_checkpoint_keeps_count() -> None:
    run, noise = FakeRun(), LaplaceNoise(1.0, l1_sensitivity=2.0)
    wrong: list[Any] = [[math.nan], [math.inf], ["a"], [1j], [True]]
    for values in (np.zeros(3), np.zeros((2, 2, 2)), *(np.array([row]) for row in wrong)):
        with pytest.raises(ValueError, match=r"\(n_clients, k\)"):
            noise.release(values, run=run)
    assert run.asked == []
    for shape in ((0, 3), (3, 0)):
        assert noise.release(np.zeros(shape), run=run).shape == shape
    resumed = LaplaceNoise(1.0, l1_sensitivity=2.0)
    resumed.load_state_dict(noise.state_dict())
    assert resumed.releases == 2
    with pytest.raises(ValueError, match="A state of LaplaceNoise has the members"):
        resumed.load_state_dict({"step": 1})
