"""Steps per second over HTTP: `python -m benchmarks.throughput [--seconds S] [--rounds N]`.

One worker each, interleaved: the bare FastAPI endpoint with the same models, the service on SQLite (synchronous=FULL)
and on PostgreSQL (fsync on) if available, without plans and with them, and an MLflow tracking server's log-metric on
each of them if MLFLOW names its executable. Medians of the rounds, ratios to the first row.
"""

import argparse
import shutil
import tempfile
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median

from benchmarks.databases import postgresql
from benchmarks.load import NUMBER, Load, Requests, loaded, request
from benchmarks.servers import (
    BATCH,
    EVENT,
    Server,
    bare,
    batch,
    budget,
    different_events,
    ledger,
    metric_bodies,
    mlflow,
    mlflow_executable,
    steps_path,
)

CONNECTIONS = 64
BATCH_CONNECTIONS = 8
LONGER_SECONDS = 4.0
"""Duration for batches, which have few responses per second."""

KINDS = 10
RESERVED = 1_000_000
"""Steps of a run that are reserved; more than a measurement takes."""

METRICS = 200
"""Distinct metrics of a connection; MLflow stores none twice."""

STEP = {"count": 1}


@dataclass(frozen=True)
class Traffic:
    """What all connections send.

    Args:
        title: of its table.
        connections: at the same time.
        runs: shared by the connections.
        bodies: sent in turn; by each connection from another one on.
        headers: of each request.
        reserved: whether the runs have reserved their steps.
    """

    title: str
    connections: int
    runs: int
    bodies: Sequence[object] = (STEP,)
    headers: Mapping[str, str] = field(default_factory=dict)
    reserved: bool = False

    def to(self, paths: Sequence[str], headers: Mapping[str, str]) -> Requests:
        """Build the requests to paths, which the connections take in turn."""
        sent = {path: [request(path, body, {**headers, **self.headers}) for body in self.bodies] for path in paths}
        found = []
        for index in range(self.connections):
            own, first = sent[paths[index % len(paths)]], index % len(self.bodies)
            found.append([*own[first:], *own[:first]])
        return found


@dataclass(frozen=True)
class Contender:
    """A server and its requests.

    Args:
        name: for the table.
        server: to measure.
        requests: builds the requests of traffic.
        stores: whether it is the service, which also gets batches.
    """

    name: str
    server: Server
    requests: Callable[[Traffic], Requests]
    stores: bool = False


def service_requests(server: Server, traffic: Traffic, budget_path: str = "p/b") -> Requests:
    """Build the requests to the steps of new runs of a budget."""
    headers = {"Authorization": server.client.headers["authorization"]}
    paths = [steps_path(server, budget_path) for _ in range(traffic.runs)]
    for path in paths if traffic.reserved else ():
        plan = {"events": [{"event": EVENT, "count": RESERVED}], "lease_seconds": 3600}
        server.client.post(path.replace("steps", "reservations"), json=plan).raise_for_status()
    return traffic.to(paths, headers)


_OF_KINDS = [{"event": event} for event in different_events(KINDS)]
STEPS = (
    Traffic("a run for each connection", CONNECTIONS, CONNECTIONS),
    Traffic("one run", CONNECTIONS, 1),
    Traffic("one connection", 1, 1),
)
OTHER_STEPS = (
    Traffic("ten kinds of events in turn, a run for each", CONNECTIONS, CONNECTIONS, _OF_KINDS),
    Traffic("ten kinds of events in turn, one run", CONNECTIONS, 1, _OF_KINDS),
    Traffic("new idempotency keys", CONNECTIONS, CONNECTIONS, headers={"Idempotency-Key": f"step-{NUMBER}"}),
    Traffic("reserved steps", CONNECTIONS, CONNECTIONS, reserved=True),
)
BATCHES = Traffic(
    f"events in batches of {BATCH}, {BATCH_CONNECTIONS} connections",
    BATCH_CONNECTIONS,
    BATCH_CONNECTIONS,
    [batch(KINDS)],
)


