"""PgBouncer with the file of deploy/high-availability, in front of a server of the tests."""

import shutil
import socket
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from string import Template
from typing import Any

from tests import postgres
from tests.packaging.dockerfile import ROOT
from tests.postgres import Cluster
from tests.postgres_binaries import ordinary_user

FILE = ROOT / "deploy" / "high-availability" / "pgbouncer.ini"
PROGRAM = shutil.which("pgbouncer")


@contextmanager
def pgbouncer(cluster: Cluster, folder: Path, sessions: int = 40) -> Iterator[str]:
    """The URL of a cluster's database `ledger` through PgBouncer in transaction mode, with so many sessions."""
    assert PROGRAM is not None, "pgbouncer is not installed"
    port = postgres.free_port()
    [(verifier,)] = cluster.execute(f"SELECT rolpassword FROM pg_authid WHERE rolname = '{postgres.SERVICE}'")  # noqa: S608 - a test's own name
    userlist, file = folder / "userlist.txt", folder / "pgbouncer.ini"
    userlist.write_text(f'"{postgres.SERVICE}" "{verifier}"\n')
    text = Template(FILE.read_text()).substitute(ADDRESS="127.0.0.1", USERLIST=str(userlist))
    for old, new in {
        "port=5432": f"port={cluster.port}",
        "listen_port = 6432": f"listen_port = {port}",
        "stats_users = ledger": f"stats_users = {postgres.SERVICE}",
        "default_pool_size = 40": f"default_pool_size = {sessions}",
    }.items():
        assert old in text
        text = text.replace(old, new)
    file.write_text(text)
    user = ordinary_user()
    for path in (folder, userlist, file):
        path.chmod(0o755)
    privileges: dict[str, Any] = {"user": user.pw_uid, "group": user.pw_gid} if user else {}
    with (folder / "pgbouncer.log").open("wb") as log:
        process = subprocess.Popen([PROGRAM, str(file)], stdout=log, stderr=log, **privileges)
    try:
        url = f"postgresql://{postgres.SERVICE}:{cluster.password}@127.0.0.1:{port}/ledger"
        _await(port, process, folder)
        yield url
    finally:
        process.terminate()
        process.wait(timeout=30)


def _await(port: int, process: "subprocess.Popen[bytes]", folder: Path) -> None:
    until = time.monotonic() + 30
    while True:
        with socket.socket() as probe:
            if probe.connect_ex(("127.0.0.1", port)) == 0:
                return
        assert process.poll() is None, (folder / "pgbouncer.log").read_text()
        assert time.monotonic() < until, (folder / "pgbouncer.log").read_text()
        time.sleep(0.05)
