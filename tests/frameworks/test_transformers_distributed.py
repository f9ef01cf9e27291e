"""Two processes with a Trainer each train together, and ask once for both.

This module is also the program of a rank: `python -m MODULE RANK STORE CAPACITY FOLDER` prints a JSON line of what it
asked, what stopped it, its parameters, and its physical batches.
"""

import json
import os
import sys
import warnings
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
import torch.distributed as dist

from epsilon_ledger import gaussian, poisson_sampled
from epsilon_ledger.transformers import make_private, run_state
from tests.frameworks.language_models import trainer_of, weights
from tests.frameworks.ranks import run_ranks
from tests.sdk.fake_ledger import FakeRun

MODULE = "tests.frameworks.test_transformers_distributed"
IMPORTED = ("tests.frameworks.language_models", "epsilon_ledger.transformers")


@pytest.fixture(scope="module")
def ranks(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    folder = tmp_path_factory.mktemp("trainers")
    return run_ranks(MODULE, folder, 5, folder / "output", imported=IMPORTED)


def test_rank_0_asks_for_whole_batch_of_both_and_refusal_ends_both(ranks: list[dict[str, Any]]) -> None:
    # 2 records, 4 times, in 2 processes, of 64.
    assert [rank["asked"] for rank in ranks] == [[poisson_sampled(16 / 64, gaussian(1.0))] * 5, None]
    for rank in ranks:
        assert rank["optimizer"] == "DistributedDPOptimizer"
        assert rank["wrapper"] == "DifferentiallyPrivateDistributedDataParallel"
        assert "runs/run_1" in rank["refused"]
        assert (rank["steps"], rank["moved"]) == ([5, 8], True)
        assert rank["state"] == {"format": 1, "run": "run_1", "attempt": 1, "step": 3}
    assert max(rank["largest"] for rank in ranks) == 2
    assert ranks[0]["after"] == ranks[1]["after"]


def main(rank: int, store: str, capacity: int, folder: str) -> dict[str, Any]:
    # As torchrun sets them; the processes have met already.
    os.environ |= {"RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": "2"}
    os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "1"}
    dist.init_process_group("gloo", f"file://{store}", timedelta(seconds=60), world_size=2, rank=rank)
    run = FakeRun(capacity=capacity) if rank == 0 else None
    trainer: Any = trainer_of(Path(folder), ddp_backend="gloo", save_strategy="steps", save_steps=3)
    make_private(trainer, run, noise_multiplier=1.0, max_grad_norm=1.0)
    batches: list[int] = []
    prepare = trainer._prepare_inputs

    def counted(batch: dict[str, Any]) -> Any:  # noqa: ANN401 - as the Trainer has it
        batches.append(len(batch["input_ids"]))
        return prepare(batch)

    trainer._prepare_inputs = counted
    before = weights(trainer.model)
    done = trainer.train()
    after = weights(trainer.model)
    answer = {
        "asked": run.asked if run else None,
        "refused": str(trainer.refusal),
        "steps": [done.global_step, trainer.state.max_steps],
        "moved": not any((old == new).all() for old, new in zip(before, after, strict=True)),
        "after": [parameter.tolist() for parameter in after],
        "optimizer": type(trainer.optimizer.optimizer).__name__,
        "wrapper": type(trainer.model_wrapped).__name__,
        "largest": max(batches),
        "state": run_state(str(Path(folder) / "checkpoint-3")),
    }
    dist.destroy_process_group()
    return answer


if __name__ == "__main__":
    warnings.simplefilter("ignore")
    print(json.dumps(main(int(sys.argv[1]), sys.argv[2], int(sys.argv[3]), sys.argv[4])))  # noqa: T201
