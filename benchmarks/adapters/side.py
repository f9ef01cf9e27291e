"""One side of a comparison, in a process of its own: `python -m benchmarks.adapters.side NAME [URL KEY]`.

For each line of the standard input, a number of steps, it prints the microseconds of each of them: those that passed,
and those of the processor, the background's included. Without a ledger it trains without the adapter.
"""

import json
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack
from importlib import import_module

from benchmarks.adapters.measurement import EVERY, budget_of
from epsilon_ledger import LedgerClient


def cost_of(steps: Iterator[None]) -> tuple[float, float]:
    """Measure one step: the time that passed, and the processor's, in microseconds."""
    start, started = time.perf_counter(), time.process_time()
    next(steps)
    return (time.perf_counter() - start) * 1e6, (time.process_time() - started) * 1e6


def main(name: str, *access: str) -> None:
    """Take as many steps as each line asks for."""
    with ExitStack() as stack:
        run = None
        if access:
            client = stack.enter_context(LedgerClient(*access))
            budget = budget_of(client, name)
            run = stack.enter_context(
                client.create_run(name, budget=budget, prefetch=EVERY, prefetch_in_background=True)
            )
        steps = import_module(f"benchmarks.adapters.{name}").steps(run)
        for line in sys.stdin:
            print(json.dumps([cost_of(steps) for _ in range(int(line))]), flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
