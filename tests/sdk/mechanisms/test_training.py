"""Private steps: asked for before anything changes, divided by what is public, one for each sample."""

import copy
import math
import os
import pickle
import threading
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest

from epsilon_ledger import BudgetExceededError, gaussian, poisson_sampled
from epsilon_ledger.mechanisms import DpSgd, GaussianNoise, LaplaceNoise, PoissonSampler
from tests.sdk.fake_ledger import FakeRun
from tests.sdk.mechanisms.models import RECORDS, RULES, Floats, Optimizer, Q, Rule, optimizer, pulls


def everything(made: Optimizer) -> bytes:
    """All that a step may change, with the random streams and the sample."""
    return pickle.dumps({name: value for name, value in vars(made).items() if name not in {"_guard", "_run"}})


@pytest.mark.parametrize("kind", ["fixed norm", "adaptive norm"])
@pytest.mark.parametrize("rule", RULES)
def test_refused_step_changes_not_bit_and_can_be_asked_for_again(rule: Rule, kind: str) -> None:
    run = FakeRun(3)
    made = optimizer(rule, run=run, adaptive=kind == "adaptive norm")
    for _ in range(3):
        made.step(pulls(made.sample()))
    gradients = pulls(made.sample())
    before, untouched = everything(made), gradients.copy()
    for _ in range(2):
        with pytest.raises(BudgetExceededError):
            made.step(gradients)
        assert everything(made) == before
        assert np.array_equal(gradients, untouched)
    run.ledger.capacity = 4
    made.step(gradients)
    assert everything(made) != before
    assert (made.steps, len(run.asked)) == (4, 4)


def test_noise_of_step_is_that_of_its_event_over_expected_number() -> None:
    size = 200_000
    run = FakeRun()
    noise = GaussianNoise(1.3, clipping_norm=0.7)
    made = DpSgd(np.zeros(size), noise=noise, sampler=PoissonSampler(RECORDS, Q), run=run, learning_rate=1.0)
    made.sample()
    sample = made.sample()
    made.step(np.zeros((len(sample), size)))
    assert run.asked == [poisson_sampled(Q, gaussian(1.3))]
    assert np.std(np.asarray(made.params)) == pytest.approx(1.3 * 0.7 / (RECORDS * Q), rel=7 / math.sqrt(2 * size))


def test_empty_sample_is_step_of_noise_only() -> None:
    run = FakeRun()
    forms: list[Any] = [None, [], np.empty((0, 2, 3)), np.empty((0, 3))]
    for form in forms:
        made = optimizer(run=run, q=1e-15)
        assert len(made.sample()) == 0
        before = np.array(made.params)
        made.step(form)
        assert not np.array_equal(before, np.asarray(made.params))
    named = optimizer(run=run, params={"w": np.zeros((2, 2)), "b": np.zeros(1)}, q=1e-15)
    forms = [{"w": np.empty((0, 2, 2)), "b": []}, {}, None, []]
    for form in forms:
        named.sample()
        named.step(form)
    named.sample()
    with pytest.raises(ValueError, match="one row for each member"):
        named.step({"w": np.zeros((1, 2, 2)), "b": np.zeros((1, 1))})
    assert len(run.asked) == 8


def test_sample_stays_until_it_was_stepped_and_is_stepped_once() -> None:
    made = optimizer()
    with pytest.raises(RuntimeError, match="call sample"):
        made.step(None)
    sample = made.sample()
    assert made.sample() is sample
    made.step(pulls(sample))
    with pytest.raises(RuntimeError, match="call sample"):
        made.step(pulls(sample))
    assert made.steps == 1
    assert made.sample() is not sample


@pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning")
def test_drawn_sample_is_neither_copied_nor_discarded() -> None:
    made = optimizer(seed=None)
    state = made.state_dict()
    for copied in (copy.copy(made), copy.deepcopy(made), pickle.loads(pickle.dumps(made))):  # noqa: S301
        copied.sample()
    sample = made.sample()
    gradients = pulls(sample)
    for duplicate in (copy.copy, copy.deepcopy, pickle.dumps):
        with pytest.raises(RuntimeError, match="step it, and copy"):
            duplicate(made)
    made.load_state_dict(state)
    assert made.sample() is sample
    child = os.fork()
    if child == 0:
        try:
            made.step(gradients)
        except RuntimeError:
            os._exit(0 if made.sample() is not sample else 2)
        os._exit(1)
    assert os.waitpid(child, 0)[1] == 0
    made.step(gradients)


def test_seed_is_refused_in_later_attempt_of_run() -> None:
    run = FakeRun(attempt=2)
    noise, sampler = GaussianNoise(2.0, clipping_norm=0.5), PoissonSampler(RECORDS, Q, insecure_seed=1)
    seeded = DpSgd(np.zeros(6), noise=noise, sampler=sampler, run=run, learning_rate=0.1)
    releases = (
        seeded.sample,
        lambda: GaussianNoise(2.0, clipping_norm=0.5, insecure_seed=1).release(np.zeros(2), run=run),
        lambda: LaplaceNoise(1.0, l1_sensitivity=1.0, insecure_seed=1).release(np.zeros((1, 2)), run=run),
    )
    for release in releases:
        with pytest.raises(ValueError, match="attempt 2 of the run, and a seed would repeat"):
            release()
    assert run.asked == []


def test_threads_do_not_step_one_sample_twice() -> None:
    run, turned = FakeRun(), threading.Barrier(4)
    # It answers when four threads are waiting for it, or have been turned away.
    run.ledger.before = lambda _: turned.wait(10)
    made = optimizer(run=run)
    gradients = pulls(made.sample())

    def step() -> str:
        try:
            made.step(gradients)
        except RuntimeError as error:
            turned.wait(10)
            return str(error)
        return "stepped"

    with ThreadPoolExecutor(4) as threads:
        body = [future.result() for future in [threads.submit(step) for _ in range(4)]]
    assert sorted(answer.split(" ", 1)[0] for answer in body) == ["Another"] * 3 + ["stepped"]
    assert (made.steps, len(run.asked)) == (1, 1)


def test_step_that_was_charged_and_then_failed_does_not_use_its_sample_again(monkeypatch: pytest.MonkeyPatch) -> None:
    run = FakeRun()
    made = optimizer(run=run)
    gradients = pulls(made.sample())
    before = np.array(made.params)

    def broken(_: Floats) -> None:
        raise MemoryError

    monkeypatch.setattr(made, "_direction", broken)
    with pytest.raises(MemoryError):
        made.step(gradients)
    assert len(run.asked) == 1
    assert np.array_equal(before, np.asarray(made.params))
    with pytest.raises(RuntimeError, match="call sample"):
        made.step(gradients)
