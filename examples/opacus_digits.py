"""A convolutional net with Opacus under a budget: two additional lines, and the ledger stops the training.

The ledger must be running (README.md, "By hand"); opacus, torch, matplotlib and scikit-learn must be installed. Then:

    EPSILON_LEDGER_URL=http://127.0.0.1:8000 EPSILON_LEDGER_API_KEY=... python examples/opacus_digits.py

It learns scikit-learn's handwritten digits. Every `optimizer.step()` is authorized first. A step that does not fit
raises BudgetExceededError, and leaves the parameters unchanged. A comparison follows: what would the
textbook, composition theorems, RDP and the ledger's plan filter say that the same steps cost?

`--load opacus-results/model.pt` tests a saved model, without a ledger.
"""

import json
import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path

import matplotlib as mpl
import matplotlib.pyplot as plt
import torch
from common import budget, parser
from opacus import PrivacyEngine
from opacus.accountants import RDPAccountant
from sklearn.datasets import load_digits
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from epsilon_ledger import (
    BudgetExceededError,
    ComparedEpsilon,
    EventCount,
    LedgerClient,
    Limit,
    Run,
    gaussian,
    poisson_sampled,
)
from epsilon_ledger.opacus import attach

TRAINING_RECORDS = 1_400
BATCH_SIZE = 140
NOISE_MULTIPLIER = 1.5
CLIPPING_NORM = 1.0
LEARNING_RATE = 0.25
MOST_EPOCHS = 40
LIMIT = Limit(4.0, 1e-4)
STEP = poisson_sampled(BATCH_SIZE / TRAINING_RECORDS, gaussian(NOISE_MULTIPLIER))


@dataclass
class Progress:
    """The training, epoch by epoch.

    Args:
        steps: taken so far.
        epsilons: spent by the ledger.
        accuracies: on test digits.
    """

    steps: list[int] = field(default_factory=list)
    epsilons: list[float] = field(default_factory=list)
    accuracies: list[float] = field(default_factory=list)

    def add(self, run: Run, model: nn.Module) -> None:
        """Add the present state, and print it."""
        self.steps.append(run.next_step)
        self.epsilons.append(run.epsilon)
        self.accuracies.append(accuracy(model))
        print(f"{run.next_step:4} steps, epsilon {run.epsilon:.3f}, {self.accuracies[-1]:.1%} right", flush=True)


@dataclass(frozen=True)
class Facts:
    """Results of the training.

    Args:
        run: id of the run.
        steps: admitted and taken.
        refused: whether the ledger stopped it.
        epsilon: of these steps, by the ledger.
        epsilon_opacus: by Opacus' own RDP accountant.
        delta: of both.
        accuracy: on test digits.
    """

    run: str
    steps: int
    refused: bool
    epsilon: float
    epsilon_opacus: float
    delta: float
    accuracy: float


def digits() -> tuple[TensorDataset, TensorDataset]:
    """Load the images for training and for testing."""
    pixels, labels = load_digits(return_X_y=True)
    images = torch.tensor(pixels / 16.0, dtype=torch.float32).reshape(-1, 1, 8, 8)
    answers = torch.tensor(labels)
    known, unseen = slice(TRAINING_RECORDS), slice(TRAINING_RECORDS, None)
    return TensorDataset(images[known], answers[known]), TensorDataset(images[unseen], answers[unseen])


def net() -> nn.Module:
    """Build a small convolutional net with group norm, because batch norm would mix records."""
    return nn.Sequential(
        nn.Conv2d(1, 16, 3, padding=1),
        nn.GroupNorm(4, 16),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Conv2d(16, 32, 3, padding=1),
        nn.GroupNorm(8, 32),
        nn.ReLU(),
        nn.AdaptiveAvgPool2d(2),
        nn.Flatten(),
        nn.Linear(128, 10),
    )


def load(file: Path) -> nn.Module:
    """Load a saved model."""
    model = net()
    model.load_state_dict(torch.load(file, weights_only=True))
    return model


def train(run: Run, progress: Progress) -> tuple[nn.Module, BudgetExceededError | None]:
    """Train until the ledger refuses a step or the epochs end; return the model and the refusal."""
    known, _ = digits()
    engine = PrivacyEngine()
    attach(engine, run)
    plain = net()
    model, optimizer, loader = engine.make_private(
        module=plain,
        optimizer=torch.optim.SGD(plain.parameters(), lr=LEARNING_RATE, momentum=0.9),
        data_loader=DataLoader(known, batch_size=BATCH_SIZE),
        noise_multiplier=NOISE_MULTIPLIER,
        max_grad_norm=CLIPPING_NORM,
    )
    try:
        for _ in range(MOST_EPOCHS):
            model.train()
            for images, labels in loader:
                optimizer.zero_grad()
                nn.functional.cross_entropy(model(images), labels).backward()
                optimizer.step()
            progress.add(run, model)
    except BudgetExceededError as refusal:
        progress.add(run, model)
        return plain, refusal
    return plain, None


