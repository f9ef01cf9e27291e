"""The service as a process of its own: a command of it, or a real server on a real port."""

import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from socketserver import BaseServer
from threading import Thread
from typing import Self

import httpx2
from prometheus_client.parser import text_string_to_metric_families

from app.ledger.permissions import Role
from app.persistence.schema import upgrade
from app.service.auth import authentication
from app.service.keys.api_keys import create_key
from app.service.readiness import CACHE_SECONDS
from tests.fork_server import ForkedProcess, service_server
from tests.open_databases import open_database
from tests.polling import await_true, status_of
from tests.postgres import free_port

SETTINGS = {"EPSILON_LEDGER_RATE_LIMIT_SIGN_INS_PER_MINUTE": "0", "EPSILON_LEDGER_INIT_WHEN_EMPTY": "false"}
"""Tests sign in more often than people do, and found their organisations themselves."""


def command_line(*arguments: str, database: Path | str, timeout: float = 120) -> subprocess.CompletedProcess[str]:
    """Run `epsilon-ledger` as a person would, on a SQLite file or on the database of a URL."""
    url = database if isinstance(database, str) else f"sqlite:///{database}"
    there = os.environ | {"EPSILON_LEDGER_DATABASE_URL": url}
    with tempfile.TemporaryFile() as output, tempfile.TemporaryFile() as errors:
        process = ForkedProcess(service_server(), "app", *arguments, environment=there, output=output, errors=errors)
        try:
            status = process.wait(timeout)
        finally:
            process.kill()
        said = [(file.seek(0), file.read().decode())[1] for file in (output, errors)]
    return subprocess.CompletedProcess(process.args, status, *said)


class QuietHandler(BaseHTTPRequestHandler):
    """A handler that answers whole, and logs nothing."""

    def answer(self, status: int, content: bytes = b"", **headers: str) -> None:
        """Send an answer; a header's name has `_` for `-`."""
        self.send_response(status)
        for name, value in (headers | {"Content_Length": str(len(content))}).items():
            self.send_header(name.replace("_", "-"), value)
        self.end_headers()
        self.wfile.write(content)

    def log_message(self, *_: object) -> None:
        """Say nothing."""


@contextmanager
def background_thread(server: BaseServer) -> Iterator[None]:
    """Let a server of the standard library serve in a thread, for a while."""
    thread = Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
    thread.start()
    try:
        yield
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


@dataclass
class LiveServer:
    """A server process of its own, by default on a SQLite file of its own; `module` is what it runs.

    It speaks plain HTTP, so that its clients need not read certificates (`verify=False`), which takes 30 ms. A
    PostgreSQL database must have the newest schema before the start. `interpreted`: not a fork, but an interpreter of
    its own.
    """

    folder: Path
    database_url: str = ""
    module: str = "app"
    workers: int = 1
    port: int = 0
    process: subprocess.Popen[bytes] | ForkedProcess = field(init=False)
    keys: dict[str, str] = field(default_factory=dict)
    environment: dict[str, str] = field(default_factory=dict)
    interpreted: bool = False

    def __post_init__(self) -> None:
        self.database_url = self.database_url or f"sqlite:///{self.folder / 'ledger.db'}"

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def key(self, role: str, organisation: str = "hospital") -> str:
        """A key of this role, issued without a process for it; the organisation is founded with its first key."""
        name = f"{organisation}/{role}"
        if name not in self.keys:
            now = datetime.now(UTC)
            with open_database(self.database_url) as database:
                if not database.exists():  # the service was never started on this file
                    upgrade(database)
                if not any(known.startswith(f"{organisation}/") for known in self.keys):
                    authentication.create_organisation(database, organisation, now)
                self.keys[name] = create_key(database, organisation, Role(role), now).key
        return self.keys[name]

    def client(self, role: str, organisation: str = "hospital") -> httpx2.Client:
        """A bare HTTP client with a key of this role."""
        headers = {"Authorization": f"Bearer {self.key(role, organisation)}"}
        return httpx2.Client(base_url=self.url, headers=headers, timeout=60, trust_env=False, verify=False)

    def readiness(self) -> httpx2.Response:
        """What a load balancer is told, once what it was told before is too old."""
        time.sleep(CACHE_SECONDS)
        return httpx2.get(f"{self.url}/readyz", timeout=60, trust_env=False, verify=False)

    def metric(self, name: str, **labels: str) -> float | None:
        """A metric of the service, without its prefix; None: it is not told."""
        text = httpx2.get(f"{self.url}/metrics", timeout=10, trust_env=False, verify=False).raise_for_status().text
        for family in text_string_to_metric_families(text):
            for sample in family.samples:
                if (sample.name, sample.labels) == (f"epsilon_ledger_{name}", labels):
                    return sample.value
        return None

    def await_metric(self, name: str, value: float, **labels: str) -> None:
        """Wait until a metric has a value: longer than a scrape's results are used again."""
        await_true(lambda: self.metric(name, **labels) == value, self.log, 0.2, seconds=30)

    def start(self) -> None:
        """Start the process and wait until it is ready."""
        self.port = self.port or free_port()
        with (self.folder / "server.log").open("ab") as log:
            given = SETTINGS | os.environ | {"EPSILON_LEDGER_DATABASE_URL": self.database_url}
            given |= self.environment
            command = [self.module, "serve", f"--port={self.port}", f"--workers={self.workers}"]
            if self.interpreted:
                words = [sys.executable, "-m", *command]
                self.process = subprocess.Popen(words, env=given, stdout=log, stderr=log, start_new_session=True)
            else:
                server = service_server()
                self.process = ForkedProcess(server, *command, environment=given, output=log, new_session=True)
        await_true(lambda: not self.is_alive or status_of(f"{self.url}/readyz") == 200, self.log, 0.05, seconds=60)
        assert self.is_alive, self.log()

    @property
    def is_alive(self) -> bool:
        return hasattr(self, "process") and self.process.poll() is None

    def kill(self) -> None:
        """End the process and its workers as a power cut would."""
        with suppress(ProcessLookupError):  # it may have ended by itself
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()

    def stop(self) -> None:
        """End the process as an operator would."""
        self.process.terminate()
        self.process.wait(timeout=30)

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self.is_alive:
            self.stop()

    def log(self) -> str:
        return (self.folder / "server.log").read_text()
