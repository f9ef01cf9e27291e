"""A DP-SGD job that can be killed and restarted at any time without losing its spending.

The ledger must be running, with a budget that the job may charge (README.md, "By hand"). Then:

    EPSILON_LEDGER_URL=http://127.0.0.1:8000 EPSILON_LEDGER_API_KEY=... \
        python examples/resumable_trainer.py --budget mimic/icu-team checkpoint.npz

It learns scikit-learn's handwritten digits until its budget is spent. Restarted with the same checkpoint, it resumes
the same run. An admitted step whose weights were lost with the process stays charged.
"""

# A script, not a package:

import argparse
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from sklearn.datasets import load_digits

from epsilon_ledger import BudgetExceededError, LedgerClient, Run, gaussian, poisson_sampled

Floats = NDArray[np.float64]

SAMPLING_PROBABILITY = 0.1
NOISE_MULTIPLIER = 4.0
CLIPPING_NORM = 1.0
LEARNING_RATE = 2.0
TEST_RECORDS = 397
LARGEST_PIXEL = 16.0  # from the data set's documentation; computing it from the records would be a release


@dataclass
class Progress:
    """Progress that survives a restart.

    Args:
        run_id: of the ledger's run.
        weights: (n_features, n_classes), after the last saved step.
    """

    run_id: str
    weights: Floats

    def save(self, file: Path) -> None:
        """Write a checkpoint (.npz) atomically."""
        new = file.with_name(f"new-{file.name}")
        np.savez(new, run_id=self.run_id, weights=self.weights)
        new.replace(file)

    @classmethod
    def load(cls, file: Path) -> "Progress":
        """Read a checkpoint."""
        with np.load(file) as saved:
            return cls(str(saved["run_id"]), saved["weights"])


def noisy_gradient(weights: Floats, features: Floats, labels: Floats, rng: np.random.Generator) -> Floats:
    """Release one step: the noisy mean gradient of a Poisson sample, clipped for each record.

    Args:
        weights: (n_features, n_classes).
        features: (n_records, n_features).
        labels: (n_records, n_classes), 0 or 1.
        rng: source of sampling and noise.

    Returns:
        (n_features, n_classes), divided by the expected sample size, because the actual one is private.
    """
    drawn = rng.random(len(features)) < SAMPLING_PROBABILITY
    sample = features[drawn]
    scores = sample @ weights
    likelihoods = np.exp(scores - scores.max(axis=1, keepdims=True))
    residuals = likelihoods / likelihoods.sum(axis=1, keepdims=True) - labels[drawn]
    # A record's gradient is the outer product of its two rows, so its norm is the product of theirs.
    norms = np.linalg.norm(sample, axis=1) * np.linalg.norm(residuals, axis=1)
    clipped = residuals / np.maximum(norms / CLIPPING_NORM, 1.0)[:, np.newaxis]
    total = sample.T @ clipped + rng.normal(scale=NOISE_MULTIPLIER * CLIPPING_NORM, size=weights.shape)
    mean: Floats = total / (SAMPLING_PROBABILITY * len(features))
    return mean


def train(ledger: LedgerClient, budget: str, checkpoint: Path) -> tuple[Run, Floats]:
    """Train until the budget is spent, from a checkpoint if there is one.

    Args:
        ledger: with a trainer's key.
        budget: id or path of the budget to charge.
        checkpoint: file of the progress.

    Returns:
        The completed run, and the last weights: (n_features, n_classes).
    """
    features, labels = records()
    if checkpoint.exists():
        progress = Progress.load(checkpoint)
        run = ledger.get_run(progress.run_id)
    else:
        event = poisson_sampled(SAMPLING_PROBABILITY, gaussian(NOISE_MULTIPLIER))
        run = ledger.create_run("digits", budget=budget, event=event)
        progress = Progress(run.id, np.zeros((features.shape[1], labels.shape[1])))
        progress.save(checkpoint)
    print(f"{run.id} is {run.status}, at step {run.next_step}", flush=True)
    rng = np.random.default_rng()  # from the operating system's entropy, anew at each start: noise never repeats
    # Not `with run`: it would abort the run at an interrupt, and an aborted run cannot be resumed.
    while run.status == "active":
        try:
            step = run.authorize()
        except BudgetExceededError as refusal:
            print(refusal)
            run.complete()
            break
        progress.weights -= LEARNING_RATE * noisy_gradient(progress.weights, features, labels, rng)
        progress.save(checkpoint)
        if step.next_step % 50 == 0:
            print(f"{step.next_step} steps, epsilon {step.epsilon:.3f}, {step.used:.1%} used")
    return run, progress.weights


def records(*, for_test: bool = False) -> tuple[Floats, Floats]:
    """Load the digits for training or testing.

    Returns:
        Features: (n_records, 65), pixels in [0, 1] and a one; labels: (n_records, 10), 0 or 1.
    """
    pixels, digits = load_digits(return_X_y=True)
    features = np.column_stack([pixels / LARGEST_PIXEL, np.ones(len(pixels))])
    chosen = slice(-TEST_RECORDS, None) if for_test else slice(-TEST_RECORDS)
    return features[chosen], np.eye(10)[digits[chosen]]


def main() -> None:
    """Parse the command line, train, and print the test accuracy."""
    parser = argparse.ArgumentParser(description="A DP-SGD job that may be killed and started again.")
    parser.add_argument("--budget", required=True, help="id or path of the budget to charge")
    parser.add_argument("checkpoint", type=Path, help="where the progress is kept, a file ending in .npz")
    asked = parser.parse_args()
    if asked.checkpoint.suffix != ".npz":
        parser.error(f"the checkpoint is a file ending in .npz, unlike {asked.checkpoint}")
    with LedgerClient() as ledger:
        run, weights = train(ledger, asked.budget, asked.checkpoint)
    features, labels = records(for_test=True)
    right = np.mean(np.argmax(features @ weights, axis=1) == np.argmax(labels, axis=1))
    print(f"{run.id} is {run.status} after {run.next_step} steps; {right:.1%} of the test records are right")


if __name__ == "__main__":
    main()
