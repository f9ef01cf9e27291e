"""One rank of a distributed training: `python distributed_training.py RANK STORE CAPACITY FOLLOWERS_RUN`.

Prints a JSON line: what it asked, what stopped it, its parameters before and after the step that was stopped.
"""

import json
import sys
import warnings
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from opacus import PrivacyEngine
from opacus.distributed import DifferentiallyPrivateDistributedDataParallel
from opacus.optimizers import DistributedDPOptimizer, DPOptimizer
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from epsilon_ledger import LedgerError
from epsilon_ledger.opacus import attach
from tests.sdk.fake_runs import FakeRun


def main(rank: int, store: str, capacity: int) -> dict[str, Any]:
    dist.init_process_group("gloo", f"file://{store}", timedelta(seconds=60), world_size=2, rank=rank)
    torch.manual_seed(rank)
    x = torch.randn(32, 4)
    model = DifferentiallyPrivateDistributedDataParallel(nn.Linear(4, 2))
    engine = PrivacyEngine(accountant="rdp")
    run = FakeRun(capacity=capacity) if rank == 0 else None
    attach(engine, run.as_run if run else None, public_size=len(x))
    model, optimizer, loader = engine.make_private(
        module=model,
        optimizer=torch.optim.SGD(model.parameters(), lr=0.1),
        data_loader=DataLoader(TensorDataset(x, (x[:, 0] > 0).long()), 4),
        noise_multiplier=1.0,
        max_grad_norm=1.0,
    )
    assert isinstance(optimizer, DistributedDPOptimizer)
    answer: dict[str, Any] = {"stopped": None, "calibrated": calibrated_noise(run)}
    for (batch, _), _ in zip(loader, range(capacity + 1), strict=False):
        answer["before"] = [p.tolist() for p in model.parameters()]
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(batch), torch.zeros(len(batch), dtype=torch.long)).backward()
        try:
            optimizer.step()
        except LedgerError as error:
            answer["stopped"] = type(error).__name__
    answer["not finite"] = steps_with_a_nan(model, optimizer, loader, x if rank == 1 else None)
    answer["after"] = [p.tolist() for p in model.parameters()]
    answer["asked"] = run.asked if run else None
    # On the other rank, a run of its own is one too many.
    if rank == 1:
        try:
            attach(optimizer, FakeRun().as_run)
        except ValueError as error:
            answer["second"] = str(error)
    dist.destroy_process_group()
    return answer


def steps_with_a_nan(
    model: nn.Module, optimizer: DPOptimizer, loader: DataLoader[Any], x: torch.Tensor | None
) -> list[str]:
    """What stops each step of an epoch, where every record of rank 1 has a NaN."""
    if x is not None:
        x[:] = torch.nan
    stopped = []
    for batch, _ in loader:
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(batch), torch.zeros(len(batch), dtype=torch.long)).backward()
        try:
            optimizer.step()
        except LedgerError as error:
            stopped.append(type(error).__name__)
    return stopped


def calibrated_noise(run: FakeRun | None) -> float:
    """The noise that an engine of this rank finds."""
    engine, model = PrivacyEngine(accountant="rdp"), DifferentiallyPrivateDistributedDataParallel(nn.Linear(4, 2))
    attach(engine, run.as_run if run else None, public_size=32)
    _, optimizer, _ = engine.make_private_with_epsilon(
        module=model,
        optimizer=torch.optim.SGD(model.parameters(), lr=0.1),
        data_loader=DataLoader(TensorDataset(torch.randn(32, 4)), 4),
        target_epsilon=1.0,
        target_delta=1e-5,
        epochs=1,
        max_grad_norm=1.0,
    )
    return float(optimizer.noise_multiplier)


if __name__ == "__main__":
    warnings.simplefilter("ignore")
    print(json.dumps(main(int(sys.argv[1]), sys.argv[2], int(sys.argv[3]))))  # noqa: T201
