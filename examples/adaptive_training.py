"""Decaying noise and adaptive clipping compared to constant noise, at the same epsilon.

The ledger must be running (README.md, "By hand"), and matplotlib and scikit-learn must be installed. Then:

    EPSILON_LEDGER_URL=http://127.0.0.1:8000 EPSILON_LEDGER_API_KEY=... python examples/adaptive_training.py

Six kinds of noise and three optimizers learn scikit-learn's handwritten digits. All trainings have the same steps and
limit: the ledger's planner finds the first noise multiplier with which the whole plan fits. The noisy count that moves
the clipping norm is part of the charge.
"""

import json
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from functools import cache
from pathlib import Path

import matplotlib as mpl
import matplotlib.pyplot as plt
import numpy as np
from common import budget, parser
from numpy.typing import NDArray
from scipy.optimize import brentq
from sklearn.datasets import load_digits

from epsilon_ledger import Event, EventCount, LedgerClient, Limit, Run, decay, gaussian, poisson_sampled
from epsilon_ledger.mechanisms import (
    AdaptiveClipping,
    ClippedSumMechanism,
    DpAdam,
    DpMomentum,
    DpOptimizer,
    DpSgd,
    GaussianNoise,
    PoissonSampler,
)

Floats = NDArray[np.float64]

STEPS = 150
SAMPLING_PROBABILITY = 0.1
TRAINING_RECORDS = 1_400
CLIPPING_NORM = 4.0
"""Norm of a typical gradient at the start; later most are far smaller."""
LIMIT = Limit(2.0, 1e-4)
"""Limit of each training. Together they cost the same people more, as their budget shows."""
TOTAL = Limit(50.0, 1e-4)
EXPECTED_BATCH_SIZE = SAMPLING_PROBABILITY * TRAINING_RECORDS
ROUNDED_UP = 1.0 + 1e-6

OPTIMIZERS: dict[str, tuple[type[DpOptimizer[NDArray[np.int64]]], float]] = {
    "SGD": (DpSgd, 1.0),
    "momentum": (DpMomentum, 0.2),
    "Adam": (DpAdam, 0.05),
}
"""Optimizers with their learning rates."""


NOISES = ("constant", "decay, time", "decay, step", "decay, exp", "clipping, linear", "clipping, geometric")
DECAY_RATE = 0.005
LEARNING_RATES_OF_C = {"linear": 0.3, "geometric": 0.2}
FRACTION_STDDEV = 0.05
"""Standard deviation of the noise of the fraction that moves the clipping norm."""


@dataclass
class Training:
    """One training and its results.

    Args:
        noise: name in the table.
        optimizer: name in the table.
        noise_multiplier: of the first step.
        accuracy: on test records, after each step.
        clipping_norm: at each step.
        epsilon: spent.
    """

    noise: str
    optimizer: str
    noise_multiplier: float
    accuracy: list[float] = field(default_factory=list)
    clipping_norm: list[float] = field(default_factory=list)
    epsilon: float = 0.0


@cache
def digits() -> tuple[Floats, NDArray[np.int64]]:
    """Load the records: (n, 65) pixels in [0, 1] and a one, and (n,) digits."""
    pixels, labels = load_digits(return_X_y=True)
    return np.column_stack([pixels / 16.0, np.ones(len(pixels))]), labels


def gradients(weights: Floats, features: Floats, labels: NDArray[np.int64]) -> Floats:
    """Compute each record's gradient of the softmax regression's loss: (n, 65, 10).

    Args:
        weights: (65, 10).
        features: (n, 65).
        labels: (n,).
    """
    scores = features @ weights
    likely = np.exp(scores - scores.max(axis=1, keepdims=True))
    residuals = likely / likely.sum(axis=1, keepdims=True) - np.eye(10)[labels]
    found: Floats = features[:, :, np.newaxis] * residuals[:, np.newaxis, :]
    return found


def first_noise_multiplier(ledger: LedgerClient, name: str) -> float:
    """Find the minimum noise of the first step with which the whole plan fits the limit."""
    kind, _, mode = name.partition(", ")
    if kind == "decay":
        return first_of_decay(ledger, mode)
    step = poisson_sampled(SAMPLING_PROBABILITY, gaussian(1.0))
    z = ledger.find_noise_multiplier(step, count=STEPS, epsilon=LIMIT.epsilon, delta=LIMIT.delta).noise_multiplier
    assert z is not None, "this limit leaves room for some noise"
    if kind == "clipping":
        # Sum and count are released together: z^-2 = sum^-2 + (2 count)^-2 (Andrew et al. 2021, Theorem 1).
        stddev = FRACTION_STDDEV * EXPECTED_BATCH_SIZE
        z = float((z**-2 - (2 * stddev) ** -2) ** -0.5) * ROUNDED_UP
    return z


def first_of_decay(ledger: LedgerClient, mode: str) -> float:
    """Find the first noise multiplier of a decay, whose steps have too many noises for the planner's own search.

    It is at most 0.002 % above the minimum.
    """

    def excess(z: float) -> float:
        step = poisson_sampled(SAMPLING_PROBABILITY, gaussian(z))
        plan: EventCount = {"event": decay(mode, DECAY_RATE, step, steps=STEPS), "count": 1}  # type: ignore[arg-type]
        return ledger.compute_epsilon([plan], delta=LIMIT.delta).required_epsilon - LIMIT.epsilon

    return float(brentq(excess, 1.0, 10.0, xtol=1e-5)) * (1 + 1e-5)


