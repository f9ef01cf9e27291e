"""Horizontal federated logistic regression with DP-SGD: three hospitals, three processes, three budgets.

The ledger must be running (README.md, "By hand"). Then:

    EPSILON_LEDGER_URL=http://127.0.0.1:8000 EPSILON_LEDGER_API_KEY=... \
        python examples/federated_logistic_regression.py --keys KEY_OF_A KEY_OF_B KEY_OF_C

Each party is a process with private patients and API key. In every round it takes DP-SGD steps from the coordinator's
weights, authorizes each of them, and returns noisy weights. A party whose budget is spent stops; the others go on. The
coordinator averages, tests on its own patients, and writes predictions, indicators and the model. Without --keys all
parties use EPSILON_LEDGER_API_KEY.
"""

import argparse
import csv
import json
import multiprocessing
import os
import re
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from multiprocessing.connection import Connection
from pathlib import Path

import numpy as np
from common import budget, parser
from numpy.typing import NDArray
from sklearn.datasets import load_breast_cancer
from sklearn.metrics import accuracy_score, roc_auc_score, roc_curve

from epsilon_ledger import BudgetExceededError, LedgerClient, Limit
from epsilon_ledger.mechanisms import DpSgd, GaussianNoise, PoissonSampler

Floats = NDArray[np.float64]

PARTIES = ("A", "B", "C")
SHARES = (0, 120, 270, 450)
"""Boundaries of the parties' patients; the rest are the coordinator's, for testing."""
BATCH_SIZE = 16
NOISE_MULTIPLIER = 2.0
CLIPPING_NORM = 1.0
LEARNING_RATE = 0.5
ROUNDS = 80
STEPS_PER_ROUND = 5
LIMIT = Limit(3.0, 1e-3)
"""Limit of each party. The smallest party samples its patients most often, and stops first."""


@dataclass(frozen=True)
class Statement:
    """Final report of a party.

    Args:
        party: its name.
        run: id of its run.
        records: number of patients.
        steps: number of steps.
        epsilon: spent by the ledger's filter, valid for adaptive choices.
        epsilon_rdp: what an in-process RDP accountant would print.
        delta: of both.
        refusal: why it stopped early, or None.
    """

    party: str
    run: str
    records: int
    steps: int
    epsilon: float
    epsilon_rdp: float
    delta: float
    refusal: str | None


def records() -> tuple[Floats, Floats]:
    """Load the patients, scaled by the ranges published with the data.

    Returns:
        (n_records, 31) features in about [-1, 1] and a one; (n_records,) labels, 1 for a benign tumour.
    """
    data = load_breast_cancer()
    ranges = np.array(re.findall(r":\s+([\d.]+)\s+([\d.]+)\s*$", data.DESCR, re.MULTILINE), dtype=float)
    middles, widths = ranges.mean(axis=1), np.maximum(np.ptp(ranges, axis=1), 1e-9)
    features = 2.0 * (data.data - middles) / widths
    order = np.random.default_rng(7).permutation(len(features))
    return np.column_stack([features, np.ones(len(features))])[order], data.target[order].astype(float)


def probabilities(weights: Floats, features: Floats) -> Floats:
    """Predict (n_records,) probabilities of a benign tumour."""
    chances: Floats = 1.0 / (1.0 + np.exp(-features @ weights))
    return chances


def party(name: str, number: int, key: str, asked_budget: str | None, line: Connection) -> None:
    """Run one hospital in a process: answer every round's weights with improved ones, then with a statement.

    Args:
        name: of the hospital.
        number: of its share of the patients.
        key: its API key.
        asked_budget: id or path of its budget; None: it creates one.
        line: to the coordinator.
    """
    features, labels = (each[SHARES[number] : SHARES[number + 1]] for each in records())
    sampler = PoissonSampler(len(features), BATCH_SIZE / len(features))
    weights = np.zeros(features.shape[1])
    refusal = None
    with LedgerClient(api_key=key) as ledger:
        path = budget(
            ledger,
            asked_budget,
            f"patients-of-{name}",
            privacy_unit="patient",
            neighboring_relation="add_or_remove_one",
            size=len(features),
            limit=LIMIT,
        )
        # What a step costs is known, so steps are granted ahead: one request for ten of them.
        with ledger.create_run(f"logistic-regression-{name}", budget=path, authorize_every=10) as run:
            noise = GaussianNoise(NOISE_MULTIPLIER, clipping_norm=CLIPPING_NORM)
            optimizer = DpSgd(weights, noise=noise, sampler=sampler, run=run, learning_rate=LEARNING_RATE)
            while refusal is None and (sent := line.recv()) is not None:
                weights[:] = sent
                try:
                    for _ in range(STEPS_PER_ROUND):
                        drawn = optimizer.sample()
                        residuals = probabilities(weights, features[drawn]) - labels[drawn]
                        optimizer.step(residuals[:, np.newaxis] * features[drawn])
                except BudgetExceededError as error:
                    refusal = str(error)
                line.send((weights, refusal is None))
        state = run.refresh()
    rdp = state.epsilon if state.epsilon_rdp is None else state.epsilon_rdp
    line.send(Statement(name, run.id, len(features), optimizer.steps, state.epsilon, rdp, state.delta, refusal))


