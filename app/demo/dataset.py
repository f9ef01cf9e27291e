"""The demo's patients: scikit-learn's breast-cancer data, scaled by public ranges."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from sklearn.datasets import load_breast_cancer
from sklearn.linear_model import LogisticRegression
from sklearn.model_selection import train_test_split

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
