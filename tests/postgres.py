"""A real PostgreSQL of the tests' own, started as an ordinary user and thrown away at the end.

`Cluster` is one server with its data. `shared()` is the one of this test process, started when it is first needed;
its databases are copies of a migrated template.
"""

import hashlib
import hmac
import itertools
import os
import secrets
import shutil
import signal
import socket
import subprocess
import tempfile
from base64 import b64encode
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from functools import cache
from pathlib import Path
from typing import Any, Self

import psycopg

from tests.open_databases import migrate
from tests.polling import await_true
from tests.postgres_binaries import binaries, ordinary_user
from tests.programs import run

PATIENCE_SECONDS = 60
MEMORY = Path("/dev/shm")  # noqa: S108 - where Linux has it; a folder of our own is made in it
ROOMY_BYTES = 4 << 30
TEMPLATE, EMPTY = "ledger_template", "template0"
INITIAL = "initial"
"""The folder beside a cluster's data that keeps them as `initdb` left them: to copy it takes a tenth of the time."""

SERVICE, ADMIN = "service", "ledger"
"""The role that owns the databases and that the service connects as, whom policies hold; and the superuser."""

CONFIGURATION = "listen_addresses = '127.0.0.1'\nfsync = on\nmax_connections = 200"

GUARD = """
read -r _
test ! -f "$0/data/postmaster.pid" || kill -QUIT "$(head -n 1 "$0/data/postmaster.pid")"
sleep 1
rm -rf "$0"
"""
"""Waits for the end of the tests' process, whatever ends it, and then of the server that it may have left behind."""

Connection = psycopg.Connection[tuple[Any, ...]]
_numbers = itertools.count()