def coordinate(lines: Sequence[Connection], features: int) -> tuple[Floats, list[Statement]]:
    """Average the parties' private weights in every round.

    Args:
        lines: to the parties.
        features: number of weights.

    Returns:
        The weights, (n_features,), and the parties' statements.
    """
    weights = np.zeros(features)
    going = dict(zip(lines, np.diff(SHARES), strict=True))
    statements = []
    for _ in range(ROUNDS):
        for line in going:
            line.send(weights)
        answers = {line: line.recv() for line in going}
        if answers:
            weights = np.average([sent for sent, _ in answers.values()], axis=0, weights=list(going.values()))
        for line, (_, goes_on) in answers.items():
            if not goes_on:
                statements.append(line.recv())
                del going[line]
    for line in going:
        line.send(None)
        statements.append(line.recv())
    return weights, sorted(statements, key=lambda statement: statement.party)


def reference_epsilon(statement: Statement) -> float | None:
    """Compute a party's epsilon by the library dp_accounting, or return None without it.

    By orders 1.1 ... 10.9 and 12 ... 63, as in PrimiHub's documentation.
    """
    try:
        import dp_accounting  # noqa: PLC0415 - the example runs without it
        from dp_accounting.rdp import RdpAccountant  # noqa: PLC0415 - as above
    except ImportError:
        return None
    accountant = RdpAccountant([1 + tenths / 10.0 for tenths in range(1, 100)] + list(range(12, 64)))
    sampled = dp_accounting.PoissonSampledDpEvent(
        BATCH_SIZE / statement.records, dp_accounting.GaussianDpEvent(NOISE_MULTIPLIER)
    )
    accountant.compose(dp_accounting.SelfComposedDpEvent(sampled, statement.steps))
    return float(accountant.get_epsilon(statement.delta))


def write(folder: Path, weights: Floats, statements: Sequence[Statement]) -> dict[str, float]:
    """Write predictions, indicators and the model; return accuracy, AUC and KS."""
    folder.mkdir(parents=True, exist_ok=True)
    features, labels = (each[SHARES[-1] :] for each in records())
    chances = probabilities(weights, features)
    with (folder / "train_predict.csv").open("w", newline="") as file:
        rows = csv.writer(file)
        rows.writerow(["label", "probability", "prediction"])
        rows.writerows(zip(labels.astype(int), chances.round(6), (chances > 0.5).astype(int), strict=True))  # noqa: PLR2004
    false_rates, true_rates, thresholds = roc_curve(labels, chances)
    found = {
        "accuracy": float(accuracy_score(labels, chances > 0.5)),  # noqa: PLR2004 - the likelier class
        "auc": float(roc_auc_score(labels, chances)),
        "ks": float(np.max(true_rates - false_rates)),
    }
    roc = {"fpr": false_rates.tolist(), "tpr": true_rates.tolist(), "thresholds": thresholds[1:].tolist()}
    privacy = [asdict(each) | {"epsilon_reference": reference_epsilon(each)} for each in statements]
    (folder / "train_indicator.json").write_text(json.dumps(found | {"roc": roc, "privacy": privacy}, indent=2))
    np.savez(folder / "model.npz", weights=weights)
    return found


def options() -> argparse.Namespace:
    """Parse the command line."""
    made = parser("Federated logistic regression with DP-SGD.", "federated-results")
    made.add_argument("--keys", nargs=3, metavar="KEY", help="API keys of the three parties")
    made.add_argument("--budgets", nargs=3, metavar="BUDGET", help="id or path of the three parties' budgets")
    found: argparse.Namespace = made.parse_args()
    return found


def main() -> None:
    """Start the parties, coordinate them, and print the results."""
    asked = options()
    keys = asked.keys or [os.environ["EPSILON_LEDGER_API_KEY"]] * len(PARTIES)
    budgets = asked.budgets or [asked.budget] * len(PARTIES)
    context = multiprocessing.get_context("spawn")
    lines, processes = [], []
    for number, name in enumerate(PARTIES):
        ours, theirs = context.Pipe()
        process = context.Process(target=party, args=(name, number, keys[number], budgets[number], theirs))
        process.start()
        lines.append(ours)
        processes.append(process)
    weights, statements = coordinate(lines, records()[0].shape[1])
    for process in processes:
        process.join()
    found = write(asked.out, weights, statements)
    print(f"\n{'party':>5} {'patients':>8} {'steps':>6} {'epsilon':>8} {'RDP accountant':>14} {'reference':>10}")
    for each in statements:
        reference = reference_epsilon(each)
        print(
            f"{each.party:>5} {each.records:8} {each.steps:6} {each.epsilon:8.4f} {each.epsilon_rdp:14.4f} "
            f"{'-' if reference is None else f'{reference:.4f}':>10}"
        )
    for each in statements:
        if each.refusal is not None:
            print(f"{each.party} stopped: {each.refusal}")
    print(f"\nOn the coordinator's own patients: {', '.join(f'{name} {value:.3f}' for name, value in found.items())}")
    print(f"Written: train_predict.csv, train_indicator.json and model.npz in {asked.out}")


if __name__ == "__main__":
    main()
