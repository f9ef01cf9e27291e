"""The trainer's side of the demo: ask, and only then release."""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from app.demo.dataset import Patients
from app.demo.dp_sgd import DpSgd, Floats
from app.demo.errors import DemoError
from epsilon_ledger import Admission, BudgetExceededError, PoissonSampledEvent, Run, gaussian, poisson_sampled

# Measured: some 860 of these steps fit into epsilon 2 at delta 1e-4, and 95 % of the test records are told right.
MODEL = DpSgd(sampling_probability=0.07, noise_multiplier=4.0, clipping_norm=1.0, learning_rate=0.3)
EPSILON = 2.0
DELTA = 1e-4

# Far above what the budget admits: only a ledger that never refuses gets here.
_MOST_STEPS = 20_000


@dataclass(frozen=True, slots=True)
class Trained:
    """What the training released, and why it stopped.

    Args:
        weights: (n_features,), after the last admitted step.
        steps: how many were released.
        refusal: the ledger's answer to the step after them.
    """

    weights: Floats
    steps: int
    refusal: BudgetExceededError


def step_event() -> PoissonSampledEvent:
    """Describe one training step to the ledger.

    Returns:
        The event, from the very numbers that the trainer uses.
    """
    return poisson_sampled(MODEL.sampling_probability, gaussian(MODEL.noise_multiplier))


def train_until_refused(
    run: Run, patients: Patients, rng: np.random.Generator, watch: Callable[[Admission], None]
) -> Trained:
    """Train for as long as the ledger admits it.

    Args:
        run: asks the ledger.
        patients: to train on.
        rng: source of sampling and noise.
        watch: is told every admission, after its step.

    Returns:
        The last released weights, and the refusal.

    Raises:
        DemoError: the ledger never refuses.
    """
    weights: Floats = np.zeros(patients.features.shape[1])
    for taken in range(_MOST_STEPS):
        try:
            admission = run.authorize()
        except BudgetExceededError as refusal:
            # Nothing of this step has been computed, let alone released.
            return Trained(weights, taken, refusal)
        weights = MODEL.step(weights, patients.features, patients.labels, rng)
        watch(admission)
    raise DemoError(f"The ledger admitted {_MOST_STEPS} steps, which is more than any budget of this demo.")
