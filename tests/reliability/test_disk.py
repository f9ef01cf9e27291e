"""The disk under a database is really full: the operating system refuses the writes, and then takes them again."""

import os
import sqlite3
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import closing, contextmanager, suppress
from pathlib import Path

import httpx2
import pytest

from app.persistence.database import ALL_TENANTS, Database
from app.persistence.schema import upgrade
from app.persistence.write_probe import Fault, rehearse
from tests import postgres
from tests.reliability.clients import Trainer
from tests.reliability.conftest import Service, own_cluster, serving
from tests.reliability.test_faults import nothing_is_admitted, the_service_goes_on

DISK_BYTES = 16 * 2**20
SERVER_BYTES = 128 * 2**20


def may_mount() -> bool:
    """Whether this process may make a small file system."""
    if os.geteuid() != 0:
        return False
    return subprocess.run(["unshare", "--mount", "true"], capture_output=True, check=False).returncode == 0


@contextmanager
def a_disk(under: Path, size: int) -> Iterator[Path]:
    """A folder on a file system of its own, with so many bytes; everybody may go there."""
    folder = Path(tempfile.mkdtemp(prefix="disk-", dir=under))
    subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={size},mode=1777", "none", folder], check=True)
    try:
        yield folder
    finally:
        subprocess.run(["umount", "--lazy", folder], check=True)
        folder.rmdir()


@contextmanager
def without_room(folder: Path) -> Iterator[None]:
    """A file takes all the room there is."""
    heavy = folder / "ballast"
    try:
        with heavy.open("wb") as file:
            while (room := os.statvfs(folder)).f_bavail > 0:
                with suppress(OSError):  # others write to the same disk
                    os.posix_fallocate(file.fileno(), os.fstat(file.fileno()).st_size, room.f_bavail * room.f_bsize)
        yield
    finally:
        heavy.unlink(missing_ok=True)


pytestmark = pytest.mark.skipif(not may_mount(), reason="only root may mount a file system")


@contextmanager
def ballast(service: Service) -> Iterator[None]:
    """A file that takes all the room there is, when the log is empty; and a reader, so that it stays.

    Whoever closes a file of SQLite's as the last one removes its log, and the next step fits.
    """
    with closing(sqlite3.connect(service.server.folder / "ledger.db", timeout=30)) as reader:
        assert reader.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchone()[0] == 0
        with without_room(service.server.folder):
            yield


def test_file_is_a_fault_while_its_disk_is_full_or_may_only_be_read(tmp_path: Path) -> None:
    with a_disk(tmp_path, 2**22) as disk:
        url = f"sqlite:///{disk / 'ledger.db'}"
        database = Database(url)
        upgrade(database)
        with database.read(ALL_TENANTS), without_room(disk):
            assert rehearse(database) is Fault.FULL
        assert rehearse(database) is None
        database.dispose()
        subprocess.run(["mount", "-o", "remount,ro", disk], check=True)
        assert rehearse(Database(url)) in {Fault.READ_ONLY, Fault.SILENT}
        subprocess.run(["mount", "-o", "remount,rw", disk], check=True)
        assert rehearse(database) is None
        database.dispose()


def test_nothing_is_admitted_while_the_disk_of_a_file_is_full(tmp_path: Path) -> None:
    with (
        a_disk(tmp_path, DISK_BYTES) as disk,
        serving(disk, f"sqlite:///{disk / 'ledger.db'}") as service,
        service.server.client("trainer") as http,
    ):
        trainer = Trainer(http, service.journal, 0).register(service.open_budget(epsilon=1.5))
        trainer.ask({"first_step": 0, "count": 3}, None)
        with ballast(service):
            nothing_is_admitted(trainer)
            assert service.server.readiness().json()["detail"] in {Fault.FULL, Fault.BROKEN}
            service.server.await_metric("database_disk_free_bytes", 0)
            assert service.server.metric("database_disk_size_bytes") == DISK_BYTES
        assert service.server.readiness().json() == {"status": "ok"}
        the_service_goes_on(trainer)
        service.check()


@pytest.mark.postgresql
def test_steps_are_refused_while_the_disk_of_a_server_is_full(tmp_path: Path) -> None:
    """What fits into pages that PostgreSQL has already is still written; then every step is refused."""
    with (
        a_disk(postgres.in_memory() or tmp_path, SERVER_BYTES) as disk,
        own_cluster(under=disk) as cluster,
        serving(tmp_path, cluster.url("ledger")) as service,
        service.server.client("trainer") as http,
    ):
        trainer = Trainer(http, service.journal, 0).register(service.open_budget(epsilon=50))
        with without_room(disk):
            assert service.server.readiness().json()["detail"] == Fault.FULL
            replies = (trainer.once({"first_step": step}, "k" * 200 + str(step)) for step in range(1000))
            refused = next(reply for reply in replies if reply.status_code != httpx2.codes.OK)
            assert refused.json()["code"] == "ledger_unavailable"
            assert service.server.readiness().json()["detail"] == Fault.FULL
        assert service.server.readiness().json() == {"status": "ok"}
        assert trainer.once({}, "next").status_code == httpx2.codes.OK