def contenders(stack: ExitStack, folder: Path) -> list[Contender]:
    """Start every available server, the bare endpoint first."""
    floor = stack.enter_context(bare())
    found = [Contender("bare endpoint", floor, lambda traffic: traffic.to(["/steps"], {}))]
    urls = {"SQLite": f"sqlite:///{folder / 'ledger.db'}"}
    stores = {"SQLite": f"sqlite:///{folder / 'mlflow.db'}"}
    cluster = stack.enter_context(postgresql())
    if cluster is not None:
        urls["PostgreSQL"] = cluster.create_database("ledger")
        stores["PostgreSQL"] = cluster.create_database("mlflow").replace("postgresql:", "postgresql+psycopg2:")
    for kind, url in urls.items():
        server = stack.enter_context(ledger(url))
        for name, path in (("service", "p/b"), ("service, plans", budget(server, "planned", planned=[EVENT]))):
            found.append(
                Contender(
                    f"{name}, {kind}",
                    server,
                    lambda traffic, server=server, path=path: service_requests(server, traffic, path),  # type: ignore[misc]
                    stores=True,
                )
            )
    executable = mlflow_executable()
    for kind, url in stores.items() if executable else ():
        tracking = stack.enter_context(mlflow(str(executable), folder, url))
        found.append(
            Contender(
                f"MLflow log-metric, {kind}",
                tracking,
                lambda traffic, tracking=tracking: metric_requests(tracking, traffic),  # type: ignore[misc]
            )
        )
    return found


def metric_requests(server: Server, traffic: Traffic) -> Requests:
    """Build metrics for each connection to log; a metric has neither kinds nor keys."""
    connections, runs = traffic.connections, traffic.runs
    per_run = METRICS * connections // runs
    bodies = [metric_bodies(server, per_run) for _ in range(runs)]
    turn = connections // runs
    return [
        [request("/api/2.0/mlflow/runs/log-metric", body, {}) for body in bodies[index % runs][index // runs :: turn]]
        for index in range(connections)
    ]


def table(title: str, rows: dict[str, list[Load]], unit: int = 1) -> None:
    """Print medians and their ratios to the first row."""
    floor = median(load.rate for load in next(iter(rows.values()))) * unit
    print(f"\n{title:40} {'a second':>10} {'ratio':>7} {'median ms':>10} {'99 % ms':>9}")
    for name, loads in rows.items():
        rate = median(load.rate for load in loads) * unit
        half, late = median(load.median_ms for load in loads), median(load.late_ms for load in loads)
        print(f"{name:40} {rate:10,.0f} {rate / floor:7.2f} {half:10.2f} {late:9.2f}")


def rounds(named: Sequence[tuple[str, Server, Requests]], seconds: float, count: int) -> dict[str, list[Load]]:
    """Measure each server repeatedly in turn, after a short warm-up."""
    for _, server, requests in named:
        loaded(server.port, requests, seconds)
    rows: dict[str, list[Load]] = {name: [] for name, _, _ in named}
    for _ in range(count):
        for name, server, requests in named:
            rows[name].append(loaded(server.port, requests, seconds))
    return rows


def main(seconds: float = 2.0, count: int = 3) -> None:
    """Print the tables, with `seconds` for one measurement and `count` rounds."""
    client = "wrk" if shutil.which("wrk") else "benchmarks.load"
    print(f"{count} rounds of {seconds:g} s each, load by {client}, {CONNECTIONS} connections if not stated")
    with tempfile.TemporaryDirectory() as folder, ExitStack() as stack:
        found = contenders(stack, Path(folder))
        for traffic in STEPS:
            compare(traffic, found, seconds, count)
        for traffic in OTHER_STEPS:
            compare(traffic, [one for one in found if "MLflow" not in one.name], seconds, count)
        compare(BATCHES, [one for one in found if one.stores], max(seconds, LONGER_SECONDS), count, BATCH)


def compare(traffic: Traffic, servers: Sequence[Contender], seconds: float, count: int, unit: int = 1) -> None:
    """Measure servers with the same traffic, and print their table."""
    named = [(one.name, one.server, one.requests(traffic)) for one in servers]
    table(traffic.title, rounds(named, seconds, count), unit)


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--seconds", type=float, default=2.0)
    parser.add_argument("--rounds", type=int, default=3)
    asked = parser.parse_args()
    main(asked.seconds, asked.rounds)
