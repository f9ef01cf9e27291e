"""All connections of the pool are in use: the service says so, answers 503 after a while, and then goes on."""

import threading
import time
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests import postgres
from tests.conftest import need_postgresql, new_database
from tests.reliability.clients import Trainer
from tests.reliability.conftest import trainer_of
from tests.servers import LiveServer

pytestmark = pytest.mark.postgresql

POOL = 3
CALLERS = 24
HELD_SECONDS = 15
"""Longer than a request waits for a connection."""


@contextmanager
def rows_locked(database: str) -> Iterator[None]:
    """A session, as of a person, locks a table that every request reads: each keeps its connection meanwhile."""
    with postgres.shared().connect(database) as connection:
        connection.execute("BEGIN; LOCK TABLE runs IN ACCESS EXCLUSIVE MODE")
        yield
        connection.execute("ROLLBACK")


def test_every_connection_is_in_use(tmp_path: Path) -> None:
    need_postgresql()
    with new_database("postgresql", tmp_path) as url:
        server = LiveServer(tmp_path, url, environment={"EPSILON_LEDGER_DATABASE_POOL_SIZE": str(POOL)})
        with trainer_of(server) as trainer:
            assert server.metric("database_connections_max") == POOL
            assert server.metric("database_connection_pending_requests") == 0
            statuses = _ask_meanwhile(server, trainer, url.rpartition("/")[2])
            assert set(statuses) == {503}
            server.await_metric("database_connection_timeouts_total", lambda vain: vain > 0)
            server.await_metric("database_connection_pending_requests", lambda waiting: waiting == 0)
            assert server.readiness().json() == {"status": "ok"}
            assert trainer.http.get(f"/v1/runs/{trainer.run}").json()["next_step"] == trainer.next_step
            assert trainer.step()


def _ask_meanwhile(server: LiveServer, trainer: Trainer, database: str) -> Counter[int]:
    """Read and step while nothing can be read; the statuses of the answers."""
    end = time.monotonic() + HELD_SECONDS
    statuses: Counter[int] = Counter()
    lock = threading.Lock()

    def ask(method: str, path: str) -> None:
        while time.monotonic() < end:
            status = trainer.http.request(method, path, json={} if method == "POST" else None).status_code
            with lock:
                statuses[status] += 1

    with ThreadPoolExecutor(CALLERS) as pool, rows_locked(database):
        asked = [pool.submit(ask, "POST", f"/v1/runs/{trainer.run}/steps")]
        asked += [pool.submit(ask, "GET", f"/v1/runs/{trainer.run}") for _ in range(CALLERS - 1)]
        waiting = server.await_metric("database_connection_pending_requests", lambda waiting: waiting > 0)
        assert waiting <= CALLERS + 10  # of the service's own tasks
        assert server.metric("database_connections", state="used") == POOL
        for call in asked:
            call.result()
    return statuses
