"""DP-SGD for a logistic regression in numpy.

The noise is drawn in floating point, whose low bits can leak the exact sum (Mironov 2012, CCS "On significance of the
least significant bits"); a production trainer uses a hardened sampler.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]


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
        """Take one noisy step and return the new weights, (n_features,).

        The number of records is treated as public, as is usual under add_or_remove_one.

        Args:
            weights: (n_features,).
            features: (n_records, n_features).
            labels: (n_records,), 0 or 1.
            rng: source of the sample and of the noise.

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


def accuracy(weights: Floats, features: Floats, labels: Floats) -> float:
    """Compute the share of correct predictions, in [0, 1]."""
    return float(np.mean((features @ weights > 0.0) == (labels > 0.5)))  # noqa: PLR2004 - between 0 and 1