def free_port() -> int:
    """A port that nothing listens at."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


class Cluster:
    """A PostgreSQL server and its data, in a folder of its own.

    Args:
        configuration: further lines of postgresql.conf.
        under: where its folder is made; None: in the temporary folder.
        programs: the folder with the server's binaries; None: those of `binaries`.
    """

    password = secrets.token_hex(8)
    """Of the users `ledger`, who may do everything, and `service`, in every cluster: their nodes know each other."""

    def __init__(self, configuration: str = "", under: Path | None = None, programs: Path | None = None) -> None:
        self.port = free_port()
        self.process: subprocess.Popen[bytes] | None = None
        self._programs, self._configuration, self._user = programs, configuration, ordinary_user()
        # A short path, as that of a socket must be, and one that the server's user can reach: pytest's are neither.
        self.folder = Path(tempfile.mkdtemp(prefix="pg-", dir=under))
        self.data = self.folder / "data"
        self.own(self.folder)
        self._guard = subprocess.Popen(
            ["sh", "-c", GUARD, self.folder], stdin=subprocess.PIPE, stderr=subprocess.DEVNULL, start_new_session=True
        )

    @classmethod
    def create(cls, configuration: str = "", under: Path | None = None, programs: Path | None = None) -> Self:
        """A new cluster, started; its data begin as a copy of the shared one's, if there is one."""
        cluster = cls(configuration, under, programs)
        with cluster.removed_if_it_fails():
            if shared.cache_info().currsize and programs is None:
                shutil.copytree(shared().folder / INITIAL, cluster.data)
                cluster.data.chmod(0o700)
                cluster.own(cluster.data, *cluster.data.rglob("*"))
            else:
                cluster._initialise()
            cluster.configure()
            cluster.start()
            quick = _verifier(cluster.password)
            cluster.execute(f"CREATE ROLE {SERVICE} LOGIN PASSWORD '{quick}'")
            cluster.execute(f"ALTER ROLE ledger PASSWORD '{quick}'")
        return cluster

    def url(self, database: str, user: str = SERVICE) -> str:
        """The URL of a database of this server."""
        return f"postgresql://{user}:{self.password}@127.0.0.1:{self.port}/{database}"

    def start(self) -> None:
        """Start the server and wait until it takes connections."""
        command: list[str | Path] = [self._binaries / "postgres", "-D", self.data]

        def takes_connections() -> bool:
            if self.process is None or self.process.poll() is not None:
                # Perhaps again: the children of a killed server may still hold its memory.
                with (self.folder / "server.log").open("ab") as log:
                    self.process = subprocess.Popen(command, stdout=log, stderr=log, **self._as_user())
            with suppress(psycopg.OperationalError):
                self.connect().close()
                return True
            return False

        await_true(takes_connections, self.log, 0.05, PATIENCE_SECONDS)

    def stop(self, how: signal.Signals = signal.SIGINT) -> None:
        """Stop the server as `pg_ctl stop` does, fast, or in another way, and wait until it is gone."""
        assert self.process is not None
        self.process.send_signal(how)
        self.process.wait(timeout=PATIENCE_SECONDS)

    def kill(self) -> None:
        """End the server as a power cut would."""
        self.stop(signal.SIGKILL)

    def remove(self) -> None:
        """Stop the server, if it runs, and delete its data."""
        if self.process is not None and self.process.poll() is None:
            self.stop(signal.SIGQUIT)
        shutil.rmtree(self.folder, ignore_errors=True)
        self._guard.kill()
        self._guard.communicate()

    def log(self) -> str:
        """What the server said."""
        return (self.folder / "server.log").read_text(errors="replace")

    def connect(self, database: str = "postgres") -> Connection:
        """A connection of the driver's as who may do everything, in autocommit, past the service."""
        return psycopg.connect(self.url(database, ADMIN), autocommit=True, connect_timeout=5)

    def execute(self, statement: str, database: str = "postgres") -> list[tuple[Any, ...]]:
        """Execute one statement and return its rows."""
        with self.connect(database) as connection:
            cursor = connection.execute(statement.encode())
            return cursor.fetchall() if cursor.description else []

    def create_database(self, name: str, template: str = EMPTY) -> str:
        """Make a database and return its URL."""
        with self.connect() as connection:
            _copy(connection, name, template)
        return self.url(name)

    def drop_database(self, name: str) -> None:
        """Delete a database, whoever is still connected to it."""
        self.execute(f'DROP DATABASE IF EXISTS "{name}" WITH (FORCE)')

    def terminate_backends(self, database: str) -> int:
        """End every session of a database, and wait until they have ended; returns how many there were."""
        ended = f"SELECT pg_terminate_backend(pid, 10000) FROM pg_stat_activity WHERE datname = '{database}'"  # noqa: S608 - a test's own name
        return len(self.execute(ended))

    def base_backup(self, *options: str) -> "Cluster":
        """A copy of this server as it is now, to be configured and started."""
        copy = Cluster(self._configuration)
        with copy.removed_if_it_fails():
            there = ("--host=127.0.0.1", f"--port={self.port}", f"--username={ADMIN}")
            copy._tool("pg_basebackup", *there, "--wal-method=stream", "--checkpoint=fast", *options)
        return copy

    def wait_until(self, question: str) -> None:
        """Wait until a query says that something is so."""
        await_true(lambda: self.execute(question)[0][0], self.log, 0.02, PATIENCE_SECONDS)

    def configure(self, *lines: str) -> None:
        """Add lines to postgresql.conf."""
        own = [f"port = {self.port}", f"unix_socket_directories = '{self.folder}'", *lines]
        with (self.data / "postgresql.conf").open("a") as file:
            file.write("\n".join([CONFIGURATION, *own, self._configuration, ""]))

    def own(self, *paths: Path) -> None:
        """Give files to the server's user."""
        if self._user:
            for path in paths:
                os.chown(path, self._user.pw_uid, self._user.pw_gid)

    @contextmanager
    def removed_if_it_fails(self) -> Iterator[None]:
        """Remove this cluster if the block fails."""
        try:
            yield
        except BaseException:
            self.remove()
            raise

    def _initialise(self) -> None:
        secret = self.folder / "password"
        secret.write_text(self.password)
        self.own(secret)
        # A locale that does not sort as bytes do, so that nothing comes to depend on one that does.
        sorting = ("--locale=C.UTF-8", "--locale-provider=icu", "--icu-locale=en")
        common = (f"--username={ADMIN}", "--auth=scram-sha-256", f"--pwfile={secret}", "--encoding=UTF8", "--no-sync")
        try:
            self._tool("initdb", *common, *sorting)
        except AssertionError:  # it was built without ICU
            self._tool("initdb", *common, "--no-locale")
        shutil.copytree(self.data, self.folder / INITIAL)

    @property
    def _binaries(self) -> Path:
        return self._programs or binaries()

    def _tool(self, name: str, *arguments: str) -> None:
        command: list[str | Path] = [self._binaries / name, f"--pgdata={self.data}", *arguments]
        run(command, timeout=PATIENCE_SECONDS, **self._as_user())

    def _as_user(self) -> dict[str, Any]:
        environment = {name: value for name, value in os.environ.items() if not name.startswith("PG")}
        environment |= {"LC_ALL": "C.UTF-8", "HOME": str(self.folder), "PGPASSWORD": self.password}
        options: dict[str, Any] = {"cwd": self.folder, "env": environment}
        if self._user:
            options |= {"user": self._user.pw_uid, "group": self._user.pw_gid, "extra_groups": []}
        return options


