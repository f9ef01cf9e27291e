"""Shared parts of the federated examples: configuration, patients, and the model with its scaling."""

# Beside the scripts that import it.

import argparse
import json
import re
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Self

import numpy as np
from numpy.typing import NDArray
from sklearn.datasets import load_breast_cancer

Floats = NDArray[np.float64]

PARTIES = ("A", "B", "C")
SHARES = (0, 120, 270, 450)
"""Boundaries of the parties' patients; the rest are for testing."""


@dataclass(frozen=True)
class Configuration:
    """A training, by the keys of PrimiHub's `config`, and three more.

    Args:
        learning_rate: factor of a step.
        alpha: weight of the L2 penalty, which does not touch the data and costs nothing.
        noise_multiplier: standard deviation of the noise over the clipping norm.
        l2_norm_clip: clipping norm of each patient's gradient.
        secure_mode: must stay true: noise always comes from a cryptographic source.
        batch_size: expected number of patients in a step; each is drawn with probability batch_size / n.
        max_iter: maximum number of steps of each party.
        need_encrypt: must be "NO": weights that carry noise need no encryption beside that of the connection.
        need_one_vs_rest: must be false: there are two classes.
        category: number of classes, 2.
        feature_names: used features; None: all.
        delta: of each party's limit; must be below 1 / n.
        epsilon: of each party's limit. The smallest party samples its patients most often, and stops first.
        steps_per_round: steps that a party takes between two averages.
        seed: of the division of the patients; the noise has none.
    """

    learning_rate: float = 0.5
    alpha: float = 0.0
    noise_multiplier: float = 2.0
    l2_norm_clip: float = 1.0
    secure_mode: bool = True
    batch_size: int = 16
    max_iter: int = 400
    need_encrypt: str = "NO"
    need_one_vs_rest: bool = False
    category: int = 2
    feature_names: tuple[str, ...] | None = None
    delta: float = 1e-3
    epsilon: float = 3.0
    steps_per_round: int = 5
    seed: int = 7

    def __post_init__(self) -> None:
        """Refuse what this example does not do.

        Raises:
            ValueError: a key asks for it.
        """
        if not self.secure_mode:
            raise ValueError("secure_mode is false: this noise always comes from a cryptographic source. Leave it out.")
        if self.need_encrypt not in ("NO", "False"):
            raise ValueError('need_encrypt must be "NO": weights that carry noise need only an encrypted connection.')
        if self.need_one_vs_rest or self.category != 2:  # noqa: PLR2004 - two classes
            raise ValueError("This example has two classes: category must be 2, and need_one_vs_rest false.")
        if min(self.batch_size, self.max_iter, self.steps_per_round) < 1:
            raise ValueError("batch_size, max_iter and steps_per_round must be at least 1.")

    def require_small_delta(self, name: str, size: int) -> None:
        """Require that delta does not allow to publish a whole patient.

        Raises:
            ValueError: delta is not below 1 / size.
        """
        if self.delta >= 1 / size:
            raise ValueError(
                f"delta {self.delta:g} must be below 1/n: {name} has {size} patients, so below {1 / size:.3g}. At 1/n, "
                f"publishing one patient at random would be private."
            )

    @classmethod
    def add_options(cls, parser: argparse._ArgumentGroup) -> None:
        """Add an option for each key, and one for a file of keys."""
        parser.add_argument("--config", type=Path, metavar="FILE", help="JSON object with any of these keys")
        for field in fields(cls):
            option, default = f"--{field.name.replace('_', '-')}", field.default
            if field.name == "feature_names":
                parser.add_argument(option, nargs="+", metavar="NAME", help="used features (all)")
            elif isinstance(default, bool):
                parser.add_argument(option, action=argparse.BooleanOptionalAction, help=f"({str(default).lower()})")
            else:
                parser.add_argument(option, type=type(default), metavar="X", help=f"({default})")

    @classmethod
    def from_options(cls, asked: argparse.Namespace) -> Self:
        """Build it from the file, and from options, which precede.

        Raises:
            ValueError: a key is unknown, or has a value that this example does not support.
        """
        found = {} if asked.config is None else json.loads(asked.config.read_text())
        names = [field.name for field in fields(cls)]
        unknown = sorted(set(found) - set(names))
        if unknown:
            raise ValueError(f"{asked.config} has unknown keys: {', '.join(unknown)}. Known are {', '.join(names)}.")
        found |= {name: value for name in names if (value := getattr(asked, name)) is not None}
        if found.get("feature_names") is not None:
            found["feature_names"] = tuple(found["feature_names"])
        return cls(**found)

    def to_json(self) -> str:
        """Write it for another process."""
        return json.dumps(asdict(self))

    @classmethod
    def from_json(cls, text: str) -> Self:
        """Read what `to_json` wrote."""
        found = json.loads(text)
        names = found.pop("feature_names")
        return cls(**found, feature_names=None if names is None else tuple(names))


