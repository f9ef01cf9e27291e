"""Measurement of one adapter: `python -m benchmarks.adapters.measurement NAME URL KEY`, for a process of its own."""

import json
import sys
import time
from collections.abc import Iterator
from importlib import import_module
from itertools import islice
from statistics import median

from epsilon_ledger import LedgerClient, Limit

STEPS, WARM_UP = 1_000, 60
EVERY = 50


def time_of(steps: Iterator[None]) -> float:
    """Measure one step, in microseconds."""
    start = time.perf_counter()
    next(steps)
    return (time.perf_counter() - start) * 1e6


def budget_of(client: LedgerClient, name: str) -> str:
    """Return the path of a budget under the relation that a module needs: `RELATION`, if it has that."""
    relation = getattr(import_module(f"benchmarks.adapters.{name}"), "RELATION", None)
    if relation is None:
        return "p/b"
    limit = Limit(1e4, 1e-6)
    return client.create_population(
        name.replace("_", "-"), privacy_unit="record", neighboring_relation=relation, limit=limit
    ).path


def measure(name: str, url: str, key: str) -> tuple[float, float]:
    """Return the medians of a step without the adapter, and of what the next step takes more with it: microseconds."""
    module = import_module(f"benchmarks.adapters.{name}")
    with (
        LedgerClient(url, key) as client,
        client.create_run(name, budget=budget_of(client, name), prefetch=EVERY, prefetch_in_background=True) as run,
    ):
        without, charged = module.steps(None), module.steps(run)
        for steps in (without, charged):
            list(islice(steps, WARM_UP))
        pairs = [(time_of(without), time_of(charged)) for _ in range(STEPS)]
        return median(plain for plain, _ in pairs), median(more - plain for plain, more in pairs)


if __name__ == "__main__":
    print(json.dumps(measure(*sys.argv[1:])))
