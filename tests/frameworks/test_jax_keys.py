"""No noise is added twice, and none that depends on a private size."""

from typing import Any

import jax
import numpy as np
import pytest

from epsilon_ledger import LedgerUnavailableError
from epsilon_ledger.jax import UnsupportedTrainingError, authorized, secret_key
from tests.frameworks.jax_trainings import DATA, KEPT, POISSON, PROBABILITY, SIZE, STEP, N, Private, aggregate_step
from tests.sdk.fake_runs import CountingRun

pytestmark = [
    # jax-privacy 2.0 calls it.
    pytest.mark.filterwarnings("ignore:optax.global_norm is deprecated:DeprecationWarning")
]


@pytest.fixture
def run() -> CountingRun:
    return CountingRun()


class TestKeys:
    """No noise is added twice."""

    def test_state_that_is_not_handed_on(self, run: CountingRun) -> None:
        training = Private()
        step = training.authorized(run, KEPT)
        batches = step.batch_iterator(N)
        first = training.state
        training.take(step, next(batches))
        params, opt_state, _ = training.state
        training.state = (params, opt_state, first[2])
        with pytest.raises(UnsupportedTrainingError, match="PRNG key of the step before"):
            training.take(step, next(batches))
        assert len(run.asked) == 1

    def test_question_may_be_repeated(self, run: CountingRun, monkeypatch: pytest.MonkeyPatch) -> None:
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

    def test_seed_that_another_process_may_have_used(self, run: CountingRun) -> None:
        run.asked = [STEP]
        for key in (0, jax.random.key(42)):
            training = Private(key)
            step = training.authorized(run)
            with pytest.raises(UnsupportedTrainingError, match="begins with the seed"):
                training.take(step, next(step.batch_iterator(N)))
        assert run.asked == [STEP]
        training = Private()
        step = training.authorized(run)
        training.train(step, step.batch_iterator(N))
        assert len(run.asked) == 1 + POISSON.iterations

    def test_secret_keys_differ(self) -> None:
        words = [tuple(jax.random.key_data(secret_key()).tolist()) for _ in range(3)]
        assert len(set(words)) == 3
        assert all(word[0] for word in words)


def test_optax_steps_padded_samples_only(run: CountingRun) -> None:
    optimizer, plain, state = aggregate_step()
    step: Any = authorized(plain, run.as_run, noise=optimizer, batches=PROBABILITY)
    batches = step.batch_iterator(N)
    for _ in range(3):
        indices = next(batches)
        padded = np.pad(indices, (0, SIZE - len(indices)))
        state = step(*state, DATA[padded], (np.arange(SIZE) < len(indices)).astype(np.float32))
    assert run.asked == [STEP] * 3
    with pytest.raises(UnsupportedTrainingError, match="Optax divides the noise"):
        step(*state, DATA[next(batches)[:3]], np.ones(3, np.float32))
    next(batches), next(batches)
    step(*state, DATA[padded], np.ones(SIZE, np.float32))
    with pytest.raises(UnsupportedTrainingError, match="PRNG key of the step before"):
        step(*state, DATA[padded], np.ones(SIZE, np.float32))
    assert len(run.asked) == 4
