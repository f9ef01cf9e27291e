"""A service that is told to stop: whoever has asked is answered, whoever comes is refused, and it ends in time."""

import asyncio
import json
import signal
import socket
import sqlite3
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack, closing, suppress
from dataclasses import dataclass, field
from pathlib import Path

import httpx2
import pytest
from sqlalchemy import func, select

from app.persistence.database import ALL_TENANTS, Database
from app.persistence.tables import decisions
from tests.reliability.clients import open_budget
from tests.reliability.conftest import LONG
from tests.servers import LiveServer

TRAINERS = 24 if LONG else 8
BOUND_SECONDS = 25
"""EPSILON_LEDGER_SHUTDOWN_SECONDS, and what a process may take besides."""

CHEAP = {"type": "gaussian", "noise_multiplier": 1000.0}


@dataclass
class Seen:
    """What the trainers were answered; a request is lost if it was sent and no whole answer came."""

    answers: Counter[int] = field(default_factory=Counter)
    lost: list[str] = field(default_factory=list)
    farewells: int = 0


async def _train(server: LiveServer, run: str, key: str, seen: Seen) -> None:
    """Take step after step until the service takes no connection any more; nothing is asked twice."""
    body = json.dumps({"count": 1}).encode()
    head = f"POST /v1/runs/{run}/steps HTTP/1.1\r\nHost: ledger\r\nAuthorization: Bearer {key}\r\n"
    request = f"{head}Content-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n".encode() + body
    while True:
        try:
            reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
        except OSError:
            return
        goes_on = True
        while goes_on:
            try:
                writer.write(request)
                reply = await reader.readuntil(b"\r\n\r\n")
                fields = dict(line.lower().split(": ", 1) for line in reply.decode().split("\r\n")[1:-2])
                await reader.readexactly(int(fields["content-length"]))
            except (OSError, asyncio.IncompleteReadError) as error:
                seen.lost.append(repr(error))
                break
            seen.answers[int(reply.split()[1])] += 1
            goes_on = fields.get("connection") != "close"
            seen.farewells += not goes_on
        writer.close()
        with suppress(OSError):
            await writer.wait_closed()


async def _stop_amid(server: LiveServer, runs: list[str], key: str) -> Seen:
    seen = Seen()
    training = [asyncio.create_task(_train(server, run, key, seen)) for run in runs]
    while seen.answers[200] < 2 * TRAINERS:
        await asyncio.sleep(0.01)
        assert not all(task.done() for task in training), server.log()
    assert server.process is not None
    server.process.send_signal(signal.SIGTERM)
    await asyncio.gather(*training)
    return seen


@pytest.fixture
def server(tmp_path: Path, database_url: str) -> Iterator[LiveServer]:
    """A server that a test starts and stops."""
    made = LiveServer(tmp_path, database_url)
    yield made
    if made.process is not None and made.process.poll() is None:
        made.kill()


def _runs(server: LiveServer, many: int) -> list[str]:
    with server.client("admin") as http:
        register = {"name": "model", "budget": open_budget(http, "crowd", 50.0), "event": CHEAP}
        return [str(http.post("/v1/runs", json=register).raise_for_status().json()["id"]) for _ in range(many)]


def _decisions(server: LiveServer) -> int:
    database = Database(server.database_url)
    with database.read(ALL_TENANTS) as tx:
        found = tx.execute(select(func.count()).select_from(decisions)).scalar_one()
    database.dispose()
    return int(found)


def _terminate(server: LiveServer) -> None:
    assert server.process is not None
    server.process.terminate()


def _ends(server: LiveServer) -> None:
    assert server.process is not None
    assert server.process.wait(BOUND_SECONDS) == 0, server.log()


@pytest.mark.parametrize("workers", [1, 2])
def test_requests_are_answered_when_the_service_stops(server: LiveServer, workers: int) -> None:
    server.workers = workers
    server.start()
    seen = asyncio.run(_stop_amid(server, _runs(server, TRAINERS), server.key("trainer")))
    _ends(server)
    assert seen.lost == []
    assert set(seen.answers) == {200}
    assert seen.farewells > 0
    assert _decisions(server) == seen.answers[200]


