"""Two replicas on one PostgreSQL: `python -m benchmarks.replicas [--seconds S] [--rounds N]`.

Each replica gets steps of runs of its own, at the same time: under a population of its own, and under one that both
share; each step charged to every account of the path, and each taken out of a reservation. One database server and both
replicas share this machine, so only the ratios say something.
"""

import argparse
import tempfile
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from statistics import median

from benchmarks.databases import postgresql
from benchmarks.load import Requests, loaded, request
from benchmarks.servers import EVENT, Server, budget, ledger, replica, steps_path
from benchmarks.throughput import STEP

CONNECTIONS = 32
"""Connections to each replica."""

PLAN = {"events": [{"event": EVENT, "count": 10_000_000}], "lease_seconds": 7200}


def requests_of(server: Server, budget_path: str, *, reserved: bool) -> Requests:
    """Build a step for each connection, each of its own run."""
    headers = {"Authorization": server.client.headers["authorization"]}
    paths = [steps_path(server, budget_path) for _ in range(CONNECTIONS)]
    if reserved:
        for path in paths:
            server.client.post(path.replace("/steps", "/reservations"), json=PLAN).raise_for_status()
    return [[request(path, STEP, headers)] for path in paths]


def together(servers: Sequence[Server], requests: Sequence[Requests], seconds: float) -> float:
    """Return the steps per second of a replica while all are loaded."""
    with ThreadPoolExecutor(len(servers)) as pool:
        loads = list(pool.map(lambda each: loaded(each[0].port, each[1], seconds), zip(servers, requests, strict=True)))
    return sum(load.rate for load in loads) / len(loads)


def main(seconds: float = 4.0, rounds: int = 3) -> None:
    """Print the table, with `seconds` for one measurement and `rounds` of each."""
    with postgresql() as cluster, tempfile.TemporaryDirectory() as folder:
        url = f"sqlite:///{Path(folder) / 'ledger.db'}" if cluster is None else cluster.create_database("replicas")
        with ledger(url) as first, replica(url, first) as second:
            servers = (first, second)
            apart = [budget(first, f"own{place}") for place in range(len(servers))]
            shared = [budget(first, "shared")] * len(servers)
            cases = {
                f"{'reserved' if reserved else 'charged to the path'}, {where}": [
                    requests_of(server, path, reserved=reserved) for server, path in zip(servers, paths, strict=True)
                ]
                for reserved in (False, True)
                for where, paths in (("populations of their own", apart), ("one population", shared))
            }
            rates: dict[str, list[float]] = {name: [] for name in cases}
            for requests in cases.values():
                together(servers, requests, 1.0)
            for _ in range(rounds):
                for name, requests in cases.items():
                    rates[name].append(together(servers, requests, seconds))
    print(f"two replicas on {'SQLite' if cluster is None else 'PostgreSQL'}, {CONNECTIONS} connections each")
    print(f"{'':44} {'steps/s of one':>15} {'of its own':>11}")
    for kind in ("charged to the path", "reserved"):
        own = median(rates[f"{kind}, populations of their own"])
        for where in ("populations of their own", "one population"):
            rate = median(rates[f"{kind}, {where}"])
            print(f"{f'{kind}, {where}':44} {rate:15,.0f} {rate / own:11.2f}")


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--seconds", type=float, default=4.0)
    parser.add_argument("--rounds", type=int, default=3)
    asked = parser.parse_args()
    main(asked.seconds, asked.rounds)
