"""What the selection of batches makes of a step."""

from typing import Any

import numpy as np
import pytest
from jax_privacy.batch_selection import (
    BallsInBinsSampling,
    BMinSepSampling,
    CyclicPoissonSampling,
    FixedBatchSampling,
    UserSelectionStrategy,
)

from epsilon_ledger import gaussian, sampled_with_replacement, sampled_without_replacement, truncated_poisson_sampled
from epsilon_ledger.jax import UnsupportedTrainingError
from tests.frameworks.jax_trainings import NOISE, POISSON, STEP, N, Private
from tests.sdk.fake_runs import CountingRun

pytestmark = [
    # jax-privacy 2.0 calls it.
    pytest.mark.filterwarnings("ignore:optax.global_norm is deprecated:DeprecationWarning")
]


@pytest.fixture
def run() -> CountingRun:
    return CountingRun()


class TestBatches:
    """What the selection of batches makes of a step."""

    def test_batches_without_replacement_and_by_user_are_charged(self, run: CountingRun) -> None:
        step = Private().authorized(run, batches=FixedBatchSampling(batch_size=16, iterations=2))
        assert len(next(step.batch_iterator(N))) == 16
        assert step.event == sampled_without_replacement(N, 16, gaussian(NOISE))
        users = np.repeat(np.arange(8), 8)
        step = Private().authorized(run, batches=UserSelectionStrategy(POISSON, 2))
        assert next(step.batch_iterator(users)).ndim in (1, 2)
        assert step.event == STEP
        step = Private().authorized(run, batches=UserSelectionStrategy(FixedBatchSampling(4, 2)))
        assert len(next(step.batch_iterator(users))) == 4
        assert step.event == sampled_without_replacement(8, 4, gaussian(NOISE))

    def test_cut_samples_and_repeated_draws(self, run: CountingRun) -> None:
        step = Private().authorized(run, batches=CyclicPoissonSampling(0.5, 8, truncated_batch_size=16))
        assert len(next(step.batch_iterator(N))) <= 16
        assert step.event == truncated_poisson_sampled(N, 0.5, 16, gaussian(NOISE))
        step = Private().authorized(run, batches=FixedBatchSampling(16, 8, replace=True))
        assert len(next(step.batch_iterator(N))) == 16
        assert step.event == sampled_with_replacement(N, 16, gaussian(NOISE))

    def test_batches_that_cannot_be_charged_by_steps_are_refused(self, run: CountingRun) -> None:
        turned_away: list[tuple[Any, str]] = [
            (CyclicPoissonSampling(0.5, 8, cycle_length=4), "cycle_length=4"),
            (BallsInBinsSampling(8, 4), "every n-th batch"),
            (BMinSepSampling(0.5, 8, 2), "depends on those before"),
            (UserSelectionStrategy(BallsInBinsSampling(8, 4)), "every n-th batch"),
            (iter([np.arange(16)]), "not known here"),
            (None, "How are records drawn"),
        ]
        for batches, reason in turned_away:
            with pytest.raises(UnsupportedTrainingError, match=reason):
                Private().authorized(run, batches=batches)
        for probability in (0.0, 1.5):
            with pytest.raises(ValueError, match="probability in"):
                Private().authorized(run, batches=probability)

    def test_batches_of_seed_are_not_drawn_again(self, run: CountingRun) -> None:
        training = Private()
        step = training.authorized(run)
        first = [batch.tolist() for batch in step.batch_iterator(N, rng=7)]
        generator = np.random.default_rng(7)
        training.take(step, next(step.batch_iterator(N, rng=generator)))
        for rng in (7, np.random.default_rng(7)):
            with pytest.raises(UnsupportedTrainingError, match="draw their batches again"):
                next(step.batch_iterator(N, rng=rng))
        for other in (None, generator, np.random.default_rng()):
            assert [batch.tolist() for batch in step.batch_iterator(N, rng=other)] != first
