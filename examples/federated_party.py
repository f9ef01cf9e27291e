"""A party of the federated examples: its private patients, and the DP-SGD steps that it takes with them."""

# Beside the scripts that import it.

from dataclasses import dataclass

import numpy as np
from federated_model import Configuration, Floats, Model, Patients, sigmoid

from epsilon_ledger import BudgetExceededError, Run
from epsilon_ledger.mechanisms import DpSgd, GaussianNoise, PoissonSampler


@dataclass(frozen=True)
class Statement:
    """Final report of a party.

    Args:
        party: its name.
        run: id of its run.
        records: number of patients.
        steps: number of steps.
        epsilon: of its steps, at `delta`, by the ledger.
        delta: of its limit.
        refusal: why it stopped early, or None.
    """

    party: str
    run: str
    records: int
    steps: int
    epsilon: float
    delta: float
    refusal: str | None


class Party:
    """A party that improves weights with its own patients, as long as its ledger admits steps.

    Args:
        name: of the party.
        patients: its own.
        model: for the scaling.
        configuration: of the training.
        run: charged for each step.
    """

    def __init__(self, name: str, patients: Patients, model: Model, configuration: Configuration, run: Run) -> None:
        self.name = name
        self.refusal: str | None = None
        """Why it stopped, or None."""
        self._run = run
        self._configuration = configuration
        self._features, self._labels = model.scaled(patients.features), patients.labels
        self._weights = model.weights.copy()
        self._optimizer = DpSgd(
            self._weights,
            noise=GaussianNoise(configuration.noise_multiplier, clipping_norm=configuration.l2_norm_clip),
            sampler=PoissonSampler(len(self._labels), configuration.batch_size / len(self._labels)),
            run=run,
            learning_rate=configuration.learning_rate,
        )

    @property
    def steps(self) -> int:
        """Number of steps taken."""
        return self._optimizer.steps

    @property
    def is_going(self) -> bool:
        """Whether it may take further steps."""
        return self.refusal is None and self.steps < self._configuration.max_iter

    def improve(self, weights: Floats) -> Floats:
        """Take the steps of a round, starting at the common weights; return private weights."""
        self._weights[:] = weights
        shrink = 1.0 - self._configuration.learning_rate * self._configuration.alpha
        left = self._configuration.max_iter - self.steps
        try:
            for _ in range(min(self._configuration.steps_per_round, left)):
                drawn = self._optimizer.sample()
                residuals = sigmoid(self._features[drawn] @ self._weights) - self._labels[drawn]
                self._optimizer.step(residuals[:, np.newaxis] * self._features[drawn])
                self._weights[:-1] *= shrink
        except BudgetExceededError as error:
            self.refusal = str(error)
        return self._weights

    def statement(self) -> Statement:
        """Report what was spent, after the end of the run."""
        state = self._run.refresh()
        return Statement(self.name, state.id, len(self._labels), self.steps, state.epsilon, state.delta, self.refusal)
