"""Who connects and does not go on is let go, whatever part of a request they hold back; the others are served."""

import json
import resource
import socket
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, suppress
from pathlib import Path

import httpx2
import pytest

from app.connections import LINGER_SECONDS, MOST_HEAD_BYTES, OTHER_FILES
from tests.servers import LiveServer

SECONDS = 0.5
"""What a head may take, and a body."""
MOST = 20
"""Connections at a time."""
PATIENCE = 20.0
"""Seconds until a test gives up."""

HEALTH = b"GET /healthz HTTP/1.1\r\nHost: ledger\r\n\r\n"
BODY = b"POST /v1/runs HTTP/1.1\r\nHost: ledger\r\nAuthorization: Bearer %s\r\nContent-Length: 1000\r\n\r\n"


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LiveServer]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("EPSILON_LEDGER_REQUEST_HEAD_SECONDS", str(SECONDS))
        patch.setenv("EPSILON_LEDGER_REQUEST_BODY_SECONDS", str(SECONDS))
        patch.setenv("EPSILON_LEDGER_MAX_CONNECTIONS", str(MOST))
        live = LiveServer(tmp_path_factory.mktemp("edge"))
        live.key("admin")
        live.start()
    yield live
    live.stop()
    assert "Traceback" not in live.log()


def _connect(server: LiveServer, *, window: int = 0) -> socket.socket:
    connection = socket.socket()
    if window:
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, window)
    connection.settimeout(PATIENCE)
    connection.connect(("127.0.0.1", server.port))
    return connection


def _drip(connection: socket.socket, piece: bytes) -> bytes:
    """Send a piece again and again until the service closes the connection; what it has said."""
    said = bytearray()
    connection.settimeout(0.05)
    until = time.monotonic() + PATIENCE
    while time.monotonic() < until:
        try:
            connection.sendall(piece)
            response = connection.recv(1 << 16)
            if not response:
                return bytes(said)
            said += response
        except TimeoutError:
            continue
        except OSError:  # it does not listen any more
            connection.settimeout(PATIENCE)
            with suppress(OSError):
                while response := connection.recv(1 << 16):
                    said += response
            return bytes(said)
    pytest.fail("the connection is kept")


def _read(connection: socket.socket) -> bytes:
    """All that is said until the service closes the connection."""
    said = bytearray()
    while response := connection.recv(1 << 16):
        said += response
    return bytes(said)


def _problem(said: bytes) -> tuple[int, str]:
    """The status and the code of the one answer, after which the connection ends."""
    head, _, body = said.partition(b"\r\n\r\n")
    assert b"connection: close" in head.lower()
    assert b"content-type: application/problem+json" in head.lower()
    response = json.loads(body)
    assert int(head.split()[1]) == response["status"]
    return response["status"], response["code"]


@pytest.mark.parametrize("begin", [b"G", b"GET /healthz HTTP/1.1\r\nHost: led", b"GET /healthz HTTP/1.1\r\nX: y\r\n"])
def test_half_a_head_is_told_so_and_let_go(server: LiveServer, begin: bytes) -> None:
    with _connect(server) as connection:
        connection.sendall(begin)
        assert _problem(_read(connection)) == (408, "request_timeout")


def test_a_head_that_drips_is_let_go(server: LiveServer) -> None:
    with _connect(server) as connection:
        connection.sendall(b"GET /healthz HTTP/1.1\r\n")
        assert _problem(_drip(connection, b"X: y\r\n")) == (408, "request_timeout")


def test_empty_lines_are_no_head(server: LiveServer) -> None:
    with _connect(server) as connection:
        _drip(connection, b"\r\n")


def test_who_says_nothing_is_let_go_without_a_word(server: LiveServer) -> None:
    with _connect(server) as connection:
        assert _read(connection) == b""


def test_a_body_that_drips_is_told_so_and_let_go(server: LiveServer) -> None:
    with _connect(server) as connection:
        connection.sendall(BODY % server.key("admin").encode())
        assert _problem(_drip(connection, b" ")) == (408, "request_timeout")


def test_a_body_that_drips_after_its_answer_is_let_go(server: LiveServer) -> None:
    with _connect(server) as connection:
        connection.sendall(BODY % b"nonsense")
        assert _drip(connection, b" ").startswith(b"HTTP/1.1 401 ")


@pytest.mark.parametrize("begin", [b"GET /healthz HTTP/1.1\r\nX: ", b""])
def test_a_further_head_that_drips_is_let_go(server: LiveServer, begin: bytes) -> None:
    with _connect(server) as connection:
        connection.sendall(HEALTH)
        assert connection.recv(1 << 16).startswith(b"HTTP/1.1 200 ")
        connection.sendall(begin)
        assert _problem(_drip(connection, b"y" if begin else b"\r\n")) == (408, "request_timeout")


def test_a_head_without_end_is_refused(server: LiveServer) -> None:
    with _connect(server) as connection:
        connection.sendall(b"GET /healthz HTTP/1.1\r\nX: ")
        time.sleep(SECONDS / 5)  # what comes with the first byte is not counted
        connection.sendall(b"y" * (MOST_HEAD_BYTES + 1))
        assert _problem(_read(connection)) == (431, "headers_too_large")


