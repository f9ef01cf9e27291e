"""What a trainer waits for one step: `python -m benchmarks.step_latency`.

One connection, one worker. In turn: a step of the service (durably committed), the bare FastAPI endpoint with the same
models that stores nothing, and a bare SQLite commit with synchronous=FULL on the same disk. Medians and ratios.
"""

import json
import os
import socket
import sqlite3
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from statistics import median

import httpx2

ROUNDS = 400
EVENT = {
    "type": "poisson_sampled",
    "sampling_probability": 0.004,
    "event": {"type": "gaussian", "noise_multiplier": 1.1},
}


@contextmanager
def server(arguments: list[str], environment: dict[str, str], ready: str) -> Iterator[httpx2.Client]:
    """Start a server process on a free port and stop it afterwards.

    Args:
        arguments: of the Python interpreter, without the port.
        environment: besides this process's.
        ready: the path that answers when it is up.

    Yields:
        A client of it.
    """
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    process = subprocess.Popen(
        [sys.executable, "-m", *arguments, "--port", str(port)],
        env=os.environ | environment,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    try:
        with httpx2.Client(base_url=f"http://127.0.0.1:{port}", timeout=30) as client:
            until = time.monotonic() + 30
            while time.monotonic() < until:
                try:
                    client.get(ready)
                    break
                except httpx2.TransportError:
                    time.sleep(0.05)
            yield client
    finally:
        process.terminate()
        process.wait()


def open_run(client: httpx2.Client, environment: dict[str, str]) -> str:
    """Make an organisation, a population, a budget and a run.

    Returns:
        The path of the run's steps.
    """

    def command(*arguments: str) -> dict[str, str]:
        made = subprocess.run(
            [sys.executable, "-m", "app.cli", *arguments],
            env=os.environ | environment,
            capture_output=True,
            check=True,
        )
        facts: dict[str, str] = json.loads(made.stdout)
        return facts

    command("org", "create", "bench", "--json")
    key = command("keys", "create", "--org", "bench", "--role", "admin", "--json")["key"]
    client.headers["Authorization"] = f"Bearer {key}"
    limit = {"epsilon": 8, "delta": 1e-5}
    population = {"name": "p", "privacy_unit": "user", "neighboring_relation": "add_or_remove_one", "limit": limit}
    client.post("/v1/populations", json=population).raise_for_status()
    client.post("/v1/budgets", json={"name": "b", "parent": "p", "limit": limit}).raise_for_status()
    run = client.post("/v1/runs", json={"name": "r", "budget": "p/b", "event": EVENT})
    return f"/v1/runs/{run.raise_for_status().json()['id']}/steps"


def timed(work: Callable[[], object]) -> float:
    """Return the milliseconds that a call takes."""
    start = time.perf_counter()
    work()
    return (time.perf_counter() - start) * 1e3


def main() -> None:
    """Print the table."""
    with tempfile.TemporaryDirectory() as folder:
        environment = {"EPSILON_LEDGER_DATABASE_URL": f"sqlite:///{Path(folder) / 'ledger.db'}"}
        disk = sqlite3.connect(Path(folder) / "floor.db", isolation_level=None)
        for statement in ("PRAGMA journal_mode = WAL", "PRAGMA synchronous = FULL", "CREATE TABLE t (x BLOB)"):
            disk.execute(statement)
        bare_arguments = ["uvicorn", "benchmarks.bare:app", "--loop", "uvloop", "--http", "httptools"]
        with (
            server(["app.cli", "serve"], environment, "/readyz") as service,
            server(bare_arguments, {}, "/steps") as bare,
        ):
            path = open_run(service, environment)
            rows: dict[str, list[float]] = {"step, durable": [], "bare endpoint": [], "bare commit": []}
            for number in range(ROUNDS):
                body = {"count": 1, "first_step": number}
                rows["step, durable"].append(
                    timed(lambda body=body: service.post(path, json=body).raise_for_status())  # type: ignore[misc]
                )
                rows["bare endpoint"].append(
                    timed(lambda body=body: bare.post("/steps", json=body).raise_for_status())  # type: ignore[misc]
                )
                rows["bare commit"].append(timed(lambda: disk.execute("INSERT INTO t VALUES (zeroblob(1000))")))
        disk.close()
    floor = median(rows["bare endpoint"]) + median(rows["bare commit"])
    print(f"{'':16} {'median ms':>10} {'95 % ms':>10} {'/ (bare endpoint + bare commit)':>34}")
    for name, times in rows.items():
        ordered = sorted(times)
        print(f"{name:16} {median(times):10.2f} {ordered[int(0.95 * ROUNDS)]:10.2f} {median(times) / floor:34.2f}")


if __name__ == "__main__":
    main()
