"""Resident memory of one worker, and its start: `python -m benchmarks.memory [--runs N] [--steps N]`.

The service starts on a new ledger, on SQLite and on PostgreSQL if available. Then so many runs are registered, each
with an event of its own, since the service keeps curves of recent events. Each takes its steps in turn with the others,
charged or out of a reservation, and stays active. The start is given in processor seconds, which other work on the
machine prolongs least.
"""

import argparse
import os
import tempfile
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from http import HTTPStatus
from pathlib import Path

from benchmarks.databases import postgresql
from benchmarks.servers import Server, budget, compile_sources, different_events, ledger, steps_path
from benchmarks.throughput import STEP

CALLERS = 8
"""Trainers that call at the same time."""

RUNS_OF_A_BUDGET = 100


@contextmanager
def databases(cases: tuple[str, ...]) -> Iterator[dict[tuple[str, str], str]]:
    """Yield the URLs of databases that do not exist yet, by kind and case."""
    with postgresql() as cluster, tempfile.TemporaryDirectory() as folder:
        urls = {("SQLite", case): f"sqlite:///{Path(folder) / case}.db" for case in cases}
        if cluster is not None:
            urls |= {("PostgreSQL", case): cluster.create_database(f"memory_{case}") for case in cases}
        yield urls


def use(server: Server, case: str, runs: int, steps: int) -> None:
    """Register runs, let each reserve a plan in the case `reserved`, and let each take steps."""
    events = different_events(runs)
    budgets = [budget(server, f"p{place}") for place in range(-(-runs // RUNS_OF_A_BUDGET))]

    def register(place: int) -> str:
        path = steps_path(server, budgets[place // RUNS_OF_A_BUDGET], events[place])
        if case == "reserved":
            plan = {"events": [{"event": events[place], "count": 10 * steps}], "lease_seconds": 7200}
            server.client.post(path.replace("/steps", "/reservations"), json=plan).raise_for_status()
        return path

    def take_step(path: str) -> None:
        answer = server.client.post(path, json=STEP)
        assert answer.status_code == HTTPStatus.OK, answer.text

    with ThreadPoolExecutor(CALLERS) as pool:
        paths = list(pool.map(register, range(runs)))
        for _ in range(steps):
            list(pool.map(take_step, paths))


def main(runs: int = 1000, steps: int = 5) -> None:
    """Print the table."""
    compile_sources()
    os.environ["MALLOC_ARENA_MAX"] = "1"  # as in the image
    print(f"one worker, {runs:,} active runs of different events, {steps} steps each")
    print(f"{'':22} {'start':>12} {'empty':>8} {'with runs':>10} {'peak':>8}")
    with databases(("charged", "reserved")) as urls:
        for (kind, case), url in urls.items():
            with ledger(url) as server:
                start = server.processor_seconds()
                empty, _ = server.memory()
                use(server, case, runs, steps)
                used, peak = server.memory()
            print(
                f"{f'{kind}, {case}':22} {start:6.2f} CPU s {empty:5.0f} MB {used:7.0f} MB {peak:5.0f} MB", flush=True
            )
    print(f"load of the machine at the end: {os.getloadavg()[0]:.1f}")


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--runs", type=int, default=1000)
    parser.add_argument("--steps", type=int, default=5)
    asked = parser.parse_args()
    main(asked.runs, asked.steps)
