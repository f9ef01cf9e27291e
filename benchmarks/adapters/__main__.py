"""Print the overhead of the adapters."""

import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

from benchmarks.adapters.measurement import measure
from benchmarks.servers import ledger
from tests.frameworks.flower import flower_environment

NAMES = (
    "opacus",
    "lightning",
    "transformers",
    "jax_optax",
    "keras_fit",
    "training_charge",
    "fixed_batches",
    "flower",
    "nvflare",
    "mindarmour_optimizer",
)
IN_FLOWER = {"flower"}
"""Those whose framework is installed beside the others."""


def measure_beside(name: str, url: str, key: str) -> tuple[float, float]:
    """Measure as `measure` does, in a process that can import Flower."""
    done = subprocess.run(
        [sys.executable, "-m", "benchmarks.adapters.measurement", name, url, key],
        env=os.environ | flower_environment(),
        stdout=subprocess.PIPE,
        check=True,
    )
    without, overhead = json.loads(done.stdout.splitlines()[-1])
    return without, overhead


def main(names: tuple[str, ...] = NAMES) -> None:
    """Print the table."""
    os.environ.setdefault("KERAS_BACKEND", "jax")
    with (
        tempfile.TemporaryDirectory() as folder,
        ledger(f"sqlite:///{Path(folder) / 'ledger.db'}") as service,
    ):
        access = f"http://127.0.0.1:{service.port}", service.client.headers["Authorization"].removeprefix("Bearer ")
        print(f"{'microseconds a step':24} {'without':>10} {'overhead':>10}")
        for name in names:
            without, overhead = (measure_beside if name in IN_FLOWER else measure)(name, *access)
            print(f"{name:24} {without:10.1f} {overhead:10.1f}", flush=True)


if __name__ == "__main__":
    main(tuple(sys.argv[1:]) or NAMES)
