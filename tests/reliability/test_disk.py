"""The disk under a SQLite file is really full: the operating system refuses the writes, and then takes them again."""

import os
import resource
import sqlite3
import subprocess
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, closing, contextmanager
from pathlib import Path

import pytest

from tests.reliability.clients import Trainer
from tests.reliability.conftest import Service, serving
from tests.reliability.test_faults import nothing_is_admitted, the_service_goes_on

DISK_BYTES = 16 * 2**20


def may_mount() -> bool:
    """Whether this process may make a small file system."""
    if os.geteuid() != 0:
        return False
    return subprocess.run(["unshare", "--mount", "true"], capture_output=True, check=False).returncode == 0


@contextmanager
def no_file_grows(service: Service) -> Iterator[None]:
    """A limit on the size of the files of a process that runs."""
    assert service.server.process is not None
    process = service.server.process.pid
    soft, hard = resource.prlimit(process, resource.RLIMIT_FSIZE)
    resource.prlimit(process, resource.RLIMIT_FSIZE, (1, hard))
    yield
    resource.prlimit(process, resource.RLIMIT_FSIZE, (soft, hard))


@contextmanager
def ballast(service: Service) -> Iterator[None]:
    """A file that takes all the room there is; and a reader, without whom a failed writer would make some.

    Whoever closes a file of SQLite's as the last one empties its log, and the next step fits.
    """
    file = service.server.folder / "ballast"
    with closing(sqlite3.connect(service.server.folder / "ledger.db")) as reader:
        reader.execute("SELECT count(*) FROM decisions").fetchall()
        room = os.statvfs(file.parent)
        with file.open("wb") as heavy:
            os.posix_fallocate(heavy.fileno(), 0, room.f_bavail * room.f_bsize)
        yield
        file.unlink()


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Path]:
    """A folder on a file system of its own, if this process may make one."""
    folder = tmp_path / "disk"
    folder.mkdir()
    if not may_mount():
        yield folder
        return
    subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={DISK_BYTES}", "none", folder], check=True)
    yield folder
    subprocess.run(["umount", "--lazy", folder], check=True)


@pytest.mark.parametrize(
    "full",
    [
        no_file_grows,
        pytest.param(ballast, marks=pytest.mark.skipif(not may_mount(), reason="only root may mount a file system")),
    ],
)
def test_a_full_disk(disk: Path, full: Callable[[Service], AbstractContextManager[None]]) -> None:
    with serving(disk, f"sqlite:///{disk / 'ledger.db'}") as service, service.server.client("trainer") as http:
        trainer = Trainer(http, service.journal, 0)
        trainer.register(service.open_budget(epsilon=1.5))
        trainer.ask({"first_step": 0, "count": 3}, None)
        with full(service):
            nothing_is_admitted(trainer)
        assert http.get(f"/v1/runs/{trainer.run}").json()["next_step"] == 3
        the_service_goes_on(service, trainer)
