"""A training with one charge: a step of numpy, counted locally."""

from collections.abc import Iterator

import numpy as np

from epsilon_ledger import Run, gaussian

STEPS = 1_000_000


def steps(run: Run | None) -> Iterator[None]:
    """Train, and yield after each step."""
    rng, weights = np.random.default_rng(), np.zeros(64)
    training = None if run is None else run.charge_training(gaussian(100.0), steps=STEPS)
    while True:
        if training is not None:
            training.authorize()
        weights -= 0.1 * rng.standard_normal(64)
        yield