def noise_of(name: str, z: float) -> ClippedSumMechanism:
    """Create a mechanism: constant or decaying noise, or a clipping norm that follows the median norm."""
    kind, _, mode = name.partition(", ")
    if kind == "decay":
        return GaussianNoise(z, clipping_norm=CLIPPING_NORM, decay_mode=mode, decay_rate=DECAY_RATE)  # type: ignore[arg-type]
    noise = GaussianNoise(z, clipping_norm=CLIPPING_NORM)
    if kind == "constant":
        return noise
    return AdaptiveClipping(
        noise,
        expected_summands=EXPECTED_BATCH_SIZE,
        mode=mode,  # type: ignore[arg-type]
        learning_rate=LEARNING_RATES_OF_C[mode],
        fraction_stddev=FRACTION_STDDEV,
        clipping_norm_bounds=(0.05, 10.0),
    )


def schedule_of(noise: ClippedSumMechanism) -> Callable[[int], Event]:
    """Return the schedule of events, so that steps of decaying noise can be granted in advance."""
    return lambda step: poisson_sampled(SAMPLING_PROBABILITY, noise.event_at(step))


def train(training: Training, noise: ClippedSumMechanism, run: Run) -> None:
    """Train, and record accuracy and clipping norm at each step."""
    features, labels = digits()
    known, unseen = slice(TRAINING_RECORDS), slice(TRAINING_RECORDS, None)
    weights = np.zeros((features.shape[1], 10))
    kind, learning_rate = OPTIMIZERS[training.optimizer]
    sampler = PoissonSampler(TRAINING_RECORDS, SAMPLING_PROBABILITY)
    optimizer = kind(weights, noise=noise, sampler=sampler, run=run, learning_rate=learning_rate)
    for _ in range(STEPS):
        training.clipping_norm.append(noise.clipping_norm)
        drawn = optimizer.sample()
        optimizer.step(gradients(weights, features[known][drawn], labels[known][drawn]))
        right = np.argmax(features[unseen] @ weights, axis=1) == labels[unseen]
        training.accuracy.append(float(np.mean(right)))


def show(trainings: list[Training], optimizers: list[str]) -> None:
    """Print the table of accuracies."""
    print(f"\n{'accuracy after ' + str(STEPS) + ' steps':24}{'first z':>9}" + "".join(f"{o:>10}" for o in optimizers))
    for name in dict.fromkeys(training.noise for training in trainings):
        row = [training for training in trainings if training.noise == name]
        cells = "".join(f"{training.accuracy[-1]:10.1%}" for training in row)
        print(f"{name:24}{row[0].noise_multiplier:9.3f}{cells}")


def plot(trainings: list[Training], optimizers: list[str], file: Path) -> None:
    """Plot accuracy and clipping norm over the steps."""
    mpl.use("Agg")
    size = (1 + 4 * len(optimizers), 7)
    figure, panels = plt.subplots(2, len(optimizers), figsize=size, sharex=True, squeeze=False, layout="constrained")
    for column, optimizer in enumerate(optimizers):
        for training in trainings:
            if training.optimizer == optimizer:
                panels[0, column].plot(training.accuracy, label=training.noise)
                panels[1, column].plot(training.clipping_norm, label=training.noise)
        panels[0, column].set(title=optimizer, ylabel="accuracy", ylim=(0.0, 1.0))
        panels[1, column].set(xlabel="step", ylabel="clipping norm C")
    panels[0, 0].legend(fontsize="small")
    figure.suptitle(f"The same epsilon, {LIMIT.epsilon:g} at delta {LIMIT.delta:g}, for every training")
    figure.savefig(file)
    plt.close(figure)


def main() -> None:
    """Plan, train and compare."""
    options = parser("Decaying noise and adaptive clipping for the same epsilon.", "adaptive-results")
    options.add_argument("--optimizers", nargs="+", choices=OPTIMIZERS, default=list(OPTIMIZERS), help="by default all")
    options.add_argument("--noises", nargs="+", choices=NOISES, default=list(NOISES), help="by default all")
    asked = options.parse_args()
    trainings = []
    with LedgerClient() as ledger:
        path = budget(
            ledger,
            asked.budget,
            "digit-writers",
            privacy_unit="handwritten digit",
            neighboring_relation="add_or_remove_one",
            size=TRAINING_RECORDS,
            limit=TOTAL,
        )
        for name in asked.noises:
            first = first_noise_multiplier(ledger, name)
            for optimizer in asked.optimizers:
                training = Training(name, optimizer, first)
                noise = noise_of(name, first)
                # What the steps cost is fixed in advance: it is the plan of the run, and steps are granted ahead.
                schedule = schedule_of(noise)
                with ledger.create_run(
                    f"{name}, {optimizer}",
                    budget=path,
                    limit=LIMIT,
                    planned=[(schedule(step), 1) for step in range(STEPS)],
                    authorize_every=50,
                    background=True,
                    schedule=schedule,
                ) as run:
                    train(training, noise, run)
                training.epsilon = run.epsilon
                trainings.append(training)
                print(f"{name:20} {optimizer:9} epsilon {run.epsilon:.4f}, {training.accuracy[-1]:.1%} right")
        spent = ledger.get_budget(run.state.budget)
    show(trainings, asked.optimizers)
    print(f"\nAll {len(trainings)} trainings together cost the same people epsilon {spent.epsilon:.2f}.")
    asked.out.mkdir(parents=True, exist_ok=True)
    plot(trainings, asked.optimizers, asked.out / "adaptive.png")
    (asked.out / "adaptive.json").write_text(json.dumps([asdict(training) for training in trainings]))
    print(f"Written: {asked.out / 'adaptive.png'} and {asked.out / 'adaptive.json'}")


if __name__ == "__main__":
    main()
