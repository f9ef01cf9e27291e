"""Servers to measure: the service, the bare endpoint, an MLflow tracking server."""

import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from compileall import compile_dir
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import cached_property
from http import HTTPStatus
from http.client import HTTPConnection
from importlib.util import find_spec
from pathlib import Path

import httpx2

import app

MLFLOW = "MLFLOW"
"""Environment variable with MLflow's executable, which is no dependency of this project."""

UNLIMITED = {"EPSILON_LEDGER_RATE_LIMIT_PER_SECOND": "0"}
"""The load uses one key at full speed."""

EVENT: dict[str, object] = {
    "type": "poisson_sampled",
    "sampling_probability": 0.001,
    "event": {"type": "gaussian", "noise_multiplier": 10.0},
}
"""Cheap enough that a budget of epsilon 10,000 lasts for any benchmark."""

BATCH = 1000
"""Events of a batch."""


def different_events(count: int) -> list[dict[str, object]]:
    """Build events like `EVENT` with different noise, the first of them `EVENT`."""
    return [EVENT | {"event": {"type": "gaussian", "noise_multiplier": 10.0 + place}} for place in range(count)]


def batch(kinds: int) -> dict[str, object]:
    """Build a body of a batch of events that alternate among so many."""
    events = different_events(kinds)
    return {"events": [{"event": events[place % kinds], "count": 1} for place in range(BATCH)]}


@dataclass(frozen=True)
class Server:
    """A running server.

    Args:
        process: its id.
        port: on 127.0.0.1.
        client: for it.
    """

    process: int
    port: int
    client: httpx2.Client

    def processor_seconds(self) -> float:
        """Processor seconds of the server and its child processes."""
        ticks = sum(int(ticks) for process in self._family() for ticks in _facts(process)[11:13])
        return ticks / os.sysconf("SC_CLK_TCK")

    def _family(self) -> list[int]:
        family = [self.process]
        for parent in family:  # it grows meanwhile
            for listed in Path(f"/proc/{parent}/task").glob("*/children"):
                with suppress(FileNotFoundError):
                    family += map(int, listed.read_text().split())
        return family

    @cached_property
    def _connection(self) -> HTTPConnection:
        """A connection with a third of the client's own processor time."""
        return HTTPConnection("127.0.0.1", self.port, timeout=60)

    def timed(self, method: str, path: str, body: object = None, status: int = HTTPStatus.OK) -> float:
        """Return the milliseconds of a request, whose answer must have a status."""
        headers = {name: self.client.headers[name] for name in ("authorization",) if name in self.client.headers}
        content = None if body is None else json.dumps(body, separators=(",", ":"))
        if content is not None:
            headers["content-type"] = "application/json"
        start = time.perf_counter()
        self._connection.request(method, path, content, headers)
        answer = self._connection.getresponse()
        text = answer.read()
        taken = (time.perf_counter() - start) * 1e3
        assert answer.status == status, text.decode()
        return taken

    def memory(self) -> tuple[float, float]:
        """Resident memory in MB, now and at its peak."""
        status = Path(f"/proc/{self.process}/status").read_text()
        facts = dict(line.split(":", 1) for line in status.splitlines())
        return tuple(int(facts[name].split()[0]) / 1000 for name in ("VmRSS", "VmHWM"))  # type: ignore[return-value]


def _facts(process: int) -> list[str]:
    """Return the kernel's statistics of a process, from its state on; zeros after its end."""
    try:
        return Path(f"/proc/{process}/stat").read_text().rsplit(")", 1)[1].split()
    except FileNotFoundError:
        return ["0"] * 50


@contextmanager
def serving(command: list[str], environment: dict[str, str], ready: str) -> Iterator[Server]:
    """Run a server on a free port for the block.

    Args:
        command: without the port.
        environment: in addition to this process's.
        ready: path that answers once the server is up.

    Yields:
        The server.
    """
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    with tempfile.TemporaryFile() as log:
        process = subprocess.Popen(
            [*command, "--port", str(port)],
            env=os.environ | environment,
            stdout=log,
            stderr=log,
            start_new_session=True,
        )
        try:
            with httpx2.Client(base_url=f"http://127.0.0.1:{port}", timeout=60, trust_env=False) as client:
                _await(client, ready, process)
                yield Server(process.pid, port, client)
        except AssertionError:
            log.seek(0)
            print(log.read()[-2000:].decode(errors="replace"), file=sys.stderr)
            raise
        finally:
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGTERM)
            process.wait()


def compile_sources() -> None:
    """Compile the service as its installation does: else each start would, where Python may not write bytecode."""
    compile_dir(Path(app.__file__).parent, quiet=1)


def _await(client: httpx2.Client, ready: str, process: "subprocess.Popen[bytes]") -> None:
    until = time.monotonic() + 60
    while time.monotonic() < until:
        try:
            client.get(ready)
        except httpx2.TransportError:
            time.sleep(0.01)
        else:
            return
        assert process.poll() is None, "the server did not start"
    raise AssertionError("the server did not answer")


