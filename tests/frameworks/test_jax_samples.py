"""One draw for each step of JAX, charged as it is drawn; no noise is added twice, and none that depends on a size."""
# ruff: noqa: ANN401 - arrays and trees

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax_privacy.batch_selection import (
    BallsInBinsSampling,
    BMinSepSampling,
    CyclicPoissonSampling,
    FixedBatchSampling,
    UserSelectionStrategy,
)

from epsilon_ledger import (
    LedgerUnavailableError,
    gaussian,
    sampled_with_replacement,
    sampled_without_replacement,
    truncated_poisson_sampled,
)
from epsilon_ledger.jax import UnsupportedTrainingError, authorized, secret_key
from tests.frameworks.jax_trainings import (
    DATA,
    KEPT,
    NOISE,
    POISSON,
    PROBABILITY,
    SIZE,
    STEP,
    N,
    Private,
    padded,
    with_optax,
)
from tests.sdk.fake_ledger import FakeRun


def refuses(match: str) -> Any:
    return pytest.raises(UnsupportedTrainingError, match=match)


def test_batch_is_stepped_once(run: FakeRun) -> None:
    training = Private()
    step = training.authorized(run)
    with refuses("takes 1 batch"):
        training.take(step, np.arange(16))
    indices = next(step.batch_iterator(N))
    training.take(step, indices)
    with refuses("takes 1 batch"):
        training.take(step, indices)
    # What the first iteration left behind covers nothing.
    left, again = step.batch_iterator(N), step.batch_iterator(N)
    next(left)
    indices = next(again)
    training.take(step, indices)
    with refuses("takes 1 batch"):
        training.take(step, indices)
    assert len(run.asked) == 2


USERS = np.repeat(np.arange(8), 8)
SELECTIONS: list[tuple[Any, Any, Any, int | None]] = [
    (FixedBatchSampling(batch_size=16, iterations=2), N, sampled_without_replacement(N, 16, gaussian(NOISE)), 16),
    (FixedBatchSampling(16, 8, replace=True), N, sampled_with_replacement(N, 16, gaussian(NOISE)), 16),
    (UserSelectionStrategy(POISSON, 2), USERS, STEP, None),
    (UserSelectionStrategy(FixedBatchSampling(4, 2)), USERS, sampled_without_replacement(8, 4, gaussian(NOISE)), 4),
    (
        CyclicPoissonSampling(0.5, 8, truncated_batch_size=16),
        N,
        truncated_poisson_sampled(N, 0.5, 16, gaussian(NOISE)),
        None,
    ),
]


@pytest.mark.parametrize(("batches", "records", "event", "size"), SELECTIONS)
def test_selection_of_batches_is_charged(
    run: FakeRun, batches: Any, records: Any, event: Any, size: int | None
) -> None:
    step = Private().authorized(run, batches=batches)
    drawn = next(step.batch_iterator(records))
    assert size is None or len(drawn) == size
    assert step.event == event


def test_batches_that_cannot_be_charged_by_steps_are_refused(run: FakeRun) -> None:
    turned_away: list[tuple[Any, str]] = [
        (CyclicPoissonSampling(0.5, 8, cycle_length=4), "cycle_length=4"),
        (BallsInBinsSampling(8, 4), "every n-th batch"),
        (BMinSepSampling(0.5, 8, 2), "depends on those before"),
        (UserSelectionStrategy(BallsInBinsSampling(8, 4)), "every n-th batch"),
        (iter([np.arange(16)]), "not known here"),
        (None, "How are records drawn"),
        (True, "How bool selects"),
    ]
    for batches, reason in turned_away:
        with refuses(reason):
            Private().authorized(run, batches=batches)
    for probability in (0.0, 1.5):
        with pytest.raises(ValueError, match="probability in"):
            Private().authorized(run, batches=probability)


def test_batches_of_seed_are_not_drawn_again(run: FakeRun) -> None:
    training = Private()
    step = training.authorized(run)
    first = [batch.tolist() for batch in step.batch_iterator(N, rng=7)]
    generator = np.random.default_rng(7)
    training.take(step, next(step.batch_iterator(N, rng=generator)))
    for rng in (7, np.random.default_rng(7)):
        with refuses("draw their batches again"):
            next(step.batch_iterator(N, rng=rng))
    for other in (None, generator, np.random.default_rng()):
        assert [batch.tolist() for batch in step.batch_iterator(N, rng=other)] != first


# Keys of the noise.


def test_state_that_is_not_handed_on_repeats_no_noise(run: FakeRun) -> None:
    training = Private()
    step = training.authorized(run, KEPT)
    batches = step.batch_iterator(N)
    first = training.state
    training.take(step, next(batches))
    params, opt_state, _ = training.state
    training.state = (params, opt_state, first[2])
    with refuses("PRNG key of the step before"):
        training.take(step, next(batches))
    assert len(run.asked) == 1


def test_step_may_be_repeated_when_ledger_did_not_answer(run: FakeRun, monkeypatch: pytest.MonkeyPatch) -> None:
    def unavailable(*_: object, **__: object) -> None:
        raise LedgerUnavailableError("no answer")

    training = Private()
    step = training.authorized(run)
    indices = next(step.batch_iterator(N))
    with monkeypatch.context() as away:
        away.setattr(run, "authorize", unavailable)
        with pytest.raises(LedgerUnavailableError):
            training.take(step, indices)
    training.take(step, indices)
    assert run.asked == [STEP]


def test_seed_that_another_process_may_have_used_is_refused(run: FakeRun) -> None:
    run.authorize(event=STEP)
    for key in (0, jax.random.key(42)):
        training = Private(key)
        step = training.authorized(run)
        with refuses("begins with the seed"):
            training.take(step, next(step.batch_iterator(N)))
    assert run.asked == [STEP]
    training = Private()
    step = training.authorized(run)
    training.take(step, next(step.batch_iterator(N)))
    assert len(run.asked) == 2
    words = [tuple(jax.random.key_data(secret_key()).tolist()) for _ in range(3)]
    assert len(set(words)) == 3
    assert all(word[0] for word in words)


def test_optax_steps_padded_samples_only(run: FakeRun) -> None:
    """Its padding has no gradient."""
    optimizer, update = with_optax(NOISE)
    params = {"w": jnp.ones(4)}
    state = (params, optimizer.init(params))
    step: Any = authorized(jax.jit(update), run, noise=optimizer, batches=PROBABILITY)
    batches = step.batch_iterator(N)
    for _ in range(3):
        sample = padded(next(batches), SIZE)
        state = step(*state, *sample)
    assert run.asked == [STEP] * 3
    with refuses("Optax divides the noise"):
        step(*state, DATA[next(batches)[:3]], np.ones(3, np.float32))
    next(batches), next(batches)
    step(*state, sample[0], np.ones(SIZE, np.float32))
    with refuses("PRNG key of the step before"):
        step(*state, sample[0], np.ones(SIZE, np.float32))
    assert len(run.asked) == 4
