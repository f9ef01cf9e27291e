"""Print the overhead of the adapters."""

import sys
import tempfile
import time
from collections.abc import Iterator
from importlib import import_module
from itertools import islice
from pathlib import Path
from statistics import median

from benchmarks.servers import ledger
from epsilon_ledger import LedgerClient, Limit, Run

NAMES = (
    "opacus",
    "lightning",
    "training_charge",
    "fixed_batches",
    "transformers",
)
ROUNDS, STEPS, WARM_UP = 20, 50, 60
EVERY = 50


def times(steps: Iterator[None], count: int) -> list[float]:
    """Measure steps, in microseconds."""
    found = []
    for _ in range(count):
        start = time.perf_counter()
        next(steps)
        found.append((time.perf_counter() - start) * 1e6)
    return found


def budget_of(client: LedgerClient, name: str) -> str:
    """Return the path of a budget under the relation that a module needs: `RELATION`, if it has that."""
    relation = getattr(import_module(f"benchmarks.adapters.{name}"), "RELATION", None)
    if relation is None:
        return "p/b"
    limit = Limit(1e4, 1e-6)
    return client.create_population(
        name.replace("_", "-"), privacy_unit="record", neighboring_relation=relation, limit=limit
    ).path


def measure(name: str, run: Run) -> tuple[float, float]:
    """Return the median step without and with the adapter, in microseconds."""
    module = import_module(f"benchmarks.adapters.{name}")
    without, charged = module.steps(None), module.steps(run)
    for steps in (without, charged):
        list(islice(steps, WARM_UP))
    found: tuple[list[float], list[float]] = ([], [])
    for _ in range(ROUNDS):
        for steps, measured in zip((without, charged), found, strict=True):
            measured.extend(times(steps, STEPS))
    return median(found[0]), median(found[1])


def main(names: tuple[str, ...] = NAMES) -> None:
    """Print the table."""
    with (
        tempfile.TemporaryDirectory() as folder,
        ledger(f"sqlite:///{Path(folder) / 'ledger.db'}") as service,
        LedgerClient(
            f"http://127.0.0.1:{service.port}", service.client.headers["Authorization"].removeprefix("Bearer ")
        ) as client,
    ):
        print(f"{'microseconds a step':24} {'without':>10} {'with':>10} {'overhead':>10}")
        for name in names:
            with client.create_run(name, budget=budget_of(client, name), authorize_every=EVERY, background=True) as run:
                without, charged = measure(name, run)
            print(f"{name:24} {without:10.1f} {charged:10.1f} {charged - without:10.1f}", flush=True)


if __name__ == "__main__":
    main(tuple(sys.argv[1:]) or NAMES)