def test_kept_connection_is_answered_once_more_when_the_service_stops(server: LiveServer) -> None:
    server.start()
    with server.client("viewer") as http:
        assert "connection" not in http.get("/v1/runs").headers
        _terminate(server)
        until = time.monotonic() + 30
        while True:
            try:
                socket.create_connection(("127.0.0.1", server.port)).close()
            except OSError:
                break
            assert time.monotonic() < until
            time.sleep(0.01)
        time.sleep(0.1)  # a connection that is closed at once is closed by now
        last = http.get("/v1/runs")
        assert (last.status_code, last.headers["connection"]) == (200, "close")
        _ends(server)


def test_service_is_not_ready_before_it_stops(server: LiveServer) -> None:
    server.environment["EPSILON_LEDGER_SHUTDOWN_DELAY_SECONDS"] = "60"
    server.start()
    with server.client("viewer") as http, httpx2.Client(base_url=server.url, trust_env=False, timeout=30) as new:
        http.get("/v1/runs").raise_for_status()
        _terminate(server)
        until = time.monotonic() + 30
        while (answer := new.get("/readyz")).status_code == 200:
            assert time.monotonic() < until
        assert (answer.status_code, answer.json()["detail"]) == (503, "This process is stopping.")
        assert answer.headers["connection"] == "close"
        assert new.get("/healthz").status_code == 200
        assert http.get("/v1/runs").status_code == 200


def test_service_stops_in_time_when_a_request_never_ends(server: LiveServer) -> None:
    server.environment["EPSILON_LEDGER_SHUTDOWN_SECONDS"] = "1"
    server.start()
    with socket.create_connection(("127.0.0.1", server.port)) as slow:
        head = f"POST /v1/runs HTTP/1.1\r\nHost: ledger\r\nAuthorization: Bearer {server.key('admin')}\r\n"
        slow.sendall(f"{head}Content-Type: application/json\r\nContent-Length: 100\r\n\r\n{{".encode())
        with server.client("viewer") as http:  # the request before it has been read by now
            assert http.get("/healthz").status_code == 200
        _terminate(server)
        _ends(server)
        assert not slow.recv(1 << 16).startswith(b"HTTP/1.1 2")


def test_queued_steps_are_answered_when_the_service_stops(tmp_path: Path) -> None:
    """Another process writes, so steps wait; meanwhile the service is told to stop, and one client leaves."""
    server = LiveServer(tmp_path)
    server.start()
    runs = _runs(server, 3)
    try:
        with ExitStack() as stack:
            trainers = [stack.enter_context(socket.create_connection(("127.0.0.1", server.port), 30)) for _ in runs]
            for trainer, run in zip(trainers, runs, strict=True):  # the first one makes the key known
                trainer.sendall(_step(run, server.key("trainer")))
                assert _reply(trainer)[0].startswith(b"HTTP/1.1 200 ")
            with closing(sqlite3.connect(tmp_path / "ledger.db", isolation_level=None)) as writer:
                writer.execute("BEGIN IMMEDIATE")
                for trainer, run in zip(trainers, runs, strict=True):
                    trainer.sendall(_step(run, server.key("trainer")))
                time.sleep(0.3)
                trainers[2].close()
                _terminate(server)
                time.sleep(0.3)
                writer.execute("ROLLBACK")
            for trainer in trainers[:2]:
                head, rest = _reply(trainer)
                assert (head.split(b" ")[1], b"\r\nconnection: close\r\n" in head) == (b"200", True), head
                assert (rest, trainer.recv(1)) == (b"", b"")
            _ends(server)
    finally:
        server.kill()
    assert "Traceback" not in server.log()
    assert " ERROR " not in server.log()
    assert _decisions(server) == 2 * len(runs)


def _step(run: str, key: str) -> bytes:
    """A plain request for one step."""
    head = f"POST /v1/runs/{run}/steps HTTP/1.1\r\nHost: ledger\r\nAuthorization: Bearer {key}\r\n"
    return f"{head}Content-Type: application/json\r\nContent-Length: 2\r\n\r\n{{}}".encode()


def _reply(connection: socket.socket) -> tuple[bytes, bytes]:
    """The head of an answer, and what came behind its body."""
    said = b""
    while b"\r\n\r\n" not in said:
        piece = connection.recv(1 << 16)
        assert piece, said
        said += piece
    head, _, body = said.partition(b"\r\n\r\n")
    length = int(head.partition(b"content-length: ")[2].split(b"\r\n")[0])
    while len(body) < length:
        body += connection.recv(1 << 16)
    return head + b"\r\n", body[length:]
