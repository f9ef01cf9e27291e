"""A training under MindArmour's names, without MindSpore."""

from collections.abc import Sequence
from contextlib import suppress
from typing import Any

import numpy as np
from numpy.typing import NDArray

from epsilon_ledger import BudgetExceededError, LedgerClient, adaptive_clipping, poisson_sampled
from epsilon_ledger.mindarmour import SGD, ClipMechanismsFactory, DPModel, NoiseMechanismsFactory
from tests.reliability.trainers import CHECKPOINT_STEPS, TrainingFolder, run_trainer

RECORDS, BATCH, NOISE, FRACTION = 64, 16, 20.0, 2.0
STEP = poisson_sampled(
    BATCH / RECORDS, adaptive_clipping(gradient_noise_multiplier=NOISE, count_noise_stddev=FRACTION * BATCH)
)


class Line:
    """A linear model whose loss is its mean output."""

    def gradients(self, data: NDArray[Any], label: NDArray[Any]) -> list[NDArray[Any]]:
        return [(data * label[:, np.newaxis]).mean(axis=0)]


def train(folder: TrainingFolder, client: LedgerClient, asked: dict[str, Any]) -> None:
    """Train until the end."""
    run = folder.open_run(client, asked["budget"], **asked["ahead"])

    class Noting(SGD):
        """Notes each step where the parameters have moved."""

        def __call__(self, gradients: Sequence[NDArray[Any]]) -> None:
            super().__call__(gradients)
            folder.released(STEP)
            if run.next_step % CHECKPOINT_STEPS == 0:
                folder.save(run)

    data = np.random.default_rng(0).normal(size=(RECORDS, 4)), np.ones(RECORDS)
    with suppress(BudgetExceededError), run:
        model = DPModel(
            BATCH,
            1.0,
            NoiseMechanismsFactory.create("Gaussian", 1.0, NOISE),
            ClipMechanismsFactory.create("Gaussian", fraction_stddev=FRACTION),
            Noting([np.zeros(4)], 0.1),
            network=Line(),
            batch_size=BATCH,
            run=run,
        )
        steps = model.steps(asked["steps"], data)
        while (run.step or 0) < asked["steps"] and next(steps, None) is not None:
            pass


if __name__ == "__main__":
    run_trainer(train)
