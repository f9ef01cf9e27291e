"""Latency of one step: `python -m benchmarks.step_latency`.

One connection, one worker, interleaved: a durable step of the service, one refused without a plan and with one, the
bare FastAPI endpoint with the same models, and a bare SQLite commit with synchronous=FULL on the same disk. Medians,
ratios.
"""

import sqlite3
import tempfile
import time
from http import HTTPStatus
from pathlib import Path
from statistics import median

from benchmarks.servers import Server, bare, budget, ledger, steps_path

ROUNDS = 400
EPSILON = 3.0
EVENT: dict[str, object] = {
    "type": "poisson_sampled",
    "sampling_probability": 0.01,
    "event": {"type": "gaussian", "noise_multiplier": 1.0},
}


PLANS: dict[str, list[dict[str, object]]] = {"no plan": [], "plan": [EVENT]}


def refusing(server: Server, name: str) -> str:
    """Take a hundred steps under a small limit, without a plan or with one; return the path of the run's steps."""
    path = steps_path(server, budget(server, name.replace(" ", "-"), EPSILON, PLANS[name]), EVENT)
    server.client.post(path, json={"count": 100}).raise_for_status()
    return path


def committed(disk: sqlite3.Connection) -> float:
    """Return the milliseconds of a commit."""
    start = time.perf_counter()
    disk.execute("INSERT INTO t VALUES (zeroblob(1000))")
    return (time.perf_counter() - start) * 1e3


def main() -> None:
    """Print the table."""
    with tempfile.TemporaryDirectory() as folder:
        disk = sqlite3.connect(Path(folder) / "floor.db", isolation_level=None)
        for statement in ("PRAGMA journal_mode = WAL", "PRAGMA synchronous = FULL", "CREATE TABLE t (x BLOB)"):
            disk.execute(statement)
        with ledger(f"sqlite:///{Path(folder) / 'ledger.db'}") as service, bare() as floor:
            path = steps_path(service)
            refused = {f"refused, {name}": refusing(service, name) for name in PLANS}
            rows: dict[str, list[float]] = {"step, durable": [], **{name: [] for name in refused}}
            rows |= {"bare endpoint": [], "bare commit": []}
            for number in range(ROUNDS):
                body = {"count": 1, "first_step": number}
                rows["step, durable"].append(service.timed("POST", path, body))
                for name, ended in refused.items():
                    rows[name].append(service.timed("POST", ended, {"count": 10_000 + number}, HTTPStatus.FORBIDDEN))
                rows["bare endpoint"].append(floor.timed("POST", "/steps", body))
                rows["bare commit"].append(committed(disk))
        disk.close()
    least = median(rows["bare endpoint"]) + median(rows["bare commit"])
    print(f"{'':18} {'median ms':>10} {'95 % ms':>10} {'/ (bare endpoint + bare commit)':>34}")
    for name, times in rows.items():
        ordered = sorted(times)
        print(f"{name:18} {median(times):10.2f} {ordered[int(0.95 * ROUNDS)]:10.2f} {median(times) / least:34.2f}")


if __name__ == "__main__":
    main()
