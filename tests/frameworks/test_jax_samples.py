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
    NOISE,
    POISSON,
    PROBABILITY,
    SIZE,
    STEP,
    N,
    Private,
    padded,
    plain,
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
    assert len(run.asked) == 1


def test_draw_left_for_another_step_of_run_is_charged(run: FakeRun) -> None:
    training = Private()
    first = training.authorized(run).batch_iterator(N)
    next(first)
    with pytest.warns(UserWarning, match="were drawn and not stepped"):
        next(training.authorized(run).batch_iterator(N))
    assert run.asked == [STEP]


def test_batch_that_is_not_stepped_stops_next_draw_and_is_charged(run: FakeRun) -> None:
    training = Private()
    step = training.authorized(run)
    batches = step.batch_iterator(N)
    training.take(step, next(batches))
    next(batches)
    with refuses("were drawn and not stepped"):
        next(batches)
    # Iterations that are left before the step: a peek, a break, and the end of the last one.
    with pytest.warns(UserWarning, match=r"1 batch\(es\) were drawn and not stepped"):
        next(step.batch_iterator(N))
    assert len(run.asked) == 2
    for taken, indices in enumerate(step.batch_iterator(N), 1):
        if taken < POISSON.iterations:
            training.take(step, indices)
    assert len(run.asked) == 3 + POISSON.iterations
    with refuses("takes 1 batch"):
        training.take(step, indices)


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


def test_generator_of_script_is_refused(run: FakeRun) -> None:
    step = Private().authorized(run)
    for rng in (7, np.random.default_rng(7), np.random.default_rng()):
        with refuses("in another process or run"):
            next(step.batch_iterator(N, rng=rng))
    samples = [next(Private().authorized(FakeRun()).batch_iterator(N)).tolist() for _ in range(2)]
    assert samples[0] != samples[1]


# Keys of the noise.


def test_step_without_key_of_its_noise_is_refused() -> None:
    training = Private()
    params, opt_state, noise_state = training.state

    def closed(params: Any, opt_state: Any, x: Any, is_padding: Any) -> Any:
        return plain(params, opt_state, noise_state, x, is_padding)[:2]

    def begun(params: Any, opt_state: Any, x: Any, is_padding: Any) -> Any:
        return plain(params, opt_state, training.privatizer.init(params), x, is_padding)

    def dropped(params: Any, opt_state: Any, noise_state: Any, x: Any, is_padding: Any) -> Any:
        return *plain(params, opt_state, noise_state, x, is_padding)[:2], noise_state

    for wrong in (closed, begun):
        run = FakeRun()
        step = training.authorized(run, jax.jit(wrong))
        next(step.batch_iterator(N))
        with refuses("No argument of this step is the PRNG key"):
            step(params, opt_state, DATA, np.zeros(N, bool))
        assert run.asked == []
    step = training.authorized(FakeRun(), jax.jit(dropped))
    next(step.batch_iterator(N))
    with refuses("does not return the state of its noise"):
        step(params, opt_state, noise_state, DATA, np.zeros(N, bool))


def test_key_is_followed_wherever_arguments_have_it(run: FakeRun) -> None:
    training = Private()

    def nested(state: Any, *, x: Any) -> Any:
        return {"all": list(plain(*state["all"], *x))}

    state = {"all": list(training.state)}
    step = training.authorized(run, jax.jit(nested))
    for indices in step.batch_iterator(N):
        assert indices.size >= 0
        state = step(state, x=(DATA, np.zeros(N, bool)))
    assert len(run.asked) == POISSON.iterations


def test_key_is_followed_if_its_parts_depend_on_their_number(run: FakeRun) -> None:
    with jax.threefry_partitionable(False):  # noqa: FBT003 - JAX's signature
        optimizer, update = with_optax(NOISE)
        params = {"w": jnp.ones(4), "b": jnp.ones(4), "c": jnp.ones(4)}
        state = (params, optimizer.init(params))
        step: Any = authorized(jax.jit(update), run, noise=optimizer, batches=PROBABILITY)
        batches = step.batch_iterator(N)
        for _ in range(3):
            state = step(*state, *padded(next(batches), SIZE))
    assert len(run.asked) == 3


def test_key_is_made_where_state_is_kept(run: FakeRun) -> None:
    training = Private()
    step = training.authorized(run)
    device = jax.devices()[0]
    for taken, indices in enumerate(step.batch_iterator(N)):
        if taken == 4:
            training.state = jax.device_put(training.state, device)
        training.take(step, indices)
    assert training.state[2][0].committed
    assert len(run.asked) == POISSON.iterations


def test_state_may_be_donated_between_steps(run: FakeRun) -> None:
    training = Private()
    hand_on = jax.jit(lambda state: jax.tree.map(jnp.copy, state), donate_argnums=0)
    step = training.authorized(run)
    for indices in step.batch_iterator(N):
        training.take(step, indices)
        training.state = hand_on(training.state)
    assert len(run.asked) == POISSON.iterations


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


def test_secret_keys_have_64_bits() -> None:
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
