"""Local differential privacy: a thousand devices send noisy inference results, the cloud scores their clusters.

The ledger must be running (README.md, "By hand"), and matplotlib and scikit-learn must be installed. Then:

    EPSILON_LEDGER_URL=http://127.0.0.1:8000 EPSILON_LEDGER_API_KEY=... python examples/local_dp_clustering.py

Each client classifies one handwritten digit and sends the softmax output with Laplace noise added on the device. The
cloud never sees the truth; it computes the Calinski-Harabasz index and the silhouette score of the reports. Every round
is charged to the clients' population; a round beyond its limit does not happen.
"""

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import matplotlib as mpl
import matplotlib.pyplot as plt
import numpy as np
from common import budget, parser
from numpy.typing import NDArray
from sklearn.datasets import load_digits
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import calinski_harabasz_score, silhouette_score

from epsilon_ledger import BudgetExceededError, LedgerClient, Limit
from epsilon_ledger.mechanisms import LaplaceNoise

Floats = NDArray[np.float64]

CLIENTS = 1_000
CLASSES = 10
L1_SENSITIVITY = 2.0
"""Of a vector of probabilities: all of its weight may move, which changes two entries by 1."""
EPSILONS = (1.0, 2.0, 4.0, 8.0, 16.0, 32.0, 64.0, 128.0)
LIMIT = Limit(128.0, 1e-6)
"""Pure epsilons add up: the rounds up to 64 fit, the last one does not. Real limits are far lower."""
BOUNDS = (1e-5, 1e-2, 0.1, 0.5)
VACUOUS = 20.0
"""Epsilon above which the guarantee is vacuous."""


@dataclass(frozen=True)
class Round:
    """Result of one round.

    Args:
        epsilon: of the round for each client; None: without noise, as only a simulation can know.
        scale: b of the noise.
        calinski_harabasz: index of the clusters; more is better.
        silhouette: score of the clusters, in [-1, 1].
        right: share of the clients whose largest value is still that of their digit.
        spent: epsilon of the population after the round.
    """

    epsilon: float | None
    scale: float
    calinski_harabasz: float
    silhouette: float
    right: float
    spent: float


def devices() -> tuple[Floats, NDArray[np.int64]]:
    """Train a classifier on public digits, and classify one digit of each client.

    Returns:
        (n_clients, n_classes) softmax outputs, and (n_clients,) the true digits.
    """
    pixels, digits = load_digits(return_X_y=True)
    model = LogisticRegression(max_iter=1000).fit(pixels[CLIENTS:] / 16.0, digits[CLIENTS:])
    return model.predict_proba(pixels[:CLIENTS] / 16.0), digits[:CLIENTS]


def noise_of(epsilon: float) -> LaplaceNoise:
    """Create the noise of a round on every device."""
    return LaplaceNoise(epsilon=epsilon, l1_sensitivity=L1_SENSITIVITY, neighboring_relation="replace_one")


def scores(reports: Floats) -> tuple[float, float]:
    """Compute Calinski-Harabasz index and silhouette score of (n_clients, n_classes) reports by largest value."""
    clusters = np.argmax(reports, axis=1)
    return float(calinski_harabasz_score(reports, clusters)), float(silhouette_score(reports, clusters))


def calibrate(ledger: LedgerClient) -> None:
    """Print the cost of keeping 90 % of the noise below a bound."""
    print("\nWhich epsilon keeps 90 % of the noise in a coordinate below m?")
    print(f"{'m':>8} {'scale b':>12} {'epsilon':>12}")
    for bound in BOUNDS:
        noise = ledger.compute_laplace_cost(bound=bound, probability=0.9, l1_sensitivity=L1_SENSITIVITY)
        print(f"{bound:8g} {noise.scale:12.4g} {noise.epsilon:12.6g}{'  protects nobody' * (noise.epsilon > VACUOUS)}")


def collect(ledger: LedgerClient, path: str, outputs: Floats, digits: NDArray[np.int64]) -> list[Round]:
    """Collect reports with less and less noise, until the budget is spent; return the rounds.

    Args:
        ledger: with a trainer's key.
        path: of the budget.
        outputs: (n_clients, n_classes), on the devices.
        digits: (n_clients,), to count reports that are still right.
    """
    rounds = []
    with ledger.create_run("local-dp-clustering", budget=path, neighboring_relation="replace_one") as run:
        for epsilon in EPSILONS:
            noise = noise_of(epsilon)
            try:
                reports = noise.release(outputs, run=run)
            except BudgetExceededError as refusal:
                print(f"\nThe round with epsilon {epsilon:g} does not take place: {refusal}")
                break
            right = float(np.mean(np.argmax(reports, axis=1) == digits))
            rounds.append(Round(epsilon, noise.scale, *scores(reports), right, run.epsilon))
    return rounds


def show(rounds: Sequence[Round], without: Round) -> None:
    """Print the table."""
    print(f"\n{'epsilon':>8} {'scale b':>8} {'Calinski-Harabasz':>18} {'silhouette':>11} {'right':>7} {'spent':>8}")
    for each in (*rounds, without):
        name = "no noise" if each.epsilon is None else f"{each.epsilon:g}"
        print(
            f"{name:>8} {each.scale:8.4f} {each.calinski_harabasz:18.1f} {each.silhouette:11.3f} "
            f"{each.right:7.1%} {each.spent:8.2f}"
        )


def plot(rounds: Sequence[Round], without: Round, file: Path) -> None:
    """Plot both scores over epsilon, with those without noise as a line."""
    mpl.use("Agg")
    figure, panels = plt.subplots(1, 2, figsize=(10, 4), layout="constrained")
    epsilons = [each.epsilon for each in rounds]
    for panel, name, values, truth in (
        (panels[0], "Calinski-Harabasz index", [each.calinski_harabasz for each in rounds], without.calinski_harabasz),
        (panels[1], "silhouette score", [each.silhouette for each in rounds], without.silhouette),
    ):
        panel.plot(epsilons, values, marker="o", label="Laplace noise on the device")
        panel.axhline(truth, linestyle="--", color="gray", label="without noise")
        panel.set(xscale="log", xlabel="epsilon of one report", ylabel=name)
        panel.legend()
    panels[0].set_yscale("log")
    figure.savefig(file)
    plt.close(figure)


def main() -> None:
    """Calibrate, collect and score."""
    asked = parser(
        "Cluster scores of inference results under local differential privacy.", "local-dp-results"
    ).parse_args()
    outputs, digits = devices()
    without = Round(None, 0.0, *scores(outputs), float(np.mean(np.argmax(outputs, axis=1) == digits)), 0.0)
    with LedgerClient() as ledger:
        path = budget(
            ledger,
            asked.budget,
            "digit-devices",
            privacy_unit="client device",
            neighboring_relation="replace_one",
            size=CLIENTS,
            limit=LIMIT,
            planned=[{"event": noise_of(epsilon).event, "count": 1} for epsilon in EPSILONS[:-1]],
        )
        calibrate(ledger)
        rounds = collect(ledger, path, outputs, digits)
    show(rounds, without)
    asked.out.mkdir(parents=True, exist_ok=True)
    plot(rounds, without, asked.out / "scores.png")
    facts = {"clients": CLIENTS, "without_noise": asdict(without), "rounds": [asdict(each) for each in rounds]}
    (asked.out / "scores.json").write_text(json.dumps(facts, indent=2))
    print(f"\nWritten: {asked.out / 'scores.png'} and {asked.out / 'scores.json'}")


if __name__ == "__main__":
    main()
