"""Disk space of a step: `python -m benchmarks.sizes`, for docs/operations.

Charges runs under one budget in several ways, and prints the bytes of write-ahead log for each step between two
checkpoints, the size of rows, and the growth of a SQLite file for each step.
"""

import sqlite3
import sys
import tempfile
from contextlib import closing
from pathlib import Path

from benchmarks.databases import postgresql
from benchmarks.load import loaded, request
from benchmarks.servers import BATCH, EVENT, Server, batch, ledger, steps_path
from tests.postgres import Cluster

SECONDS = 6.0
DATABASE = "sizes"
ONE: dict[str, object] = {"count": 1}
WAYS: dict[str, tuple[int, int, bool, dict[str, object]]] = {
    "1 trainer": (1, 1, False, ONE),
    "1 trainer, reserved": (1, 1, True, ONE),
    "64 trainers, each its run": (64, 64, False, ONE),
    "64 trainers, each its run, reserved": (64, 64, True, ONE),
    "64 requests at once for one run": (64, 1, False, ONE),
    "1 trainer, 1,000 different steps in a request": (1, 1, False, batch(BATCH)),
    "1 trainer, 1,000 steps of ten kinds": (1, 1, False, batch(10)),
}
"""By name: connections, runs, whether they use reservations, and the request body."""

ROWS = """
    SELECT 'decisions', count(*), pg_table_size('decisions') / count(*), pg_indexes_size('decisions') / count(*)
    FROM decisions
    UNION ALL
    SELECT 'decision_events', count(*), pg_table_size('decision_events') / count(*),
           pg_indexes_size('decision_events') / count(*)
    FROM decision_events
    UNION ALL
    SELECT 'balances.spent_curve', count(*), avg(pg_column_size(spent_curve))::bigint, 0
    FROM balances WHERE length(spent_curve) > 0
    UNION ALL
    SELECT 'accounts', count(*), avg(pg_column_size(accounts.*))::bigint, 0 FROM accounts
"""


def written(cluster: Cluster) -> int:
    """Return the bytes of log that the server has written."""
    return int(cluster.execute("SELECT pg_wal_lsn_diff(pg_current_wal_insert_lsn(), '0/0')::bigint")[0][0])


def decisions(cluster: Cluster) -> int:
    """Count the decisions."""
    return int(cluster.execute("SELECT count(*) FROM decisions", DATABASE)[0][0])


def measure(server: Server, cluster: Cluster, how: tuple[int, int, bool, dict[str, object]]) -> tuple[float, float]:
    """Charge for some seconds; return requests per second, and bytes of log for each step."""
    connections, runs, reserved, body = how
    headers = {"Authorization": server.client.headers["authorization"]}
    paths = [steps_path(server) for _ in range(runs)]
    if reserved:
        for path in paths:
            plan = {"events": [{"event": EVENT, "count": 100_000}]}
            server.client.post(path.replace("/steps", "/reservations"), json=plan).raise_for_status()
    requests = [[request(paths[index % runs], body, headers)] for index in range(connections)]
    server.client.post(paths[0], json=body).raise_for_status()  # new events are priced once
    loaded(server.port, requests, 2.0)  # a page that is changed first after a checkpoint is logged in full
    before, bytes_before = decisions(cluster), written(cluster)
    loaded(server.port, requests, SECONDS)
    made = decisions(cluster) - before
    steps = made * len(body.get("events", [None]))  # type: ignore[arg-type]
    return made / SECONDS, (written(cluster) - bytes_before) / steps


def grown(folder: Path) -> float:
    """Return the growth of a SQLite file by a step of one of 64 trainers, after a checkpoint of the log."""
    file = folder / "sizes.db"
    with ledger(f"sqlite:///{file}") as server:
        headers = {"Authorization": server.client.headers["authorization"]}
        paths = [steps_path(server) for _ in range(64)]
        sizes = []
        for _ in range(2):
            loaded(server.port, [[request(path, ONE, headers)] for path in paths], SECONDS)
            with closing(sqlite3.connect(file)) as reader:
                reader.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchall()
                [[made]] = reader.execute("SELECT count(*) FROM decisions").fetchall()
            sizes.append((made, file.stat().st_size))
    (fewer, smaller), (more, larger) = sizes
    return float((larger - smaller) / (more - fewer))


def main() -> None:
    """Print both tables, and the growth of a file."""
    with postgresql() as cluster:
        if cluster is None:
            sys.exit("no PostgreSQL server can be had")
        with ledger(cluster.create_database(DATABASE)) as server:
            print(f"{'':46} {'requests/s':>10} {'log bytes/step':>15}")
            for what, how in WAYS.items():
                rate, size = measure(server, cluster, how)
                print(f"{what:46} {rate:10,.0f} {size:15,.0f}")
        print(f"\n{'':16} {'rows':>8} {'bytes each':>10} {'of indexes':>10}")
        for name, rows, size, indexes in cluster.execute(ROWS, DATABASE):
            print(f"{name:16} {rows:8,} {size:10,} {indexes:10,}")
    with tempfile.TemporaryDirectory() as folder:
        print(f"\nSQLite: {grown(Path(folder)):,.0f} bytes of file for each single step")


if __name__ == "__main__":
    main()
