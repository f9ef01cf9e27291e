"""Latency of one step: `python -m benchmarks.step_latency`.

One connection, one worker, interleaved: a durable step of the service, the bare FastAPI endpoint with the same models,
and a bare SQLite commit with synchronous=FULL on the same disk. Medians and ratios.
"""

import sqlite3
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from statistics import median

from benchmarks.servers import bare, ledger, steps_path

ROUNDS = 400


def timed(work: Callable[[], object]) -> float:
    """Return the milliseconds of a call."""
    start = time.perf_counter()
    work()
    return (time.perf_counter() - start) * 1e3


def main() -> None:
    """Print the table."""
    with tempfile.TemporaryDirectory() as folder:
        disk = sqlite3.connect(Path(folder) / "floor.db", isolation_level=None)
        for statement in ("PRAGMA journal_mode = WAL", "PRAGMA synchronous = FULL", "CREATE TABLE t (x BLOB)"):
            disk.execute(statement)
        with ledger(f"sqlite:///{Path(folder) / 'ledger.db'}") as service, bare() as floor:
            path = steps_path(service)
            rows: dict[str, list[float]] = {"step, durable": [], "bare endpoint": [], "bare commit": []}
            for number in range(ROUNDS):
                body = {"count": 1, "first_step": number}
                rows["step, durable"].append(
                    timed(lambda body=body: service.client.post(path, json=body).raise_for_status())  # type: ignore[misc]
                )
                rows["bare endpoint"].append(
                    timed(lambda body=body: floor.client.post("/steps", json=body).raise_for_status())  # type: ignore[misc]
                )
                rows["bare commit"].append(timed(lambda: disk.execute("INSERT INTO t VALUES (zeroblob(1000))")))
        disk.close()
    least = median(rows["bare endpoint"]) + median(rows["bare commit"])
    print(f"{'':16} {'median ms':>10} {'95 % ms':>10} {'/ (bare endpoint + bare commit)':>34}")
    for name, times in rows.items():
        ordered = sorted(times)
        print(f"{name:16} {median(times):10.2f} {ordered[int(0.95 * ROUNDS)]:10.2f} {median(times) / least:34.2f}")


if __name__ == "__main__":
    main()
