"""The disk under a database is really full: the operating system refuses the writes, and then takes them again."""

import resource
import sqlite3
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, closing, contextmanager
from pathlib import Path

import httpx2
import pytest

from app.persistence.database import Database
from app.persistence.rehearsal import Fault
from app.persistence.schema import upgrade
from tests import postgres
from tests.conftest import need_postgresql
from tests.disks import a_disk, may_mount, without_room
from tests.reliability.clients import Trainer
from tests.reliability.conftest import Service, serving
from tests.reliability.test_faults import nothing_is_admitted, the_service_goes_on

DISK_BYTES = 16 * 2**20
SERVER_BYTES = 128 * 2**20


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
    with closing(sqlite3.connect(service.server.folder / "ledger.db")) as reader:
        reader.execute("SELECT count(*) FROM decisions").fetchall()
        with without_room(service.server.folder):
            yield


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Path]:
    """A folder on a file system of its own, if this process may make one."""
    if not may_mount():
        yield tmp_path
        return
    with a_disk(tmp_path, DISK_BYTES) as folder:
        yield folder


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
            assert service.server.readiness().json()["detail"] in {Fault.FULL, Fault.BROKEN}
            if full is ballast:
                service.server.await_metric("database_disk_free_bytes", lambda free: free == 0)
                assert service.server.metric("database_disk_size_bytes") == DISK_BYTES
        assert service.server.readiness().json() == {"status": "ok"}
        assert http.get(f"/v1/runs/{trainer.run}").json()["next_step"] == 3
        the_service_goes_on(service, trainer)


@pytest.mark.postgresql
@pytest.mark.skipif(not may_mount(), reason="only root may mount a file system")
def test_a_full_disk_of_a_server(tmp_path: Path) -> None:
    """What fits into pages that PostgreSQL has already is still written; then every step is refused."""
    need_postgresql()
    with a_disk(postgres.in_memory() or tmp_path, SERVER_BYTES) as disk:
        cluster = postgres.Cluster.create(under=disk)
        try:
            url = cluster.create_database("ledger")
            database = Database(url)
            upgrade(database)
            database.dispose()
            with serving(tmp_path, url) as service, service.server.client("trainer") as http:
                trainer = Trainer(http, service.journal, 0)
                trainer.register(service.open_budget(epsilon=50))
                with without_room(disk):
                    assert service.server.readiness().json()["detail"] == Fault.FULL
                    steps = range(1000)
                    replies = (trainer.once({"first_step": step}, "k" * 200 + str(step)) for step in steps)
                    refused = next(reply for reply in replies if reply.status_code != httpx2.codes.OK)
                    assert refused.json()["code"] == "ledger_unavailable"
                    assert service.server.readiness().json()["detail"] == Fault.FULL
                assert service.server.readiness().json() == {"status": "ok"}
                assert trainer.once({}, "next").status_code == httpx2.codes.OK
        finally:
            cluster.remove()
