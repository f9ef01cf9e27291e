"""The disk under a database is really full: the operating system refuses the writes, and then takes them again."""

import sqlite3
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

import httpx2
import pytest

from app.persistence.rehearsal import Fault
from tests import postgres
from tests.disks import a_disk, may_mount, without_room
from tests.reliability.clients import Trainer
from tests.reliability.conftest import Service, own_cluster, serving
from tests.reliability.test_faults import nothing_is_admitted, the_service_goes_on

DISK_BYTES = 16 * 2**20
SERVER_BYTES = 128 * 2**20

pytestmark = pytest.mark.skipif(not may_mount(), reason="only root may mount a file system")


@contextmanager
def ballast(service: Service) -> Iterator[None]:
    """A file that takes all the room there is; and a reader, without whom a failed writer would make some.

    Whoever closes a file of SQLite's as the last one empties its log, and the next step fits.
    """
    with closing(sqlite3.connect(service.server.folder / "ledger.db")) as reader:
        reader.execute("SELECT count(*) FROM decisions").fetchall()
        with without_room(service.server.folder):
            yield


def test_nothing_is_admitted_while_the_disk_of_a_file_is_full(tmp_path: Path) -> None:
    with (
        a_disk(tmp_path, DISK_BYTES) as disk,
        serving(disk, f"sqlite:///{disk / 'ledger.db'}") as service,
        service.server.client("trainer") as http,
    ):
        trainer = Trainer(http, service.journal, 0)
        trainer.register(service.open_budget(epsilon=1.5))
        trainer.ask({"first_step": 0, "count": 3}, None)
        with ballast(service):
            nothing_is_admitted(trainer)
            assert service.server.readiness().json()["detail"] in {Fault.FULL, Fault.BROKEN}
            service.server.await_metric("database_disk_free_bytes", lambda free: free == 0)
            assert service.server.metric("database_disk_size_bytes") == DISK_BYTES
        assert service.server.readiness().json() == {"status": "ok"}
        assert http.get(f"/v1/runs/{trainer.run}").json()["next_step"] == 3
        the_service_goes_on(service, trainer)


@pytest.mark.postgresql
def test_steps_are_refused_while_the_disk_of_a_server_is_full(tmp_path: Path) -> None:
    """What fits into pages that PostgreSQL has already is still written; then every step is refused."""
    with (
        a_disk(postgres.in_memory() or tmp_path, SERVER_BYTES) as disk,
        own_cluster(under=disk) as cluster,
        serving(tmp_path, cluster.url("ledger")) as service,
        service.server.client("trainer") as http,
    ):
        trainer = Trainer(http, service.journal, 0)
        trainer.register(service.open_budget(epsilon=50))
        with without_room(disk):
            assert service.server.readiness().json()["detail"] == Fault.FULL
            replies = (trainer.once({"first_step": step}, "k" * 200 + str(step)) for step in range(1000))
            refused = next(reply for reply in replies if reply.status_code != httpx2.codes.OK)
            assert refused.json()["code"] == "ledger_unavailable"
            assert service.server.readiness().json()["detail"] == Fault.FULL
        assert service.server.readiness().json() == {"status": "ok"}
        assert trainer.once({}, "next").status_code == httpx2.codes.OK
