"""The rules of the optimizers, their arguments and checkpoints, and whether they learn."""

import math
import pickle
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from epsilon_ledger import gaussian, poisson_sampled
from epsilon_ledger.mechanisms import (
    AdaptiveClipping,
    DpAdam,
    DpMomentum,
    DpSgd,
    GaussianNoise,
    MicrobatchSampler,
    PoissonSampler,
)
from tests.sdk.fake_ledger import FakeRun
from tests.sdk.mechanisms.models import RECORDS, RULES, UNMETERED, Floats, Q, Rule, optimizer, pulls


def noisy_means(seed: int) -> Iterator[Floats]:
    """The noisy mean gradients of `optimizer(seed=seed)` by the definition: clip, sum, noise, expected number."""
    noise = np.random.default_rng(seed)
    sampler = PoissonSampler(RECORDS, Q, insecure_seed=seed)
    for t in range(1000):
        total = np.zeros(6)
        for gradient in pulls(sampler.sample()).reshape(-1, 6):
            total += gradient * min(1.0, 0.5 / float(np.linalg.norm(gradient)))
        yield (total + 2.0 * math.exp(-0.1 * t) * 0.5 * noise.standard_normal(6)) / (RECORDS * Q)


def by_the_book(rule: Rule, steps: int) -> Floats:
    """Parameters after steps of `optimizer(rule)`, from the papers' formulas."""
    params, one, two = np.linspace(-1, 1, 6), np.zeros(6), np.zeros(6)
    for t, gradient in zip(range(1, steps + 1), noisy_means(1), strict=False):
        if rule is DpSgd:
            params = params - 0.1 * gradient
        elif rule is DpMomentum:
            one = 0.9 * one + gradient
            params = params - 0.1 * one
        else:
            one = 0.9 * one + 0.1 * gradient
            two = 0.999 * two + 0.001 * gradient * gradient
            params = params - 0.1 * (one / (1 - 0.9**t)) / (np.sqrt(two / (1 - 0.999**t)) + 1e-8)
    return params


@pytest.mark.parametrize("rule", RULES)
def test_steps_follow_formulas(rule: Rule) -> None:
    made = optimizer(rule)
    for _ in range(7):
        made.step(pulls(made.sample()))
    assert np.ravel(np.asarray(made.params)) == pytest.approx(by_the_book(rule, 7), abs=1e-6)
    assert made.steps == 7


@pytest.mark.parametrize("kind", [np.float32, np.float64])
def test_parameters_of_any_form_are_moved_in_place_together(kind: type[np.floating]) -> None:
    flat = optimizer()
    named_params = {
        "a": np.linspace(-1, 1, 6)[:2].astype(kind),
        "b": np.linspace(-1, 1, 6)[2:].reshape(2, 2).astype(kind),
    }
    listed_params = [part.copy() for part in named_params.values()]
    named, listed = optimizer(params=named_params), optimizer(params=listed_params)
    for _ in range(3):
        gradients = pulls(flat.sample())
        rows = gradients.reshape(-1, 6)
        parts = [rows[:, :2], rows[:, 2:].reshape(-1, 2, 2)]
        assert np.array_equal(flat.sample(), named.sample())
        listed.sample()
        flat.step(gradients)
        named.step({"b": parts[1], "a": parts[0]})
        listed.step(parts)
    assert named.params is named_params
    expected = np.ravel(np.asarray(flat.params))
    for params in (list(named_params.values()), listed_params):
        assert [part.dtype for part in params] == [kind, kind]
        assert np.concatenate([part.ravel() for part in params]) == pytest.approx(expected, abs=1e-6)


def test_micro_batches_are_clipped_as_means_and_divided_by_their_number() -> None:
    run = FakeRun()
    noise = GaussianNoise(1e-3, clipping_norm=0.5, clipped="microbatch")
    made = DpSgd(np.zeros(6), noise=noise, sampler=MicrobatchSampler(RECORDS, Q, 4), run=run, learning_rate=1.0)
    batches = made.sample()
    means = [pulls(batch).mean(axis=0).ravel() for batch in batches]
    made.step(np.array(means))
    clipped = np.sum([mean * min(1.0, 0.5 / float(np.linalg.norm(mean))) for mean in means], axis=0)
    assert np.asarray(made.params) == pytest.approx(-clipped / 4, abs=1e-3)
    assert run.asked == [poisson_sampled(Q, gaussian(1e-3, clipped="microbatch"))]
    with pytest.raises(ValueError, match="one row for each member"):
        made.step(np.zeros((len(made.sample()) + 1, 6)))