@dataclass(frozen=True)
class Patients:
    """Patients with their measurements.

    Args:
        features: (n, n_features), raw.
        labels: (n,), 1 for a benign tumour.
    """

    features: Floats
    labels: Floats

    def share(self, number: int) -> "Patients":
        """Return the patients of a party, or with number 3 those for testing."""
        bounds = (*SHARES, len(self.labels))
        part = slice(bounds[number], bounds[number + 1])
        return Patients(self.features[part], self.labels[part])


@dataclass(frozen=True)
class Model:
    """Logistic regression with the scaling of its features, which stands in the same file.

    Args:
        weights: (n_features + 1,), the last one is the intercept.
        feature_names: of the columns.
        low: (n_features,), lower ends of the published ranges, scaled to -1.
        high: (n_features,), upper ends, scaled to 1.
    """

    weights: Floats
    feature_names: tuple[str, ...]
    low: Floats
    high: Floats

    def scaled(self, features: Floats) -> Floats:
        """Scale (n, n_features) raw features, and add a column of ones."""
        scaled = (2.0 * features - self.low - self.high) / np.maximum(self.high - self.low, 1e-9)
        return np.column_stack([scaled, np.ones(len(features))])

    def probabilities(self, features: Floats) -> Floats:
        """Predict (n,) probabilities of a benign tumour from raw features."""
        return sigmoid(self.scaled(features) @ self.weights)

    def with_weights(self, weights: Floats) -> "Model":
        """Return the model with other weights."""
        return Model(weights, self.feature_names, self.low, self.high)

    def save(self, file: Path) -> None:
        """Save the model; numpy reads it without executing anything."""
        np.savez(file, weights=self.weights, feature_names=np.array(self.feature_names), low=self.low, high=self.high)

    @classmethod
    def load(cls, file: Path) -> Self:
        """Load a saved model.

        Raises:
            ValueError: it is no such file.
        """
        with np.load(file, allow_pickle=False) as found:
            if set(found) != {"weights", "feature_names", "low", "high"}:
                raise ValueError(f"{file} is no model of federated_logistic_regression.py.")
            names = tuple(str(name) for name in found["feature_names"])
            return cls(found["weights"], names, found["low"], found["high"])


def sigmoid(scores: Floats) -> Floats:
    """Compute 1 / (1 + exp(-score))."""
    chances: Floats = 1.0 / (1.0 + np.exp(-np.clip(scores, -500, 500)))
    return chances


def records(configuration: Configuration) -> tuple[Patients, Model]:
    """Load the patients in random order, and a model of zeros with the ranges that were published with the data.

    Ranges from the patients themselves, as PrimiHub exchanges them, would be another release.

    Raises:
        ValueError: a feature has an unknown name.
    """
    data = load_breast_cancer()
    ranges = np.array(re.findall(r":\s+([\d.]+)\s+([\d.]+)\s*$", data.DESCR, re.MULTILINE), dtype=float)
    names = [str(name) for name in data.feature_names]
    chosen = names if configuration.feature_names is None else list(configuration.feature_names)
    unknown = [name for name in chosen if name not in names]
    if unknown:
        raise ValueError(f"Unknown features: {', '.join(unknown)}. Known are {', '.join(names)}.")
    columns = [names.index(name) for name in chosen]
    order = np.random.default_rng(configuration.seed).permutation(len(data.target))
    patients = Patients(data.data[order][:, columns], data.target[order].astype(float))
    low, high = ranges[columns].T
    return patients, Model(np.zeros(len(columns) + 1), tuple(chosen), low, high)
