"""Price of sharing sessions by transactions: `python -m benchmarks.pooling [--seconds S] [--rounds N]`.

One service each with sessions of its own, with transactions that set everything anew, and the latter through PgBouncer
with the file of deploy/high-availability. Each gets steps of runs under a population of its own, in turns.
"""

import argparse
import sys
import tempfile
from contextlib import ExitStack
from pathlib import Path
from statistics import median
from typing import Final

from benchmarks.databases import postgresql
from benchmarks.load import Requests, loaded, request
from benchmarks.pgbouncer import PROGRAM, pgbouncer
from benchmarks.servers import UNLIMITED, Server, budget, ledger, serving, steps_path
from benchmarks.throughput import STEP

CONNECTIONS: Final = (1, 32)
POOLED: Final = {"EPSILON_LEDGER_DATABASE_POOL_MODE": "transaction"}


def _requests(server: Server, connections: int) -> Requests:
    headers = {"Authorization": server.client.headers["authorization"]}
    path = budget(server, f"own{server.port}-{connections}")
    return [[request(steps_path(server, path), STEP, headers)] for _ in range(connections)]


def main(seconds: float = 4.0, rounds: int = 5) -> None:
    """Print the table, with `seconds` for one measurement and `rounds` of each."""
    with ExitStack() as stack:
        cluster = stack.enter_context(postgresql())
        if cluster is None or PROGRAM is None:
            print("(needs PostgreSQL and pgbouncer)")
            return
        url = cluster.create_database("ledger")
        first = stack.enter_context(ledger(url))
        folder = stack.enter_context(tempfile.TemporaryDirectory(prefix="pgbouncer-"))
        through = stack.enter_context(pgbouncer(cluster, Path(folder)))
        servers = {"session": first}
        for name, address in (("transaction", url), ("transaction, through PgBouncer", through)):
            environment = {"EPSILON_LEDGER_DATABASE_URL": address} | POOLED | UNLIMITED
            server = stack.enter_context(serving([sys.executable, "-m", "app", "serve"], environment, "/readyz"))
            server.client.headers["Authorization"] = first.client.headers["Authorization"]
            servers[name] = server
        print(f"{'pool mode':34}{'connections':>12}{'steps/s':>10}{'of session':>12}")
        for connections in CONNECTIONS:
            requests = {name: _requests(server, connections) for name, server in servers.items()}
            rates: dict[str, list[float]] = {name: [] for name in servers}
            for _ in range(rounds):
                for name, server in servers.items():
                    rates[name].append(loaded(server.port, requests[name], seconds).rate)
            for name, found in rates.items():
                rate, base = median(found), median(rates["session"])
                print(f"{name:34}{connections:12}{rate:10,.0f}{rate / base:12.2f}")


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--seconds", type=float, default=4.0)
    parser.add_argument("--rounds", type=int, default=5)
    asked = parser.parse_args()
    main(asked.seconds, asked.rounds)
