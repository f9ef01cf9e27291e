"""A convolutional net with Opacus under a budget: two additional lines, and the ledger stops the training.

The ledger must be running (README.md, "By hand"), and opacus, torch and scikit-learn must be installed. Then:

    EPSILON_LEDGER_URL=http://127.0.0.1:8000 EPSILON_LEDGER_API_KEY=... python examples/opacus_digits.py

It learns scikit-learn's handwritten digits. Every `optimizer.step()` is authorized first. A step that does not fit
raises BudgetExceededError, and leaves the parameters unchanged.
"""

import json
from dataclasses import asdict, dataclass

import torch
from common import budget, parser
from opacus import PrivacyEngine
from opacus.accountants import RDPAccountant
from sklearn.datasets import load_digits
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from epsilon_ledger import BudgetExceededError, LedgerClient, Limit, Run
from epsilon_ledger.opacus import attach

TRAINING_RECORDS = 1_400
BATCH_SIZE = 140
NOISE_MULTIPLIER = 1.5
CLIPPING_NORM = 1.0
LEARNING_RATE = 0.25
MOST_EPOCHS = 30
LIMIT = Limit(4.0, 1e-4)


@dataclass(frozen=True)
class Facts:
    """Results of the training.

    Args:
        run: id of the run.
        steps: admitted and taken.
        refused: whether the ledger stopped it.
        epsilon: spent by the ledger's filter, valid for adaptive choices.
        epsilon_rdp: what an in-process RDP accountant would print.
        epsilon_opacus: by Opacus' own accountant.
        delta: of all three.
        accuracy: on test digits.
    """

    run: str
    steps: int
    refused: bool
    epsilon: float
    epsilon_rdp: float
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


def train(run: Run) -> tuple[nn.Module, BudgetExceededError | None]:
    """Train until the ledger refuses a step or the epochs end; return the model and the refusal."""
    known, _ = digits()
    engine = PrivacyEngine()
    attach(engine, run)
    model = net()
    model, optimizer, loader = engine.make_private(
        module=model,
        optimizer=torch.optim.SGD(model.parameters(), lr=LEARNING_RATE, momentum=0.9),
        data_loader=DataLoader(known, batch_size=BATCH_SIZE),
        noise_multiplier=NOISE_MULTIPLIER,
        max_grad_norm=CLIPPING_NORM,
    )
    try:
        for epoch in range(1, MOST_EPOCHS + 1):
            for images, labels in loader:
                optimizer.zero_grad()
                nn.functional.cross_entropy(model(images), labels).backward()
                optimizer.step()
            print(f"epoch {epoch:2}: {run.next_step} steps, epsilon {engine.get_epsilon(LIMIT.delta):.3f}", flush=True)
    except BudgetExceededError as refusal:
        return model, refusal
    return model, None


def accuracy(model: nn.Module) -> float:
    """Compute the share of correctly recognised test digits."""
    _, unseen = digits()
    images, labels = unseen.tensors
    model.eval()
    with torch.no_grad():
        return float((model(images).argmax(dim=1) == labels).float().mean())


def main() -> None:
    """Train under a budget, and compare its cost with Opacus' accountant."""
    asked = parser("A convolutional net with Opacus, under a budget.", "opacus-results").parse_args()
    with LedgerClient() as ledger:
        path = budget(
            ledger,
            asked.budget,
            "digit-images",
            privacy_unit="image",
            neighboring_relation="add_or_remove_one",
            size=TRAINING_RECORDS,
            limit=LIMIT,
        )
        with ledger.create_run("convolutional net", budget=path) as run:
            model, refusal = train(run)
        state = run.refresh()
    if refusal is not None:
        print(f"Stopped: {refusal}")
    own = RDPAccountant()
    own.history = [(NOISE_MULTIPLIER, BATCH_SIZE / TRAINING_RECORDS, state.next_step)]
    facts = Facts(
        run=state.id,
        steps=state.next_step,
        refused=refusal is not None,
        epsilon=state.epsilon,
        epsilon_rdp=state.epsilon if state.epsilon_rdp is None else state.epsilon_rdp,
        epsilon_opacus=own.get_epsilon(state.delta),
        delta=state.delta,
        accuracy=accuracy(model),
    )
    print(f"{facts.steps} steps, {facts.accuracy:.1%} right")
    print(f"epsilon {facts.epsilon:.4f} of {LIMIT.epsilon:g} at delta {facts.delta:g}")
    print(f"by an RDP accountant {facts.epsilon_rdp:.4f}, by Opacus {facts.epsilon_opacus:.4f}")
    asked.out.mkdir(parents=True, exist_ok=True)
    (asked.out / "opacus.json").write_text(json.dumps(asdict(facts), indent=2))
    torch.save(model.state_dict(), asked.out / "model.pt")
    print(f"Written: opacus.json and model.pt in {asked.out}")


if __name__ == "__main__":
    main()
