"""One rank of a distributed training with a Trainer: `python distributed_trainer.py RANK STORE CAPACITY FOLDER`.

Prints a JSON line: what it asked, what stopped it, its parameters, and its physical batches.
"""

import json
import os
import sys
import warnings
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch.distributed as dist

from epsilon_ledger.transformers import make_private, run_state
from tests.frameworks.language_models import CheckpointedRun, trainer_of, weights


def main(rank: int, store: str, capacity: int, folder: str) -> dict[str, Any]:
    # As torchrun sets them; the processes have met already.
    os.environ |= {"RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": "2"}
    os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "1"}
    dist.init_process_group("gloo", f"file://{store}", timedelta(seconds=60), world_size=2, rank=rank)
    run = CheckpointedRun(capacity=capacity) if rank == 0 else None
    trainer: Any = trainer_of(Path(folder), ddp_backend="gloo", save_strategy="steps", save_steps=3)
    make_private(trainer, run.as_run if run else None, noise_multiplier=1.0, max_grad_norm=1.0)
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
