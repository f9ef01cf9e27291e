"""What tests of several rooms share: a real server on a real port, an application in this process, two databases."""

import atexit
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import cache
from pathlib import Path
from typing import Any

import httpx2
import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat
from fastapi.testclient import TestClient
from hypothesis import HealthCheck, settings

from app.ledger.roles import Role
from app.main import create_app
from app.persistence.engine import EVERYONE, Database
from app.persistence.repositories import tenants
from app.persistence.schema import is_current, upgrade
from app.service.alerts import deliverer, sending
from app.service.asking import access, keyring
from app.service.governance.keys import create_key
from app.service.signing import public_pem
from app.settings import Settings
from tests import postgres
from tests.postgres_binaries import NoServerError

# An application in this process looks keys up when they are used, and never beside: a test that counts statements, or
# makes one of them fail, means those of its own requests. Real servers do as they do.
keyring.LOOK_SECONDS = 3600.0
deliverer.LOOK_SECONDS = 3600.0  # as with keys; tests that deliver look oftener

# Read once: it takes longer than all the rest of an application's start.
sending._trusting = cache(sending._trusting)

settings.register_profile("ledger", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("ledger")

Keys = dict[tuple[str, str], str]
"""By organisation and role."""

ORGANISATIONS = ("hospital", "clinic")

SAMPLED = {
    "type": "poisson_sampled",
    "sampling_probability": 0.01,
    "event": {"type": "gaussian", "noise_multiplier": 1.1},
}


def command_line(*arguments: str, database: Path | str) -> subprocess.CompletedProcess[str]:
    """Run `epsilon-ledger` as a person would, on a SQLite file or on the database of a URL."""
    url = database if isinstance(database, str) else f"sqlite:///{database}"
    return subprocess.run(
        [sys.executable, "-m", "app.cli", *arguments],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
        env=os.environ | {"EPSILON_LEDGER_DATABASE_URL": url},
    )


@dataclass
class LiveServer:
    """A server process of its own, by default on a SQLite file of its own; `module` is what it runs.

    A PostgreSQL database must have the newest schema before the start.
    """

    folder: Path
    database_url: str = ""
    module: str = "app.cli"
    workers: int = 1
    port: int = 0
    process: subprocess.Popen[bytes] | None = None
    keys: dict[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.database_url = self.database_url or f"sqlite:///{self.folder / 'ledger.db'}"

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def key(self, role: str, organisation: str = "hospital") -> str:
        """A key of this role, issued without a process for it; the organisation is founded with its first key."""
        name = f"{organisation}/{role}"
        if name not in self.keys:
            database, now = Database(self.database_url), datetime.now(UTC)
            if not database.exists():  # the service was never started on this file
                upgrade(database)
            if not any(known.startswith(f"{organisation}/") for known in self.keys):
                access.create_organisation(database, organisation, now)
            self.keys[name] = create_key(database, organisation, Role(role), now).key
            database.dispose()
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
                [sys.executable, "-m", self.module, "serve", f"--port={self.port}", f"--workers={self.workers}"],
                env=os.environ | {"EPSILON_LEDGER_DATABASE_URL": self.database_url},
                stdout=log,
                stderr=log,
                start_new_session=True,
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
        """End the process and its workers as a power cut would."""
        assert self.process is not None
        with suppress(ProcessLookupError):  # it may have ended by itself
            os.killpg(self.process.pid, signal.SIGKILL)
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
    keys: Keys

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


Furnish = Callable[[Ledger], object]


@cache
def signing_key() -> tuple[Path, Path]:
    """Files with a private key, and with its public key."""
    folder = Path(tempfile.mkdtemp(prefix="signing-"))
    atexit.register(shutil.rmtree, folder)
    key = Ed25519PrivateKey.generate()
    private, public = folder / "signing.pem", folder / "public.pem"
    private.write_bytes(key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()))
    public.write_text(public_pem(key.public_key()))
    return private, public


@contextmanager
def open_ledger(folder: Path, database_url: str | None = None, **more: object) -> Iterator[Ledger]:
    """An application on a new database with two organisations, each with a key of every role.

    Whoever knocks without a key is not held up, unless further settings say so: tests knock often.
    """
    quiet = {"rate_limit_failures_per_second": 0, "signing_key_file": str(signing_key()[0]), "checkpoint_seconds": 0}
    chosen: dict[str, Any] = {**quiet, **more}
    app = create_app(Settings(database_url=database_url or f"sqlite:///{folder / 'ledger.db'}", **chosen))
    database: Database = app.state.placements.named("default").database
    if not database.exists():
        _, source = furnished("sqlite")
        shutil.copy(source, str(database.engine.url.database))
    keys = _keys_of(database)
    with TestClient(app, raise_server_exceptions=False) as http:
        yield Ledger(http, database, keys)


_keys: dict[str | None, Keys] = {}
"""By the id of the first organisation: those of templates, which are known in each of their copies."""


def _keys_of(database: Database) -> Keys:
    """The keys of a copy; where there is no organisation yet, two are founded."""
    with database.read(EVERYONE) as tx:
        current = is_current(tx)
    if not current:
        upgrade(database)
    with database.read(EVERYONE) as tx:
        first = tenants.find_organisation(tx, ORGANISATIONS[0])
    if first is not None:
        return _keys[first]
    now = datetime.now(UTC)
    ids = [access.create_organisation(database, organisation, now) for organisation in ORGANISATIONS]
    keys = {
        (organisation, str(role)): create_key(database, organisation, role, now).key
        for organisation in ORGANISATIONS
        for role in Role
    }
    _keys[ids[0]] = keys
    return keys


def _nothing(_: Ledger) -> None:
    """Two organisations with their keys, and nothing else."""


@cache
def furnished(kind: str, furnish: Furnish = _nothing) -> tuple[Any, str]:
    """A database to be copied, made once: to copy it takes no time, to make it takes longer than most tests.

    Args:
        kind: sqlite or postgresql.
        furnish: fills the ledger, and says what tests must know of it.

    Returns:
        What `furnish` said, and the file, or the name of the database.
    """
    folder = Path(tempfile.mkdtemp(prefix="furnished-"))
    atexit.register(shutil.rmtree, folder)
    source = str(folder / "ledger.db") if kind == "sqlite" else f"{postgres.TEMPLATE}_{folder.name}"
    url = f"sqlite:///{source}" if kind == "sqlite" else postgres.shared().create_database(source, postgres.TEMPLATE)
    if kind == "sqlite":
        database = Database(url)
        upgrade(database)
        database.dispose()
    with open_ledger(folder, url) as ledger:
        said = furnish(ledger)
    if kind == "postgresql":
        postgres.shared().terminate_backends(source)  # of a look that began as the service stopped: it keeps copies off
    return said, source


@pytest.fixture
def furnishing(request: pytest.FixtureRequest) -> Furnish | None:
    """What is in a new database already; None: nothing, not even a file.

    A module's `FURNISHED` says what is in a ledger by the name of the fixture that stands for it.
    """
    named: dict[str, Furnish] = getattr(request.module, "FURNISHED", {})
    for name, furnish in named.items():
        if name in request.fixturenames:
            return furnish
    return _nothing if "ledger" in request.fixturenames else None


@pytest.fixture
def ledger(tmp_path: Path, database_url: str) -> Iterator[Ledger]:
    with open_ledger(tmp_path, database_url) as opened:
        yield opened


ON_BOTH = {
    "persistence": None,
    "service": None,
    "reliability": None,
    "api": {
        *(
            "approvals",
            "attempts",
            "audit_scopes",
            "creating",
            "decisions",
            "deviations",
            "experiments",
            "fairness",
            "following_plans",
            "history",
            "idempotent_creates",
            "lists",
            "own_delta",
            "policies",
            "problems",
        ),
        *("refusals", "reports", "reservation_ends", "reservations", "run_states", "sequence", "steps", "stored"),
        *("tenancy", "trees", "truncation", "verify", "windows"),
    },
}
"""By folder of tests: its modules that run on both databases; None: all of them. The others run on SQLite."""


def _kinds(module: Path) -> list[object]:
    on_postgresql = pytest.param("postgresql", marks=pytest.mark.postgresql)
    modules = ON_BOTH.get(module.parent.name, set())
    return ["sqlite", on_postgresql] if modules is None or module.stem.removeprefix("test_") in modules else ["sqlite"]


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Files of many short tests come last: whichever worker ends first does not wait long for the other."""
    items.sort(key=lambda item: item.path.parent.name == "api")


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if "database_kind" in metafunc.fixturenames:
        kinds = _kinds(metafunc.definition.path)
        metafunc.parametrize("database_kind", kinds, indirect=True, scope="module")


@pytest.fixture(scope="module")
def database_kind(request: pytest.FixtureRequest) -> str:
    """Either sqlite or postgresql; a test that asks for it, or for a URL, runs on both."""
    kind: str = request.param
    if kind == "postgresql":
        need_postgresql()
    return kind


@contextmanager
def new_database(kind: str, folder: Path, *, migrated: bool = True, furnish: Furnish | None = None) -> Iterator[str]:
    """The URL of a database of this kind, for a while; on PostgreSQL, where serving does not do it, migrated."""
    source = furnished(kind, furnish)[1] if furnish else None
    if kind == "sqlite":
        if source:
            shutil.copy(source, folder / "ledger.db")
        yield f"sqlite:///{folder / 'ledger.db'}"
    else:
        with postgres.database(source or (postgres.TEMPLATE if migrated else postgres.EMPTY)) as url:
            yield url


@pytest.fixture
def database_url(database_kind: str, tmp_path: Path, furnishing: Furnish | None) -> Iterator[str]:
    """A new database for one test: a PostgreSQL database with its tables, or a SQLite file.

    That file is not there yet, unless the database is furnished.
    """
    with new_database(database_kind, tmp_path, furnish=furnishing) as url:
        yield url


@pytest.fixture
def empty_database_url(database_kind: str, tmp_path: Path) -> Iterator[str]:
    """A new database without a table, for one test."""
    with new_database(database_kind, tmp_path, migrated=False) as url:
        yield url


@pytest.fixture(scope="module")
def module_database_url(database_kind: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """A new database for the tests of a module."""
    with new_database(database_kind, tmp_path_factory.mktemp("database")) as url:
        yield url


NO_SERVER = "needs a PostgreSQL server"


def need_postgresql() -> None:
    """Skip a test that needs a server where none can be had; in CI it fails."""
    try:
        postgres.shared()
    except NoServerError as error:
        if os.environ.get("CI"):
            pytest.fail(f"{NO_SERVER}: {error}", pytrace=False)
        pytest.skip(f"{NO_SERVER}: {error}")


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    skipped = [report for report in terminalreporter.stats.get("skipped", []) if NO_SERVER in str(report.longrepr)]
    if skipped:
        terminalreporter.section("POSTGRESQL WAS NOT TESTED", sep="!", red=True, bold=True)
        terminalreporter.write_line(f"{len(skipped)} tests were skipped. {skipped[0].longrepr[-1]}")


def pytest_unconfigure() -> None:
    postgres.remove_shared()
