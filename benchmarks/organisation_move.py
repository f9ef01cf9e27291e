"""Cost of moving an organisation: `python -m benchmarks.organisation_move [--decisions 1000000] [--postgresql]`.

Fills an organisation with decisions of one step each over HTTP, and moves it to another placement by the command, while
an organisation beside it takes steps on the database that it leaves: how long do those wait? The machine itself makes
a step wait now and then. So the same steps are taken before, alone and beside a process that only keeps a processor
busy (`--before`: seconds of each). A million decisions take some minutes.
"""

import argparse
import json
import math
import os
import subprocess
import sys
import time
from contextlib import suppress
from statistics import median

from benchmarks.databases import databases
from benchmarks.load import loaded, request
from benchmarks.servers import EVENT, Server, budget, ledger_of_two, steps_path

CONNECTIONS = 64
CONTROLS = {"alone": "import time; time.sleep(86400)", "beside a busy process": "while True: pass"}
"""What runs beside the steps before the move."""
LONG = 100.0
"""Milliseconds that no step may wait for a move."""


def fill(server: Server, decisions: int) -> None:
    """Take single steps until there are so many decisions, by as many runs as connections."""
    headers = {"Authorization": server.client.headers["authorization"]}
    paths = [steps_path(server) for _ in range(CONNECTIONS)]
    requests = [[request(path, {"event": EVENT}, headers)] for path in paths]
    done, start = 0, time.monotonic()
    while done < decisions:
        load = loaded(server.port, requests, 10)
        assert not load.failed
        done += load.replies
        rate = done / (time.monotonic() - start)
        print(f"\r{done:,} of {decisions:,} decisions, {rate:,.0f} a second ", end="", file=sys.stderr, flush=True)
    print(file=sys.stderr)


def beside(process: subprocess.Popen[str], others: Server, steps: str, seconds: float = math.inf) -> list[float]:
    """Take steps of the other organisation until a process ends, or for some seconds; return their milliseconds."""
    taken, end = [], time.monotonic() + seconds
    while process.poll() is None and time.monotonic() < end:
        taken.append(others.timed("POST", steps, {"count": 1}))
    return taken


def running(*command: str, database: str) -> subprocess.Popen[str]:
    """Start a command of Python on a database."""
    environment = os.environ | {"EPSILON_LEDGER_DATABASE_URL": database}
    return subprocess.Popen([sys.executable, *command], env=environment, stdout=subprocess.PIPE, text=True)


def main(decisions: int, before: float, *, on_postgresql: bool) -> None:
    """Print the figures."""
    with databases("from", "to", on_postgresql=on_postgresql) as (old, new):
        os.environ["EPSILON_LEDGER_PLACEMENTS"] = json.dumps({"second": new})
        with ledger_of_two(old, "admin") as (server, others):
            fill(server, decisions)
            budget(others, "q")
            steps = steps_path(others, "q/b")
            found = {}
            for name, program in CONTROLS.items():
                with running("-c", program, database=old) as process:
                    try:
                        found[name] = beside(process, others, steps, before)
                    finally:
                        process.kill()
            start = time.monotonic()
            move = running("-m", "app", "org", "move", "bench", "--to", "second", "--json", database=old)
            found["beside the move"] = beside(move, others, steps)
            taken = time.monotonic() - start
            assert move.returncode == 0
            assert move.stdout is not None
            moved = json.load(move.stdout)
    rows = moved["rows"]
    print(f"{rows['decisions']:,} decisions, {sum(rows.values()):,} rows, {old.partition(':')[0]}")
    print(f"stopped {moved['stopped_seconds']:.1f} s; until the old rows were deleted {taken:.1f} s")
    for name, waits in found.items():
        ordered = sorted(waits)
        print(
            f"{len(ordered):,} steps of another organisation {name}: median {median(ordered):.2f} ms, "
            f"p99 {ordered[-len(ordered) // 100]:.2f}, slowest {', '.join(f'{each:.0f}' for each in ordered[-5:])}; "
            f"{sum(each > LONG for each in ordered)} longer than {LONG:.0f} ms"
        )


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--decisions", type=int, default=1_000_000)
    parser.add_argument("--before", type=float, default=60)
    parser.add_argument("--postgresql", action="store_true")
    given = parser.parse_args()
    with suppress(KeyboardInterrupt):
        main(given.decisions, given.before, on_postgresql=given.postgresql)
