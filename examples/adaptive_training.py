"""Decaying noise and adaptive clipping compared to constant noise, at the same epsilon.

The ledger must be running (README.md, "By hand"), and matplotlib and scikit-learn must be installed. Then:

    EPSILON_LEDGER_URL=http://127.0.0.1:8000 EPSILON_LEDGER_API_KEY=... python examples/adaptive_training.py

Six kinds of noise and three optimizers learn scikit-learn's handwritten digits, several times. All trainings have the
same steps and limit: the ledger's planner finds the first noise multiplier with which the whole plan fits. The noisy
count that moves the clipping norm is part of the charge.

The comparison is fair: each kind of noise has its clipping norm and learning rate chosen on public digits. Choosing
them by the accuracy of the private trainings would be a release, and would have to be charged.
"""

import argparse
import json
from collections.abc import Callable
from dataclasses import asdict
from functools import cache
from math import log

import numpy as np
from adaptive_results import Training, conclude, plot, show
from common import budget, parser
from numpy.typing import NDArray
from sklearn.datasets import load_digits

from epsilon_ledger import Event, EventCount, LedgerClient, Limit, decay, gaussian, poisson_sampled
from epsilon_ledger.mechanisms import (
    AdaptiveClipping,
    Authorizer,
    ClippedSumMechanism,
    DpAdam,
    DpMomentum,
    DpOptimizer,
    DpSgd,
    GaussianNoise,
    PoissonSampler,
    Unmetered,
)

Floats = NDArray[np.float64]
Digits = NDArray[np.int64]

STEPS = 150
SAMPLING_PROBABILITY = 0.1
PRIVATE, PUBLIC, PUBLIC_TEST, TEST = (slice(*each) for each in ((0, 1200), (1200, 1400), (1400, 1500), (1500, None)))
"""Digits: private ones, public ones for the choice of settings, and those that test the trainings."""
TRAINING_RECORDS = 1_200
EXPECTED_BATCH_SIZE = SAMPLING_PROBABILITY * TRAINING_RECORDS
LIMIT = Limit(2.0, 1e-4)
"""Limit of each training. Together they cost the same people more, as their budget shows."""
TOTAL = Limit(200.0, 1e-4)
ROUNDED_UP = 1.0 + 1e-6

OPTIMIZERS: dict[str, tuple[type[DpOptimizer[Digits]], tuple[float, ...], bool]] = {
    "SGD": (DpSgd, (1.0, 3.0, 9.0), True),
    "momentum": (DpMomentum, (0.1, 0.3, 0.9), True),
    "Adam": (DpAdam, (0.01, 0.03, 0.1), False),
}
"""Optimizers with their learning rates to choose from, and whether these are divided by the clipping norm."""
NORMS = (0.25, 1.0, 4.0)
"""Clipping norms to choose from. Gradients at the start have norms of about 4; later most are far smaller."""
NOISES = ("constant", "decay, time", "decay, step", "decay, exp", "clipping, linear", "clipping, geometric")
DECAY_RATE = 0.005
LEARNING_RATES_OF_C = {"linear": 0.3, "geometric": 0.2}
FRACTION_STDDEV = 0.05
"""Standard deviation of the noise of the fraction that moves the clipping norm."""
PUBLIC_SEEDS = (101, 102)


@cache
def digits() -> tuple[Floats, Digits]:
    """Load the records: (n, 65) pixels in [0, 1] and a one, and (n,) digits."""
    pixels, labels = load_digits(return_X_y=True)
    return np.column_stack([pixels / 16.0, np.ones(len(pixels))]), labels


def gradients(weights: Floats, features: Floats, labels: Digits) -> Floats:
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


@cache
def constant_noise_multiplier(ledger: LedgerClient) -> float:
    """Find the minimum noise of steps that are all alike, with which the whole plan fits the limit."""
    step = poisson_sampled(SAMPLING_PROBABILITY, gaussian(1.0))
    found = ledger.find_noise_multiplier(step, count=STEPS, epsilon=LIMIT.epsilon, delta=LIMIT.delta)
    z = found.noise_multiplier.with_plan
    assert z is not None, "this limit leaves room for some noise"
    return z


