"""The clock of a PostgreSQL server is set ahead and back: the service says so, steps go on, no lease ends early."""

from collections.abc import Iterator
from functools import partial
from pathlib import Path
from time import time

import pytest

from app.persistence.database import Database
from app.persistence.schema import upgrade
from tests import faketime
from tests.conftest import need_postgresql
from tests.postgres import Cluster
from tests.reliability.clients import SAMPLED
from tests.reliability.conftest import trainer_of
from tests.servers import LiveServer

pytestmark = pytest.mark.postgresql

HOUR = 3600


class ShiftedServer:
    """A PostgreSQL whose clock a test sets while it runs."""

    def __init__(self) -> None:
        library = faketime.library()
        if library is None:
            pytest.skip("needs libfaketime: a server's clock cannot be set otherwise")
        self.cluster = Cluster.create()
        self._shift = self.cluster.folder / "shift"
        self.set(0)
        database = Database(self.cluster.create_database("ledger"))
        upgrade(database)
        database.dispose()
        self.cluster.environment = {
            "LD_PRELOAD": str(library),
            "FAKETIME_TIMESTAMP_FILE": str(self._shift),
            "FAKETIME_CACHE_DURATION": "1",
            "FAKETIME_DONT_FAKE_MONOTONIC": "1",
            "FAKETIME_FORCE_MONOTONIC_FIX": "0",
        }
        self.cluster.restart()

    def set(self, seconds: int) -> None:
        """Set the clock ahead of the right time."""
        self._shift.write_text(f"{seconds:+d}\n")
        self._shift.chmod(0o644)


@pytest.fixture
def shifted() -> Iterator[ShiftedServer]:
    need_postgresql()
    server = ShiftedServer()
    try:
        yield server
    finally:
        server.cluster.remove()


def _is_about(wanted: float, found: float) -> bool:
    return abs(found - wanted) < 5


def test_the_database_s_clock_is_set_ahead_and_back(tmp_path: Path, shifted: ShiftedServer) -> None:
    server = LiveServer(tmp_path, shifted.cluster.url("ledger"))
    with trainer_of(server) as trainer:
        plan = {"plan": [{"event": SAMPLED, "count": 40}], "lease_seconds": 600}
        held = trainer.http.post(f"/v1/runs/{trainer.run}/reservations", json=plan).raise_for_status().json()["id"]
        for ahead, how in ((HOUR, f"{HOUR} s behind"), (0, None)):
            shifted.set(ahead)
            server.await_metric("clock_offset_seconds", partial(_is_about, -ahead))
            told = server.metric("database_time_seconds")
            assert told is not None
            assert _is_about(ahead, told - time())
            ready = server.readiness().json()
            assert how is None or how in ready["clock_skew"]
            assert (ready == {"status": "ok"}) == (how is None)
            assert trainer.http.post(f"/v1/runs/{trainer.run}/steps", json={}).json()["reservation"] == held
