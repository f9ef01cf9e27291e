"""Two processes that train together."""

import json
import os
from functools import cache
from pathlib import Path
from typing import Any

from tests.fork_server import ForkedProcess, ForkServer

RANKS = 2
PATIENCE_SECONDS = 300
TORCH = ("opacus.distributed", "torch.distributed.fsdp", "tests.sdk.fake_ledger")


# What takes longer to import than the trainings.
fork_server = cache(ForkServer)


def run_ranks(module: str, folder: Path, *arguments: object, imported: tuple[str, ...] = TORCH) -> list[Any]:
    """Run a module once for each rank, which meet at a file."""
    processes: list[ForkedProcess] = []
    for rank in range(RANKS):
        words = [str(word) for word in (rank, folder / "store", *arguments)]
        with (folder / f"output {rank}").open("wb") as output, (folder / f"errors {rank}").open("wb") as errors:
            how: dict[str, Any] = {"environment": dict(os.environ), "output": output, "errors": errors}
            processes.append(ForkedProcess(fork_server(*imported), module, *words, **how))
    try:
        for rank, process in enumerate(processes):
            assert process.wait(PATIENCE_SECONDS) == 0, (folder / f"errors {rank}").read_text()[-2000:]
    finally:
        for process in processes:
            process.kill()
            process.wait()
    return [json.loads((folder / f"output {rank}").read_text().splitlines()[-1]) for rank in range(RANKS)]
