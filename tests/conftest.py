"""What tests of several rooms share: a real server on a real port, and an application in this process."""

import json
import os
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path

import httpx2
import pytest
from fastapi.testclient import TestClient
from hypothesis import HealthCheck, settings

from app.main import create_app
from app.persistence.engine import Database
from app.persistence.schema import upgrade
from app.service import access
from app.service.access import Role
from app.settings import Settings

settings.register_profile("ledger", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("ledger")

SAMPLED = {
    "type": "poisson_sampled",
    "sampling_probability": 0.01,
    "event": {"type": "gaussian", "noise_multiplier": 1.1},
}


def command_line(*arguments: str, database: Path) -> subprocess.CompletedProcess[str]:
    """Run `epsilon-ledger` as a person would."""
    return subprocess.run(
        [sys.executable, "-m", "app.cli", *arguments],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
        env=os.environ | {"EPSILON_LEDGER_DATABASE_URL": f"sqlite:///{database}"},
    )


@dataclass
class LiveServer:
    """A server process of its own, on a database of its own."""

    folder: Path
    port: int = 0
    process: subprocess.Popen[bytes] | None = None
    keys: dict[str, str] = field(default_factory=dict)

    @property
    def database(self) -> Path:
        return self.folder / "ledger.db"

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def key(self, role: str, organisation: str = "hospital") -> str:
        """A key of this role; the organisation is founded with its first key."""
        name = f"{organisation}/{role}"
        if name not in self.keys:
            if not any(known.startswith(f"{organisation}/") for known in self.keys):
                founded = command_line("org", "create", organisation, database=self.database)
                assert founded.returncode == 0, founded.stderr
            made = command_line("keys", "create", "--org", organisation, "--role", role, database=self.database)
            assert made.returncode == 0, made.stderr
            self.keys[name] = json.loads(made.stdout)["key"]
        return self.keys[name]

    def client(self, role: str, organisation: str = "hospital") -> httpx2.Client:
        """A bare HTTP client with a key of this role."""
        headers = {"Authorization": f"Bearer {self.key(role, organisation)}"}
        return httpx2.Client(base_url=self.url, headers=headers, timeout=60, trust_env=False)

    def start(self) -> None:
        """Start the process and wait until it is ready."""
        if not self.port:
            with socket.socket() as probe:
                probe.bind(("127.0.0.1", 0))
                self.port = probe.getsockname()[1]
        with (self.folder / "server.log").open("ab") as log:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "app.cli", "serve", "--port", str(self.port)],
                env=os.environ | {"EPSILON_LEDGER_DATABASE_URL": f"sqlite:///{self.database}"},
                stdout=log,
                stderr=log,
            )
        until = time.monotonic() + 60
        while True:
            try:
                if httpx2.get(f"{self.url}/readyz", timeout=5, trust_env=False).status_code == 200:
                    return
            except httpx2.TransportError:
                pass
            assert self.process.poll() is None, self.log()
            assert time.monotonic() < until, self.log()
            time.sleep(0.05)

    def kill(self) -> None:
        """End the process as a power cut would."""
        assert self.process is not None
        self.process.kill()
        self.process.wait()

    def stop(self) -> None:
        """End the process as an operator would."""
        assert self.process is not None
        self.process.terminate()
        self.process.wait(timeout=30)

    def log(self) -> str:
        return (self.folder / "server.log").read_text()


@pytest.fixture(scope="module")
def live_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LiveServer]:
    server = LiveServer(tmp_path_factory.mktemp("server"))
    server.start()
    yield server
    server.stop()


@dataclass(frozen=True)
class Ledger:
    """An application in this process, with keys of two organisations."""

    http: TestClient
    database: Database
    keys: dict[tuple[str, str], str]

    def headers(self, role: str = "admin", organisation: str = "hospital") -> dict[str, str]:
        return {"Authorization": f"Bearer {self.keys[organisation, role]}"}

    def post(self, path: str, body: object, role: str = "admin", **headers: str) -> httpx2.Response:
        sent = self.headers(role) | {name.replace("_", "-"): value for name, value in headers.items()}
        reply: httpx2.Response = self.http.post(path, json=body, headers=sent)
        return reply

    def get(self, path: str, role: str = "viewer", organisation: str = "hospital", **headers: str) -> httpx2.Response:
        sent = self.headers(role, organisation) | {name.replace("_", "-"): value for name, value in headers.items()}
        reply: httpx2.Response = self.http.get(path, headers=sent)
        return reply

    def population(self, name: str = "mimic", **terms: object) -> dict[str, object]:
        body = {
            "name": name,
            "privacy_unit": "patient",
            "neighboring_relation": "add_or_remove_one",
            "limit": {"epsilon": 3.0, "delta": 1e-5},
        }
        return self._made("/v1/populations", body | terms)

    def budget(self, name: str = "icu-team", parent: str = "mimic", **terms: object) -> dict[str, object]:
        body = {"name": name, "parent": parent, "limit": {"epsilon": 1.0, "delta": 1e-5}}
        return self._made("/v1/budgets", body | terms)

    def run(self, budget: str = "mimic/icu-team", **terms: object) -> str:
        body = {"name": "model", "budget": budget, "event": SAMPLED}
        return str(self._made("/v1/runs", body | terms)["id"])

    def _made(self, path: str, body: dict[str, object]) -> dict[str, object]:
        reply = self.post(path, body)
        assert reply.status_code == 201, reply.text
        made: dict[str, object] = reply.json()
        return made


@contextmanager
def open_ledger(folder: Path) -> Iterator[Ledger]:
    """An application on a new database with two organisations, each with a key of every role."""
    app = create_app(Settings(database_url=f"sqlite:///{folder / 'ledger.db'}"))
    database: Database = app.state.database
    upgrade(database)
    keys = {}
    for organisation in ("hospital", "clinic"):
        now = datetime.now(UTC)
        access.create_organisation(database, organisation, now)
        for role in Role:
            keys[organisation, str(role)] = access.create_key(database, organisation, role, now).key
    with TestClient(app, raise_server_exceptions=False) as http:
        yield Ledger(http, database, keys)


@pytest.fixture
def ledger(tmp_path: Path) -> Iterator[Ledger]:
    with open_ledger(tmp_path) as opened:
        yield opened
