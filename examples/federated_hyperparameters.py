"""Clipping and noise: what they do to accuracy and to epsilon, in the federated logistic regression.

The ledger must be running (README.md, "By hand"), and matplotlib and scikit-learn must be installed. Then:

    EPSILON_LEDGER_URL=http://127.0.0.1:8000 EPSILON_LEDGER_API_KEY=... python examples/federated_hyperparameters.py

The three parties train in this process, for each clipping norm and noise multiplier with several divisions of the
patients. Clipping changes the accuracy and not the epsilon; noise changes both. Trying them costs privacy, too: the
same people paid for all trainings, and the last line says how much.
"""

import json
import sys
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass, replace
from functools import cache
from pathlib import Path
from statistics import median

import matplotlib as mpl
import matplotlib.pyplot as plt
import numpy as np
from common import budget, parser
from federated_model import PARTIES, Configuration, records
from federated_party import Party
from sklearn.metrics import accuracy_score

from epsilon_ledger import LedgerClient, Limit, PlannedEvents, gaussian, poisson_sampled

CLIPPING_NORMS = (0.03, 0.1, 0.3, 1.0, 3.0, 10.0, 30.0)
NOISE_MULTIPLIERS = (0.5, 1.0, 2.0, 4.0, 8.0, 16.0)
TOTAL = Limit(10_000.0, 1e-3)
"""Of all trainings together. No real office would allow so much: see --help."""


@dataclass(frozen=True)
class Setting:
    """Results of one setting.

    Args:
        l2_norm_clip: clipping norm.
        noise_multiplier: of each step.
        accuracies: on test patients, for each division of the patients.
        epsilon: of the party that spent most.
    """

    l2_norm_clip: float
    noise_multiplier: float
    accuracies: tuple[float, ...]
    epsilon: float


@cache
def needed(ledger: LedgerClient, probability: float, noise: float, steps: int) -> tuple[PlannedEvents, Limit]:
    """Find the limit that a party's training needs, and its plan."""
    step, delta = poisson_sampled(probability, gaussian(noise)), TOTAL.delta
    found = ledger.compute_epsilon([{"event": step, "count": steps}], delta=delta)
    return [(step, steps)], Limit(found.limit_needed.with_plan, delta)


def train(ledger: LedgerClient, path: str, configuration: Configuration) -> tuple[float, float]:
    """Train the three parties; return accuracy and the largest epsilon."""
    everyone, model = records(configuration)
    shares = [everyone.share(number) for number in range(len(PARTIES))]
    sizes = [len(share.labels) for share in shares]
    label = f"C {configuration.l2_norm_clip:g}, z {configuration.noise_multiplier:g}, seed {configuration.seed}"
    plans = [
        needed(ledger, configuration.batch_size / size, configuration.noise_multiplier, configuration.max_iter)
        for size in sizes
    ]
    with ExitStack() as runs:
        parties = []
        for name, share, (planned, limit) in zip(PARTIES, shares, plans, strict=True):
            run = ledger.create_run(
                f"{label}, {name}", budget=path, limit=limit, planned=planned, prefetch=50, prefetch_in_background=True
            )
            parties.append(Party(name, share, model, configuration, runs.enter_context(run)))
        while all(party.is_going for party in parties):
            improved = [party.improve(model.weights) for party in parties]
            model = model.with_weights(np.average(improved, axis=0, weights=sizes))
    testers = everyone.share(len(PARTIES))
    right = accuracy_score(testers.labels, model.probabilities(testers.features) > 0.5)  # noqa: PLR2004
    return float(right), max(limit.epsilon for _, limit in plans)


def measure(ledger: LedgerClient, path: str, configuration: Configuration, seeds: Sequence[int]) -> Setting:
    """Train one setting with every seed, and print its row."""
    found = [train(ledger, path, replace(configuration, seed=seed)) for seed in seeds]
    accuracies = tuple(accuracy for accuracy, _ in found)
    setting = Setting(configuration.l2_norm_clip, configuration.noise_multiplier, accuracies, found[0][1])
    print(
        f"{setting.l2_norm_clip:8g} {setting.noise_multiplier:6g} {median(accuracies):10.1%} "
        f"{min(accuracies):8.1%} {max(accuracies):8.1%} {setting.epsilon:9.3f}",
        flush=True,
    )
    return setting