def first_noise_multiplier(ledger: LedgerClient, name: str) -> float:
    """Find the minimum noise of the first step with which the whole plan fits the limit."""
    kind, _, mode = name.partition(", ")
    if kind == "decay":
        return first_of_decay(ledger, mode)
    z = constant_noise_multiplier(ledger)
    if kind == "clipping":
        # Sum and count are released together: z^-2 = sum^-2 + (2 count)^-2 (Andrew et al. 2021, Theorem 1).
        stddev = FRACTION_STDDEV * EXPECTED_BATCH_SIZE
        z = float((z**-2 - (2 * stddev) ** -2) ** -0.5) * ROUNDED_UP
    return z


def first_of_decay(ledger: LedgerClient, mode: str) -> float:
    """Find the first noise multiplier of a decay, whose steps have too many noises for the planner's own search.

    By secants of the logarithms, which are nearly straight. Its plan costs 99.992 % of the limit or a little more.
    """
    z, slope, last = 3.5, -1.2, None
    target = LIMIT.epsilon * (1 - 4e-5)
    while True:
        step = poisson_sampled(SAMPLING_PROBABILITY, gaussian(z))
        plan: EventCount = {"event": decay(mode, DECAY_RATE, step, steps=STEPS), "count": 1}  # type: ignore[arg-type]
        cost = ledger.compute_epsilon([plan], delta=LIMIT.delta).limit_needed.with_plan
        if abs(cost - target) <= LIMIT.epsilon * 4e-5:
            return z
        if last is not None:
            slope = log(cost / last[1]) / log(z / last[0])
        last = z, cost
        z *= (target / cost) ** (1 / slope)


def noise_of(name: str, z: float, norm: float, seed: int) -> ClippedSumMechanism:
    """Create a mechanism: constant or decaying noise, or a clipping norm that follows the median norm.

    It is seeded, so that the comparison can be repeated: these digits are public. A job never seeds its noise.
    """
    kind, _, mode = name.partition(", ")
    if kind == "decay":
        return GaussianNoise(z, clipping_norm=norm, decay_mode=mode, decay_rate=DECAY_RATE, insecure_seed=seed)  # type: ignore[arg-type]
    noise = GaussianNoise(z, clipping_norm=norm, insecure_seed=seed)
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


def train(training: Training, noise: ClippedSumMechanism, run: Authorizer, known: slice, unseen: slice) -> None:
    """Train, and record accuracy and clipping norm at each step.

    Args:
        training: the settings, and where to record.
        noise: of the sum.
        run: to charge.
        known: the digits to learn from. As many are sampled in each step, whatever their number.
        unseen: the digits to test with.
    """
    features, labels = digits()
    weights = np.zeros((features.shape[1], 10))
    count = len(labels[known])
    kind, _, _ = OPTIMIZERS[training.optimizer]
    sampler = PoissonSampler(count, EXPECTED_BATCH_SIZE / count, insecure_seed=training.seed)
    optimizer = kind(weights, noise=noise, sampler=sampler, run=run, learning_rate=training.learning_rate)
    for _ in range(STEPS):
        training.clipping_norm.append(noise.clipping_norm)
        drawn = optimizer.sample()
        optimizer.step(gradients(weights, features[known][drawn], labels[known][drawn]))
        right = np.argmax(features[unseen] @ weights, axis=1) == labels[unseen]
        training.accuracy.append(float(np.mean(right)))


