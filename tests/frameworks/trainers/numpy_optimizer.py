"""A training with the client's own numpy optimizer."""

from contextlib import suppress
from typing import Any

import numpy as np

from epsilon_ledger import BudgetExceededError, LedgerClient, gaussian, poisson_sampled
from epsilon_ledger.mechanisms import DpSgd, GaussianNoise, PoissonSampler
from tests.reliability.trainers import CHECKPOINT_STEPS, TrainingFolder, run_trainer

RECORDS, PROBABILITY, NOISE = 64, 0.25, 20.0


def train(folder: TrainingFolder, client: LedgerClient, asked: dict[str, Any]) -> None:
    """Train until the end."""
    run = folder.open_run(client, asked["budget"], **asked["ahead"])
    weights = np.zeros(4)
    sampler = PoissonSampler(RECORDS, PROBABILITY)
    features = np.random.default_rng(0).normal(size=(RECORDS, 4))
    with suppress(BudgetExceededError), run:
        noise = GaussianNoise(NOISE, clipping_norm=1.0)
        optimizer = DpSgd(weights, noise=noise, sampler=sampler, run=run, learning_rate=0.1)
        while (run.step or 0) < asked["steps"]:
            optimizer.step(features[optimizer.sample()])
            folder.released(poisson_sampled(PROBABILITY, gaussian(NOISE)))
            if optimizer.steps % CHECKPOINT_STEPS == 0:
                folder.save(run)


if __name__ == "__main__":
    run_trainer(train)
