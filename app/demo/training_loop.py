"""The demo's trainer: request authorization, then release."""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from app.demo.dataset import Patients
from app.demo.dp_sgd import DpSgd, Floats
from app.demo.errors import DemoError
from epsilon_ledger import BudgetExceededError, PoissonSampledEvent, Run, StepAuthorization, gaussian, poisson_sampled

# Measured: some 860 of these steps fit into epsilon 2 at delta 1e-4; the test accuracy is 95 %.
MODEL = DpSgd(sampling_probability=0.07, noise_multiplier=4.0, clipping_norm=1.0, learning_rate=0.3)
EPSILON = 2.0
DELTA = 1e-4

# Far above what the budget admits: only a ledger that never refuses gets here.
_MOST_STEPS = 20_000


@dataclass(frozen=True, slots=True)
class TrainingResult:
    """Result of a training.

    Args:
        weights: (n_features,), after the last admitted step.
        steps: number of released steps.
        refusal: of the step after them.
    """

    weights: Floats
    steps: int
    refusal: BudgetExceededError


def step_event() -> PoissonSampledEvent:
    """Build the event of one training step from the trainer's parameters."""
    return poisson_sampled(MODEL.sampling_probability, gaussian(MODEL.noise_multiplier))


def train_until_refused(
    run: Run, patients: Patients, rng: np.random.Generator, watch: Callable[[StepAuthorization], None]
) -> TrainingResult:
    """Train until the ledger refuses a step.

    `watch` is called with every authorization, after its step.

    Raises:
        DemoError: the ledger never refuses.
    """
    weights: Floats = np.zeros(patients.features.shape[1])
    for taken in range(_MOST_STEPS):
        try:
            authorization = run.authorize()
        except BudgetExceededError as refusal:
            # No result of the refused step has been computed or released.
            return TrainingResult(weights, taken, refusal)
        weights = MODEL.step(weights, patients.features, patients.labels, rng)
        watch(authorization)
    raise DemoError(f"The ledger admitted {_MOST_STEPS} steps, which is more than any budget of this demo.")