def choose(name: str, optimizer: str, z: float, norms: list[float]) -> tuple[dict[float, float], float]:
    """Choose settings on public digits, with the noise and the batch size of the private training.

    Returns:
        The best learning rate of each clipping norm, and the best clipping norm.
    """
    public = Unmetered("these digits are public")
    _, rates, divided = OPTIMIZERS[optimizer]
    found: dict[float, tuple[float, float]] = {}
    for norm in norms:
        tried = []
        for rate in rates:
            trials = [
                Training(name, optimizer, z, norm, rate / norm if divided else rate, seed) for seed in PUBLIC_SEEDS
            ]
            for trial in trials:
                train(trial, noise_of(name, z, norm, trial.seed), public, PUBLIC, PUBLIC_TEST)
            tried.append((float(np.mean([trial.accuracy[-1] for trial in trials])), trials[0].learning_rate))
        found[norm] = max(tried)
    return {norm: rate for norm, (_, rate) in found.items()}, max(found, key=lambda norm: found[norm][0])


def train_privately(ledger: LedgerClient, path: str, training: Training) -> None:
    """Train in a run of its own, up to the limit."""
    noise = noise_of(training.noise, training.noise_multiplier, training.norm, training.seed)
    # What the steps cost is fixed in advance: it is the plan of the run, and steps are granted ahead.
    schedule = schedule_of(noise)
    with ledger.create_run(
        f"{training.noise}, {training.optimizer}, C {training.norm:g}, seed {training.seed}",
        budget=path,
        neighboring_relation="add_or_remove_one",
        limit=LIMIT,
        planned=[(schedule(step), 1) for step in range(STEPS)],
        prefetch=STEPS,
        schedule=schedule,
    ) as run:
        train(training, noise, run, PRIVATE, TEST)
    training.epsilon = run.epsilon


def options() -> argparse.Namespace:
    """Parse the command line."""
    made = parser("Decaying noise and adaptive clipping for the same epsilon.", "adaptive-results")
    made.add_argument("--optimizers", nargs="+", choices=OPTIMIZERS, default=list(OPTIMIZERS), help="by default all")
    made.add_argument("--noises", nargs="+", choices=NOISES, default=list(NOISES), help="by default all")
    made.add_argument("--norms", nargs="+", type=float, default=list(NORMS), help="to choose from (%(default)s)")
    made.add_argument("--seeds", type=int, default=5, help="trainings of each kind (%(default)s)")
    found: argparse.Namespace = made.parse_args()
    return found


def main() -> None:
    """Plan, choose, train and compare."""
    asked = options()
    trainings: list[Training] = []
    # A plan of 150 different noises takes the ledger seconds to compute, and a busy one longer.
    with LedgerClient(timeout=120.0, give_up_after=600.0) as ledger:
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
            z = first_noise_multiplier(ledger, name)
            for optimizer in asked.optimizers:
                rates, best = choose(name, optimizer, z, asked.norms)
                # Decaying noise is trained at its chosen norm alone; the others show what each norm would have given.
                for norm in [best] if name.startswith("decay") else asked.norms:
                    row = [
                        Training(name, optimizer, z, norm, rates[norm], seed, chosen=norm == best)
                        for seed in range(asked.seeds)
                    ]
                    for training in row:
                        train_privately(ledger, path, training)
                    trainings += row
                    print(
                        f"{name:20} {optimizer:9} C {norm:<5g}{'chosen' if norm == best else '':7} "
                        f"epsilon {row[0].epsilon:.4f}, {np.median([each.accuracy[-1] for each in row]):.1%} right",
                        flush=True,
                    )
        spent = ledger.get_budget(path)
    show(trainings, asked.optimizers)
    conclude(trainings, asked.optimizers)
    print(f"\nAll {len(trainings)} trainings together cost the same people epsilon {spent.epsilon:.2f}.")
    asked.out.mkdir(parents=True, exist_ok=True)
    plot(trainings, asked.optimizers, asked.out / "adaptive.png", LIMIT)
    (asked.out / "adaptive.json").write_text(json.dumps([asdict(training) for training in trainings]))
    print(f"Written: {asked.out / 'adaptive.png'} and {asked.out / 'adaptive.json'}")


if __name__ == "__main__":
    main()
