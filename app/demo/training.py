"""The demo's patients and trainer: DP-SGD for a logistic regression in numpy, each step after its authorization.

The patients are scikit-learn's breast-cancer data, scaled by public ranges.

The noise is drawn in floating point, whose low bits can leak the exact sum (Mironov 2012, CCS "On significance of the
least significant bits"); a production trainer uses a hardened sampler.
"""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from sklearn.datasets import load_breast_cancer
from sklearn.linear_model import LogisticRegression
from sklearn.model_selection import train_test_split

from app.demo import DemoError
from epsilon_ledger import BudgetExceededError, PoissonSampledEvent, Run, StepAuthorization, gaussian, poisson_sampled

Floats = NDArray[np.float64]

# Smallest and largest value of each feature, as the data set's own documentation publishes them (UCI; it is
# `load_breast_cancer().DESCR` here). Constants that are computed from the training rows would be a release
# of their own and would have to be charged; a real project takes them from what its instruments can measure.
_RANGES = (
    *((6.981, 28.11), (9.71, 39.28), (43.79, 188.5), (143.5, 2501.0), (0.053, 0.163)),  # means
    *((0.019, 0.345), (0.0, 0.427), (0.0, 0.201), (0.106, 0.304), (0.05, 0.097)),
    *((0.112, 2.873), (0.36, 4.885), (0.757, 21.98), (6.802, 542.2), (0.002, 0.031)),  # standard errors
    *((0.002, 0.135), (0.0, 0.396), (0.0, 0.053), (0.008, 0.079), (0.001, 0.03)),
    *((7.93, 36.04), (12.02, 49.54), (50.41, 251.2), (185.2, 4254.0), (0.071, 0.223)),  # worst
    *((0.027, 1.058), (0.0, 1.252), (0.0, 0.291), (0.156, 0.664), (0.055, 0.208)),
)
# The split is the same in every demo; only the sampling and the noise are not.
_SPLIT_SEED = 7
_TEST_SHARE = 0.2


@dataclass(frozen=True, slots=True)
class Patients:
    """Records for training and for testing.

    Args:
        features: (n_train, 31): 30 features scaled to [-1, 1], and a column of ones.
        labels: (n_train,), 1 for a benign tumour.
        test_features: (n_test, 31).
        test_labels: (n_test,).
    """

    features: Floats
    labels: Floats
    test_features: Floats
    test_labels: Floats

    @property
    def count(self) -> int:
        """Number of training records."""
        return len(self.labels)


def load_patients() -> Patients:
    """Load, scale and split the data; the split is fixed."""
    features, labels = load_breast_cancer(return_X_y=True)
    low, high = np.array(_RANGES).T
    scaled = 2.0 * (features - low) / (high - low) - 1.0
    with_bias = np.column_stack([scaled, np.ones(len(scaled))])
    train, test, train_labels, test_labels = train_test_split(
        with_bias, labels.astype(float), test_size=_TEST_SHARE, random_state=_SPLIT_SEED, stratify=labels
    )
    return Patients(train, train_labels, test, test_labels)


def accuracy(weights: Floats, features: Floats, labels: Floats) -> float:
    """Compute the share of correct predictions, in [0, 1]."""
    return float(np.mean((features @ weights > 0.0) == (labels > 0.5)))  # noqa: PLR2004 - between 0 and 1


def accuracy_without_privacy(patients: Patients) -> float:
    """Train without clipping and noise; return the test accuracy in [0, 1]."""
    # The column of ones is the intercept already.
    model = LogisticRegression(C=100.0, fit_intercept=False, max_iter=5_000)
    model.fit(patients.features, patients.labels)
    return accuracy(model.coef_[0], patients.test_features, patients.test_labels)


@dataclass(frozen=True, slots=True)
class DpSgd:
    """Hyperparameters of the training.

    Args:
        sampling_probability: of each record in a step, in (0, 1].
        noise_multiplier: standard deviation of the noise divided by the clipping norm, above 0.
        clipping_norm: maximum L2 norm of a record's gradient, above 0.
        learning_rate: step size along the mean gradient, above 0.
    """

    sampling_probability: float
    noise_multiplier: float
    clipping_norm: float
    learning_rate: float

    def step(self, weights: Floats, features: Floats, labels: Floats, rng: np.random.Generator) -> Floats:
        """Take one noisy step and return the new weights, (n_features,); features are (n_records, n_features).

        The number of records is treated as public, as is usual under add_or_remove_one.

        Source:
            Abadi et al. 2016, arXiv 1607.00133, algorithm 1.
        """
        sampled = poisson_sample(len(labels), self.sampling_probability, rng)
        gradients = per_example_gradients(weights, features[sampled], labels[sampled])
        total = clipped(gradients, self.clipping_norm).sum(axis=0)
        noise = rng.normal(0.0, self.noise_multiplier * self.clipping_norm, total.shape)
        # Dividing by the size of the sample instead would make the sensitivity depend on the data.
        expected_size = self.sampling_probability * len(labels)
        moved: Floats = weights - self.learning_rate * (total + noise) / expected_size
        return moved


def poisson_sample(n_records: int, probability: float, rng: np.random.Generator) -> NDArray[np.bool_]:
    """Draw each record independently; return a mask, (n_records,)."""
    drawn: NDArray[np.bool_] = rng.random(n_records) < probability
    return drawn


def per_example_gradients(weights: Floats, features: Floats, labels: Floats) -> Floats:
    """Compute the gradient of each record's logistic loss: (n_records, n_features)."""
    # Clipping prevents overflow in exp and changes no double result.
    scores = np.clip(features @ weights, -500.0, 500.0)
    residuals = 1.0 / (1.0 + np.exp(-scores)) - labels
    gradients: Floats = residuals[:, np.newaxis] * features
    return gradients


def clipped(gradients: Floats, clipping_norm: float) -> Floats:
    """Scale every gradient, (n_records, n_features), down to the clipping norm in L2."""
    norms = np.linalg.norm(gradients, axis=1, keepdims=True)
    shortened: Floats = gradients / np.maximum(norms / clipping_norm, 1.0)
    return shortened


# Measured: some 860 of these steps fit into epsilon 2 at delta 1e-4; the test accuracy is 95 %.
MODEL = DpSgd(sampling_probability=0.07, noise_multiplier=4.0, clipping_norm=1.0, learning_rate=0.3)
EPSILON = 2.0
DELTA = 1e-4

# Far above what the budget admits: only a ledger that never refuses gets here.
_MOST_STEPS = 20_000


@dataclass(frozen=True, slots=True)
class TrainingResult:
    """Weights (n_features,) after the admitted steps, their number, and the refusal of the next one."""

    weights: Floats
    steps: int
    refusal: BudgetExceededError


def step_event() -> PoissonSampledEvent:
    """Build the event of one training step from the trainer's parameters."""
    return poisson_sampled(MODEL.sampling_probability, gaussian(MODEL.noise_multiplier))


def train_until_refused(
    run: Run, patients: Patients, rng: np.random.Generator, watch: Callable[[StepAuthorization], None]
) -> TrainingResult:
    """Train until the ledger refuses a step; `watch` is called with every authorization, after its step."""
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
