"""A provider that drips its answer is given up in time, and a service that stops does not wait for it."""

import json
import socket
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from threading import Event, Thread

import pytest

from app.service.auth.oidc import http_json
from tests.conftest import LiveServer

PIECES = 600
"""So many pieces of its answer it says, one in a twentieth of a second: half a minute."""


@dataclass
class Drip:
    """A provider that says its answer so slowly that no single read ever takes long."""

    url: str
    left: Event = field(default_factory=Event)
    ended: Event = field(default_factory=Event)
    asked: Event = field(default_factory=Event)


@contextmanager
def dripping(before: bytes, piece: bytes) -> Iterator[Drip]:
    listening = socket.create_server(("127.0.0.1", 0))
    drip = Drip(f"http://127.0.0.1:{listening.getsockname()[1]}")
    stop = Event()

    def answer(connection: socket.socket) -> None:
        with connection:
            connection.recv(1 << 16)
            drip.asked.set()
            try:
                connection.sendall(before)
                for _ in range(PIECES):
                    if stop.wait(0.05):
                        return
                    connection.sendall(piece)
            except OSError:
                drip.left.set()
            else:
                drip.ended.set()

    def serve() -> None:
        with suppress(OSError):
            while True:
                Thread(target=answer, args=(listening.accept()[0],), daemon=True).start()

    Thread(target=serve, daemon=True).start()
    try:
        yield drip
    finally:
        stop.set()
        listening.shutdown(socket.SHUT_RDWR)
        listening.close()


@pytest.mark.parametrize(
    ("before", "piece"),
    [
        (b"", b"H"),
        (b"HTTP/1.1 200 OK\r\n", b"X: y\r\n"),
        (b"HTTP/1.1 200 OK\r\nX: ", b"y"),
        (b"HTTP/1.1 100 Continue\r\n\r\n", b"HTTP/1.1 100 Continue\r\n\r\n"),
        (b"HTTP/1.1 200 OK\r\nContent-Length: 100000\r\n\r\n", b" "),
        (b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n", b"1\r\n \r\n"),
        (b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n1;", b"x"),
    ],
)
def test_dripping_provider_is_left_after_the_timeout(
    monkeypatch: pytest.MonkeyPatch, before: bytes, piece: bytes
) -> None:
    monkeypatch.setattr(http_json, "FETCH_SECONDS", 0.3)
    with dripping(before, piece) as drip:
        with pytest.raises(TimeoutError, match=r"took longer than 0\.3 seconds"):
            http_json.fetched_from(drip.url)
        assert drip.left.wait(20), "the connection is kept"
        assert not drip.ended.is_set()


def test_stopping_service_does_not_wait_for_a_provider(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with dripping(b"HTTP/1.1 200 OK\r\nX: ", b"y") as drip:
        settings = {
            "ISSUER": drip.url,
            "AUDIENCE": "ledger",
            "ORGANISATION": "hospital",
            "ROLES": json.dumps({"officers": {"role": "viewer"}}),
        }
        for name, value in settings.items():
            monkeypatch.setenv(f"EPSILON_LEDGER_OIDC_{name}", value)
        server = LiveServer(tmp_path)
        server.start()
        assert drip.asked.wait(20)
        assert server.process is not None
        server.process.terminate()
        assert server.process.wait(60) == 0, server.log()
        # The time of the fetch has not run out: nobody has given it up before the process ended.
        assert "could not be fetched" not in server.log()
        assert not drip.ended.is_set()