@contextmanager
def bare() -> Iterator[Server]:
    """Run the baseline: an endpoint with the same models and no storage."""
    command = [sys.executable, "-m", "uvicorn", "benchmarks.bare:app", "--loop", "uvloop", "--http", "httptools"]
    with serving([*command, "--no-access-log"], {}, "/steps") as server:
        yield server


@contextmanager
def ledger(database_url: str, workers: int = 1) -> Iterator[Server]:
    """Run the service on a new database with a population `p`, a budget `p/b` and an admin's client."""
    environment = {"EPSILON_LEDGER_DATABASE_URL": database_url} | UNLIMITED
    _command(environment, "migrate", "--json")
    key = _organisation(environment, "bench", "admin")
    serve = [sys.executable, "-m", "app", "serve", "--workers", str(workers)]
    with serving(serve, environment, "/readyz") as server:
        server.client.headers["Authorization"] = f"Bearer {key}"
        budget(server, "p")
        yield server


@contextmanager
def ledger_of_two(database_url: str, role: str = "viewer", workers: int = 1) -> Iterator[tuple[Server, Server]]:
    """As `ledger`, with a second organisation: an admin's client of the first, one with a role of the second."""
    with ledger(database_url, workers) as ours, another_organisation(database_url, ours, "others", role) as theirs:
        yield ours, theirs


@contextmanager
def another_organisation(database_url: str, server: Server, name: str, role: str) -> Iterator[Server]:
    """Create an organisation of a running service; yield a client with a role of it."""
    key = _organisation({"EPSILON_LEDGER_DATABASE_URL": database_url}, name, role)
    headers = {"Authorization": f"Bearer {key}"}
    base = f"http://127.0.0.1:{server.port}"
    with httpx2.Client(base_url=base, headers=headers, timeout=60, trust_env=False) as client:
        yield Server(server.process, server.port, client)


def _organisation(environment: dict[str, str], name: str, role: str) -> str:
    """Create an organisation, and return an API key."""
    _command(environment, "org", "create", name, "--json")
    return _command(environment, "keys", "create", "--org", name, "--role", role, "--json")["key"]


def _command(environment: dict[str, str], *arguments: str) -> dict[str, str]:
    made = subprocess.run(
        [sys.executable, "-m", "app", *arguments], env=os.environ | environment, capture_output=True, check=True
    )
    facts: dict[str, str] = json.loads(made.stdout)
    return facts


@contextmanager
def replica(database_url: str, first: Server) -> Iterator[Server]:
    """Run another process of the first one's ledger, with a client of its organisation."""
    serve = [sys.executable, "-m", "app", "serve"]
    with serving(serve, {"EPSILON_LEDGER_DATABASE_URL": database_url} | UNLIMITED, "/readyz") as server:
        server.client.headers["Authorization"] = first.client.headers["Authorization"]
        yield server


def budget(server: Server, population: str, epsilon: float = 10_000, planned: Sequence[dict[str, object]] = ()) -> str:
    """Create a population with a budget `b` of the same limit and plan; return its path."""
    terms = {"limit": {"epsilon": epsilon, "delta": 1e-5}, "planned": [{"event": event} for event in planned]}
    unit = {"privacy_unit": "user", "neighboring_relation": "add_or_remove_one"}
    server.client.post("/v1/populations", json=terms | unit | {"name": population}).raise_for_status()
    server.client.post("/v1/budgets", json=terms | {"name": "b", "parent": population}).raise_for_status()
    return f"{population}/b"


def steps_path(server: Server, budget_path: str = "p/b", event: dict[str, object] = EVENT) -> str:
    """Register a run of a budget; return the path of its steps."""
    run = server.client.post("/v1/runs", json={"name": "r", "budget": budget_path, "event": event})
    return f"/v1/runs/{run.raise_for_status().json()['id']}/steps"


def mlflow_executable() -> str | None:
    """Return MLflow's executable, or None."""
    if named := os.environ.get(MLFLOW):
        return named
    return shutil.which("mlflow") if find_spec("mlflow") else None


@contextmanager
def mlflow(executable: str, folder: Path, database_url: str) -> Iterator[Server]:
    """Run an MLflow tracking server with one worker on a new database."""
    where = ["--backend-store-uri", database_url, "--artifacts-destination", str(folder), "--workers", "1"]
    with serving([executable, "server", "--host", "127.0.0.1", *where], {}, "/health") as server:
        yield server


def metric_bodies(server: Server, count: int) -> list[dict[str, object]]:
    """Build metrics of a new MLflow run, to be logged individually."""
    api = server.client.post("/api/2.0/mlflow/runs/create", json={"experiment_id": "0", "start_time": 0})
    run = api.raise_for_status().json()["run"]["info"]["run_id"]
    return [
        {"run_id": run, "key": "epsilon", "value": step / 1000, "timestamp": 1_700_000_000_000 + step, "step": step}
        for step in range(count)
    ]
