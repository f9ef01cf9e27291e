"""A service that is told to stop: whoever has asked is answered, whoever comes is refused, and it ends in time."""

import socket
import sqlite3
import threading
import time
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing, suppress
from pathlib import Path

import httpx2
import pytest
from sqlalchemy import func, select

from app.persistence.database import ALL_TENANTS
from app.persistence.tables import decisions
from tests.api.step_routes import JSON, Client, request
from tests.open_databases import open_database
from tests.polling import await_true
from tests.reliability.clients import open_budget
from tests.reliability.conftest import LONG
from tests.servers import LiveServer

TRAINERS = 24 if LONG else 6
BOUND_SECONDS = 25
"""EPSILON_LEDGER_SHUTDOWN_SECONDS, and what a process may take besides."""


class Served:
    """A server that a test starts and stops."""

    def __init__(self, server: LiveServer) -> None:
        self.server = server

    def start(self, **environment: str) -> None:
        self.server.environment |= {f"EPSILON_LEDGER_{name}": value for name, value in environment.items()}
        self.server.start()

    def steps(self, many: int) -> list[bytes]:
        """Requests for one step of each of several runs."""
        usual = (b"authorization", f"Bearer {self.server.key('trainer')}".encode()), JSON
        event = {"type": "gaussian", "noise_multiplier": 1000.0}
        with self.server.client("admin") as http:
            body = {"name": "model", "budget": open_budget(http, "crowd", 50.0), "event": event}
            runs = [http.post("/v1/runs", json=body).raise_for_status().json()["id"] for _ in range(many)]
        return [request(f"/v1/runs/{run}/steps", b"{}", *usual) for run in runs]

    def decisions(self) -> int:
        with open_database(self.server.database_url) as database, database.read(ALL_TENANTS) as tx:
            return int(tx.execute(select(func.count()).select_from(decisions)).scalar_one())

    def ends(self) -> None:
        assert self.server.process.wait(BOUND_SECONDS) == 0, self.server.log()


@pytest.fixture
def served(tmp_path: Path, database_url: str) -> Iterator[Served]:
    made = Served(LiveServer(tmp_path, database_url))
    yield made
    if made.server.is_alive:
        made.server.kill()


@pytest.mark.parametrize("workers", [2, pytest.param(1, marks=pytest.mark.soak)])
def test_requests_are_answered_when_the_service_stops(served: Served, workers: int) -> None:
    served.server.workers = workers
    served.start()
    answers, farewells, begun = Counter[int](), Counter[bool](), threading.Event()

    def train(step: bytes) -> None:
        """Take step after step until the service takes no connection any more; a lost answer is an error."""
        while True:
            try:
                client = Client(served.server.port)
            except OSError:
                return
            with client:
                last, asked = False, 0
                while not last:
                    time.sleep(0.02)
                    try:
                        answer = client.ask(step)
                    except ConnectionResetError:
                        assert not asked, "an answer is lost"  # the kernel had accepted it, and no worker did
                        return
                    asked += 1
                    answers[answer.status] += 1
                    last = b"\r\nconnection: close\r\n" in answer.head
                    if answers[200] >= 2 * TRAINERS:
                        begun.set()
                farewells[last] += 1
            time.sleep(0.01)

    with ThreadPoolExecutor(TRAINERS) as pool:
        training = [pool.submit(train, step) for step in served.steps(TRAINERS)]
        assert begun.wait(60), served.server.log()
        served.server.process.terminate()
        for each in training:
            each.result()
    served.ends()
    assert answers.keys() == {200}
    assert farewells[True] > 0
    assert served.decisions() == answers[200]


def test_kept_connection_is_answered_once_more_when_the_service_stops(served: Served) -> None:
    served.start()
    with served.server.client("viewer") as http:
        assert "connection" not in http.get("/v1/runs").headers
        served.server.process.terminate()

        def is_refused() -> bool:
            with socket.socket() as probe:
                return probe.connect_ex(("127.0.0.1", served.server.port)) != 0

        await_true(is_refused, pause=0.01)
        time.sleep(0.1)  # a connection that is closed at once is closed by now
        last = http.get("/v1/runs")
        assert (last.status_code, last.headers["connection"]) == (200, "close")
        served.ends()


def test_service_is_not_ready_before_it_stops(served: Served) -> None:
    served.start(SHUTDOWN_DELAY_SECONDS="60")
    url = served.server.url
    with served.server.client("viewer") as http, httpx2.Client(base_url=url, trust_env=False, timeout=30) as new:
        http.get("/v1/runs").raise_for_status()
        served.server.process.terminate()
        await_true(lambda: new.get("/readyz").status_code != 200)
        answer = new.get("/readyz")
        assert (answer.status_code, answer.json()["detail"]) == (503, "This process is stopping.")
        assert answer.headers["connection"] == "close"
        assert new.get("/healthz").status_code == 200
        assert http.get("/v1/runs").status_code == 200


def test_service_stops_in_time_when_a_request_never_ends(served: Served) -> None:
    served.start(SHUTDOWN_SECONDS="1")
    [step] = served.steps(1)
    with Client(served.server.port) as slow:
        slow.send(step[:-1])
        with served.server.client("viewer") as http:  # the request before it has been read by now
            assert http.get("/healthz").status_code == 200
        served.server.process.terminate()
        served.ends()
        with suppress(ConnectionResetError):
            assert not slow.rest().startswith(b"HTTP/1.1 2")


@pytest.mark.sqlite
def test_queued_steps_are_answered_when_the_service_stops(served: Served, tmp_path: Path) -> None:
    """Another process writes, so steps wait; meanwhile the service is told to stop, and one client leaves."""
    served.start()
    steps = served.steps(3)
    with ExitStack() as stack:
        trainers = [stack.enter_context(Client(served.server.port)) for _ in steps]
        assert [each.ask(step).status for each, step in zip(trainers, steps, strict=True)] == [200] * 3
        with closing(sqlite3.connect(tmp_path / "ledger.db", isolation_level=None)) as writer:
            writer.execute("BEGIN IMMEDIATE")
            for trainer, step in zip(trainers, steps, strict=True):
                trainer.send(step)
            time.sleep(0.3)
            trainers[2].socket.shutdown(socket.SHUT_RDWR)
            served.server.process.terminate()
            time.sleep(0.3)
            writer.execute("ROLLBACK")
        for trainer in trainers[:2]:
            answer = trainer.answer()
            assert (answer.status, b"\r\nconnection: close\r\n" in answer.head) == (200, True), answer.head
            assert trainer.rest() == b""
        served.ends()
    assert "Traceback" not in served.server.log()
    assert " ERROR " not in served.server.log()
    assert served.decisions() == 2 * len(steps)