def plot(clippings: Sequence[Setting], noises: Sequence[Setting], file: Path) -> None:
    """Plot accuracy with its range, and epsilon, over both parameters."""
    mpl.use("Agg")
    figure, panels = plt.subplots(2, 2, figsize=(10, 6), sharex="col", layout="constrained")
    columns = (
        ("clipping norm C", clippings, [each.l2_norm_clip for each in clippings]),
        ("noise multiplier z", noises, [each.noise_multiplier for each in noises]),
    )
    for (above, below), (name, settings, values) in zip(panels.T, columns, strict=True):
        middles = [median(each.accuracies) for each in settings]
        above.fill_between(
            values,
            [min(each.accuracies) for each in settings],
            [max(each.accuracies) for each in settings],
            alpha=0.25,
            label="range over divisions",
        )
        above.plot(values, middles, marker="o", label="median")
        above.set(xscale="log", ylabel="accuracy", ylim=(0.3, 1.02))
        above.legend(loc="lower center")
        below.plot(values, [each.epsilon for each in settings], marker="s", color="tab:orange")
        below.set(xscale="log", yscale="log", xlabel=name, ylabel="epsilon of the smallest party")
    panels[0, 0].set_title("Clipping costs accuracy, and no epsilon")
    panels[0, 1].set_title("Noise costs accuracy, and saves epsilon")
    panels[1, 0].set_ylim(panels[1, 1].get_ylim())
    figure.savefig(file)
    plt.close(figure)


def main() -> None:
    """Train every setting, and compare."""
    options = parser("Effect of clipping and noise in federated regression.", "hyperparameter-results")
    options.add_argument("--clipping-norms", type=float, nargs="+", default=list(CLIPPING_NORMS), metavar="C")
    options.add_argument("--noise-multipliers", type=float, nargs="+", default=list(NOISE_MULTIPLIERS), metavar="Z")
    options.add_argument("--seeds", type=int, default=3, help="divisions of the patients (%(default)s)")
    options.add_argument("--steps", type=int, default=100, help="of each party (%(default)s)")
    asked = options.parse_args()
    if asked.seeds < 1 or asked.steps < 1:
        sys.exit("--seeds and --steps must be at least 1.")
    base = Configuration(max_iter=asked.steps)
    seeds = range(asked.seeds)
    with LedgerClient() as ledger:
        path = budget(
            ledger,
            asked.budget,
            "patients-of-all",
            privacy_unit="patient",
            neighboring_relation="add_or_remove_one",
            size=sum(len(records(base)[0].share(number).labels) for number in range(len(PARTIES))),
            limit=TOTAL,
        )
        print(f"\n{'C':>8} {'z':>6} {'accuracy':>10} {'least':>8} {'most':>8} {'epsilon':>9}")
        clippings = [measure(ledger, path, replace(base, l2_norm_clip=norm), seeds) for norm in asked.clipping_norms]
        noises = [measure(ledger, path, replace(base, noise_multiplier=z), seeds) for z in asked.noise_multipliers]
        spent = ledger.get_budget(path).epsilon
    print(
        f"\nTo look for the best setting on the patients themselves cost epsilon {spent:.1f}, if all parties had the "
        f"same ones. Look on public data, or pay once for the search: docs/how-to/run-experiments.md."
    )
    asked.out.mkdir(parents=True, exist_ok=True)
    facts = {"clipping": [asdict(each) for each in clippings], "noise": [asdict(each) for each in noises]}
    (asked.out / "hyperparameters.json").write_text(json.dumps(facts | {"epsilon_of_all": spent}, indent=2))
    plot(clippings, noises, asked.out / "hyperparameters.png")
    print(f"Written: hyperparameters.json and hyperparameters.png in {asked.out}")


if __name__ == "__main__":
    main()