def test_a_refusal_arrives_although_more_is_sent(server: LiveServer) -> None:
    """Closing a socket with unread data resets the connection, and the kernel may then discard the answer."""
    with _connect(server) as connection:
        connection.sendall(b"GET /healthz HTTP/1.1\r\nX: ")
        time.sleep(SECONDS / 5)
        for _ in range(100):
            connection.sendall(b"y" * MOST_HEAD_BYTES)
        time.sleep(SECONDS / 5)
        connection.sendall(b"y")
        assert _problem(_read(connection)) == (431, "headers_too_large")


def test_a_refused_client_that_stays_is_let_go(server: LiveServer) -> None:
    with _connect(server) as connection:
        connection.sendall(b"GET /healthz HTTP/1.1\r\nX: ")
        assert _problem(_read(connection)) == (408, "request_timeout")
        began = time.monotonic()
        with suppress(OSError):
            while time.monotonic() < began + PATIENCE:
                connection.sendall(b"y")
                time.sleep(0.05)
        assert time.monotonic() < began + LINGER_SECONDS + PATIENCE / 4


def test_requests_in_a_row_and_at_once_are_answered(server: LiveServer) -> None:
    with _connect(server) as connection, connection.makefile("rb") as reader:
        for _ in range(3):
            connection.sendall(HEALTH)
            assert _answer(reader.readline, reader.read) == 200
        connection.sendall(3 * HEALTH + HEALTH[:10])
        assert [_answer(reader.readline, reader.read) for _ in range(3)] == [200] * 3
        time.sleep(SECONDS / 2)
        connection.sendall(HEALTH[10:])
        assert _answer(reader.readline, reader.read) == 200


def _answer(line: Callable[[], bytes], read: Callable[[int], bytes]) -> int:
    status, length = int(line().split()[1]), 0
    while (header := line()) != b"\r\n":
        name, _, value = header.lower().partition(b":")
        length = int(value) if name == b"content-length" else length
    read(length)
    return status


def test_who_takes_no_answer_is_let_go(server: LiveServer) -> None:
    ask = b"GET /openapi.json HTTP/1.1\r\nHost: ledger\r\n\r\n"
    asked = 100
    with _connect(server, window=4096) as connection:
        connection.sendall(ask * asked)
        until = time.monotonic() + PATIENCE
        while _connections(server):
            assert time.monotonic() < until, "the connection is kept"
            time.sleep(0.1)
        with suppress(ConnectionResetError):
            assert _read(connection).count(b"HTTP/1.1 200 ") < asked


def _connections(server: LiveServer) -> int:
    """How many connections to the port stand on the service's side (state 01: proc(5))."""
    assert server.process is not None
    rows = [line.split() for line in Path("/proc/net/tcp").read_text().splitlines()[1:]]
    here = f":{server.port:04X}"
    return sum(row[1].endswith(here) and row[3] == "01" for row in rows)


def test_one_connection_too_many_is_told_so_and_others_go_on(server: LiveServer) -> None:
    with ExitStack() as stack:
        kept = [stack.enter_context(_connect(server)) for _ in range(MOST)]
        for connection in kept:
            assert _is_healthy(connection)
        refused = httpx2.get(f"{server.url}/healthz", trust_env=False)
        assert (refused.status_code, refused.json()["code"]) == (503, "too_many_connections")
        assert refused.headers["retry-after"] == "1"
        assert _is_healthy(kept[0])
        kept[0].close()
        _await_health(server)


def _is_healthy(connection: socket.socket) -> bool:
    """Ask for the health and read the whole answer, which may come in several pieces."""
    connection.sendall(HEALTH)
    answer = b""
    while not answer.endswith(b"}"):
        piece = connection.recv(1 << 16)
        assert piece, answer
        answer += piece
    return answer.startswith(b"HTTP/1.1 200 ")


def _await_health(server: LiveServer) -> None:
    until = time.monotonic() + PATIENCE
    while True:
        with suppress(httpx2.TransportError):
            if httpx2.get(f"{server.url}/healthz", trust_env=False).status_code == 200:
                return
        assert time.monotonic() < until, server.log()
        time.sleep(0.05)


def test_more_half_heads_than_files_stop_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The process may open few files: it says how many connections it takes, and serves on."""
    monkeypatch.setenv("EPSILON_LEDGER_REQUEST_HEAD_SECONDS", str(SECONDS))
    room = 100
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    flood = 2 * (OTHER_FILES + room)
    if before[1] < flood + 100:
        pytest.skip("this process may not open as many files")
    live = LiveServer(tmp_path)
    live.key("admin")
    # As `ulimit -n` of the service's shell; ours is as before once it has begun.
    monkeypatch.setattr(live, "module", "tests.reliability.few_files")
    monkeypatch.setenv("FEW_FILES", str(OTHER_FILES + room))
    live.start()
    try:
        with ExitStack() as stack:
            for _ in range(flood):
                connection = stack.enter_context(socket.socket())
                connection.settimeout(0)
                connection.connect_ex(("127.0.0.1", live.port))
                with suppress(OSError):
                    connection.send(b"GET /healthz HTTP/1.1\r\n")
            assert live.process is not None
            opened = len(list(Path(f"/proc/{live.process.pid}/fd").iterdir()))
            assert opened <= OTHER_FILES + room
            _await_health(live)
        with live.client("admin") as http:
            assert http.get("/v1/runs").status_code == 200
    finally:
        live.stop()
    assert f"it takes {room} connections at a time" in live.log()
    assert "Traceback" not in live.log()
    assert "Too many open files" not in live.log()