def accuracy(model: nn.Module) -> float:
    """Compute the share of correctly recognised test digits."""
    _, unseen = digits()
    images, labels = unseen.tensors
    model.eval()
    with torch.no_grad():
        return float((model(images).argmax(dim=1) == labels).float().mean())


def compare(others: Sequence[ComparedEpsilon], facts: Facts) -> None:
    """Print what each rule says about the steps taken."""
    print(f"\n{facts.steps} such steps, by each rule:")
    for each in others:
        print(f"{each.name:>22} {each.epsilon:10.2f}   {each.note}")
    print(f"{'opacus':>22} {facts.epsilon_opacus:10.2f}   What Opacus' own accountant prints.")


def plot(progress: Progress, others: Sequence[ComparedEpsilon], file: Path) -> None:
    """Plot accuracy and epsilon over the steps, and the epsilon by each rule."""
    mpl.use("Agg")
    figure, (left, right) = plt.subplots(1, 2, figsize=(11, 4.5), layout="constrained")
    (curve,) = left.plot(progress.steps, progress.epsilons, marker=".", label="epsilon")
    line = left.axhline(LIMIT.epsilon, linestyle=":", color="gray", label="limit")
    left.plot(progress.steps[-1], progress.epsilons[-1], "X", color="tab:red", markersize=10)
    left.set(xlabel="step", ylabel="epsilon", ylim=(0, 1.2 * LIMIT.epsilon), title="Stopped at its budget")
    beside = left.twinx()
    (other,) = beside.plot(progress.steps, progress.accuracies, color="black", linestyle="--", label="accuracy")
    beside.set(ylabel="accuracy on test digits", ylim=(0, 1))
    left.legend(handles=[curve, line, other], loc="lower right")
    proven = [each for each in reversed(others) if each.epsilon < float("inf")]
    bars = right.barh([each.name for each in proven], [each.epsilon for each in proven], color="tab:blue")
    right.bar_label(bars, fmt="%.2f", padding=3)
    right.set(xscale="log", xlabel="epsilon of the same steps", title="By each rule that proves something")
    right.margins(x=0.2)
    figure.savefig(file)
    plt.close(figure)


def main() -> None:
    """Train under a budget, and compare its cost with other accountants."""
    options = parser("A convolutional net with Opacus, under a budget.", "opacus-results")
    options.add_argument("--load", type=Path, metavar="MODEL", help="only test a saved model")
    asked = options.parse_args()
    if asked.load is not None:
        print(f"{accuracy(load(asked.load)):.1%} right")
        sys.exit()
    progress = Progress()
    with LedgerClient() as ledger:
        path = budget(
            ledger,
            asked.budget,
            "digit-images",
            privacy_unit="image",
            neighboring_relation="add_or_remove_one",
            size=TRAINING_RECORDS,
            limit=LIMIT,
            planned=[STEP],
        )
        with ledger.create_run("convolutional net", budget=path) as run:
            model, refusal = train(run, progress)
        state = run.refresh()
        plan = EventCount(event=STEP, count=state.next_step)
        others = ledger.compute_epsilon([plan], delta=state.delta).comparisons
    if refusal is not None:
        print(f"Stopped: {refusal}")
    own = RDPAccountant()
    own.history = [(NOISE_MULTIPLIER, BATCH_SIZE / TRAINING_RECORDS, state.next_step)]
    facts = Facts(
        run=state.id,
        steps=state.next_step,
        refused=refusal is not None,
        epsilon=state.epsilon,
        epsilon_opacus=own.get_epsilon(state.delta),
        delta=state.delta,
        accuracy=accuracy(model),
    )
    print(f"{facts.steps} steps, {facts.accuracy:.1%} right")
    print(f"epsilon {facts.epsilon:.4f} at delta {facts.delta:g}, {state.used:.1%} used")
    compare(others, facts)
    asked.out.mkdir(parents=True, exist_ok=True)
    rules = {each.name: None if each.epsilon == float("inf") else each.epsilon for each in others}
    (asked.out / "opacus.json").write_text(json.dumps(asdict(facts) | {"accountants": rules}, indent=2))
    torch.save(model.state_dict(), asked.out / "model.pt")
    plot(progress, others, asked.out / "opacus.png")
    print(f"\nWritten: opacus.json, opacus.png and model.pt in {asked.out}")


if __name__ == "__main__":
    main()