def _verifier(password: str) -> str:
    """What the server keeps of a password (RFC 5802), made by 1 round, not 4,096, which all repeat who connect."""
    salt = secrets.token_bytes(16)
    salted = hashlib.pbkdf2_hmac("sha256", password.encode(), salt, 1)
    stored = hashlib.sha256(hmac.digest(salted, b"Client Key", "sha256")).digest()
    parts = (salt, stored, hmac.digest(salted, b"Server Key", "sha256"))
    return "SCRAM-SHA-256$1:{}${}:{}".format(*(b64encode(part).decode() for part in parts))


def _copy(connection: Connection, name: str, template: str) -> None:
    # Copied as files, where the server knows how to: in a third of the time.
    how = "STRATEGY file_copy" if connection.info.server_version >= 150_000 else ""
    connection.execute(f'CREATE DATABASE "{name}" OWNER {SERVICE} TEMPLATE "{template}" {how}'.encode())


@cache
def shared() -> Cluster:
    """The cluster of this process, with a template that has the newest schema.

    Raises:
        NoServerError: none can be had.
    """
    binaries()
    # Nobody pulls its plug: servers that are killed belong to the tests that kill them.
    cluster = Cluster.create("fsync = off\nfull_page_writes = off\nmax_wal_size = 256MB", in_memory())
    migrate(cluster.create_database(TEMPLATE))
    return cluster


@cache
def _connection() -> Connection:
    """A connection to it, by which databases come and go."""
    return shared().connect()


def in_memory() -> Path | None:
    """A file system in memory that has room to spare: a commit or a copy there does not wait for any disk."""
    return MEMORY if MEMORY.is_dir() and shutil.disk_usage(MEMORY).free >= ROOMY_BYTES else None


def remove_shared() -> None:
    """Stop the cluster of this process, if there is one."""
    if shared.cache_info().currsize:
        _connection().close()
        shared().remove()


@contextmanager
def database(template: str = TEMPLATE) -> Iterator[str]:
    """The URL of a new database of the shared cluster, a copy of this one, which is deleted afterwards."""
    cluster, name = shared(), f"ledger_{next(_numbers)}"
    _copy(_connection(), name, template)
    try:
        yield cluster.url(name)
    finally:
        _connection().execute(f'DROP DATABASE IF EXISTS "{name}" WITH (FORCE)'.encode())