def test_arguments_that_do_not_fit_together_are_refused() -> None:
    example, microbatch = PoissonSampler(RECORDS, Q), MicrobatchSampler(RECORDS, Q, 4)
    noise = GaussianNoise(1.0, clipping_norm=1.0)
    arguments: dict[str, Any] = {"noise": noise, "sampler": example, "run": UNMETERED, "learning_rate": 0.1}
    means = GaussianNoise(1.0, clipping_norm=1.0, clipped="microbatch")
    fixed = np.zeros(2)
    fixed.flags.writeable = False
    wrong: list[tuple[Any, dict[str, Any], str]] = [
        (DpSgd, {"sampler": microbatch}, 'made with clipped="microbatch"'),
        (DpSgd, {"noise": means}, "a PoissonSampler without"),
        (DpSgd, {"noise": AdaptiveClipping(noise, expected_summands=11.0)}, "=sampler.expected_summands"),
        (DpSgd, {"learning_rate": 0.0}, "learning_rate is 0.0"),
        (DpSgd, {"learning_rate": math.nan}, "learning_rate is nan"),
        *((DpMomentum, {"momentum": momentum}, "momentum is") for momentum in (1.0, -0.1, math.nan, True)),
        *((DpAdam, {"betas": betas}, "of betas is") for betas in ((1.0, 0.9), (0.9, 1.0), (math.nan, 0.9))),
        (DpAdam, {"stability": 0.0}, "stability is"),
    ]
    for rule, other, answer in wrong:
        with pytest.raises(ValueError, match=answer):
            rule(np.zeros(2), **arguments | other)
    for params in (fixed, np.zeros(2, dtype=np.int64), [np.zeros(1), fixed]):
        with pytest.raises(ValueError, match="must be a float to be moved"):
            DpSgd(params, **arguments)
    with pytest.raises(TypeError, match="Unmetered"):
        DpSgd(np.zeros(2), **(arguments | {"run": None}))
    with pytest.raises(TypeError, match="run"):
        DpSgd(np.zeros(2), noise=noise, sampler=example, learning_rate=0.1)  # type: ignore[call-arg]


def test_gradients_of_another_form_are_not_asked_for() -> None:
    run = FakeRun()
    made = optimizer(params=[np.zeros((2, 3)), np.zeros(2)], run=run)
    count = len(made.sample())
    right = [np.zeros((count, 2, 3)), np.zeros((count, 2))]
    wrong: list[tuple[Any, type[Exception], str]] = [
        (None, ValueError, "shaped as the parameters"),
        ({"w": right[0]}, ValueError, "shaped as the parameters"),
        (right[:1], ValueError, "gradients of 1 arrays, but the parameters are 2"),
        ([right[0][1:], right[1][1:]], ValueError, "one row for each member of the sample"),
        ([right[0], np.zeros((count, 3))], ValueError, "one row for each member of the sample"),
        ([right[0], right[1].astype(np.complex128)], ValueError, "real numbers"),
        (right[0], TypeError, "as a list of arrays"),
    ]
    for gradients, error, answer in wrong:
        with pytest.raises(error, match=answer):
            made.step(gradients)
    named = optimizer(params={"w": np.zeros(1)}, run=run)
    rows = np.zeros((len(named.sample()), 1))
    others: list[Any] = [{"v": rows}, [rows], rows]
    for other in others:
        with pytest.raises(ValueError, match="have the names"):
            named.step(other)
    assert run.asked == []
    made.step(right)
    named.step({"w": rows})
    assert len(run.asked) == 2


def test_diverged_model_is_not_asked_for_and_diverged_gradient_counts_as_zero() -> None:
    run = FakeRun()
    params = np.zeros((2, 3))
    made = optimizer(params=params, run=run)
    gradients = pulls(made.sample())
    gradients[0, 0, 0] = math.nan
    params[0, 0] = math.inf
    with pytest.raises(ValueError, match="diverged"):
        made.step(gradients)
    assert run.asked == []
    params[0, 0] = 0.0
    made.step(gradients)
    assert np.isfinite(params).all()


@pytest.mark.parametrize("rule", RULES)
def test_checkpoint_goes_on_where_it_was_written(rule: Rule) -> None:
    made = optimizer(rule, adaptive=True)
    for _ in range(3):
        made.step(pulls(made.sample()))
    made.learning_rate = 0.05
    state = pickle.loads(pickle.dumps(made.state_dict()))  # noqa: S301
    resumed = optimizer(rule, np.array(made.params), adaptive=True, seed=2)
    resumed.load_state_dict(state)
    assert pickle.dumps(resumed.state_dict()) == pickle.dumps(made.state_dict())
    assert (resumed.steps, resumed.learning_rate, resumed.event) == (3, 0.05, made.event)
    made.step(pulls(made.sample()))
    assert pickle.dumps(resumed.state_dict()) == pickle.dumps(state)
    for member, bad in [("steps", -1), ("noise", {}), ("moments", [np.zeros(5)]), ("learning_rate", math.inf)]:
        with pytest.raises(ValueError, match=r"must|members|moments"):
            resumed.load_state_dict(state | {member: bad})
    with pytest.raises(ValueError, match="moments"):
        resumed.load_state_dict(state | {"moments": [np.full(6, math.nan)] * 3})
    assert pickle.dumps(resumed.state_dict()) == pickle.dumps(state)
