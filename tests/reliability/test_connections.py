"""Who connects and does not go on is let go, whatever part of a request they hold back; the others are served."""

import json
import re
import resource
import socket
import time
from collections.abc import Iterator
from contextlib import ExitStack, suppress
from pathlib import Path

import httpx2
import pytest

from app.http.connections import LINGER_SECONDS, MOST_HEAD_BYTES, OTHER_FILES
from tests.api.step_routes import JSON, NAMED, Client, request
from tests.polling import await_true, status_of
from tests.reliability.clients import open_budget
from tests.reliability.conftest import BROKEN, started
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
    limits = {"REQUEST_HEAD_SECONDS": SECONDS, "REQUEST_BODY_SECONDS": SECONDS, "MAX_CONNECTIONS": MOST}
    environment = {f"EPSILON_LEDGER_{name}": str(value) for name, value in limits.items()}
    live = LiveServer(tmp_path_factory.mktemp("edge"), environment=environment)
    with started(live):
        yield live
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
def test_connection_is_closed_with_a_problem_when_a_head_stops(server: LiveServer, begin: bytes) -> None:
    with _connect(server) as connection:
        connection.sendall(begin)
        assert _problem(_read(connection)) == (408, "request_timeout")


@pytest.mark.parametrize(
    ("begin", "piece"),
    [
        (b"GET /healthz HTTP/1.1\r\n", b"X: y\r\n"),
        (BODY, b" "),
        (HEALTH + b"GET /healthz HTTP/1.1\r\nX: ", b"y"),
        (HEALTH, b"\r\n"),
    ],
    ids=["head", "body", "further head", "empty lines"],
)
def test_connection_is_closed_with_a_problem_when_a_request_drips(
    server: LiveServer, begin: bytes, piece: bytes
) -> None:
    with _connect(server) as connection:
        connection.sendall(begin.replace(b"%s", server.key("admin").encode()))
        said = _drip(connection, piece)
        if begin.startswith(HEALTH):
            assert said.startswith(b"HTTP/1.1 200 ")
            said = said[said.index(b"HTTP/1.1 408") :]
        assert _problem(said) == (408, "request_timeout")


def test_connection_is_closed_when_only_empty_lines_or_nothing_comes(server: LiveServer) -> None:
    with _connect(server) as connection, _connect(server) as silent:
        _drip(connection, b"\r\n")
        assert _read(silent) == b""


def test_connection_is_closed_when_a_body_drips_after_its_answer(server: LiveServer) -> None:
    with _connect(server) as connection:
        connection.sendall(BODY % b"nonsense")
        assert _drip(connection, b" ").startswith(b"HTTP/1.1 401 ")


def test_refusal_of_a_long_head_arrives_when_more_is_sent(server: LiveServer) -> None:
    """Closing a socket with unread data resets the connection, and the kernel may then discard the answer."""
    with _connect(server) as connection:
        connection.sendall(b"GET /healthz HTTP/1.1\r\nX: ")
        time.sleep(SECONDS / 5)
        for _ in range(100):
            connection.sendall(b"y" * MOST_HEAD_BYTES)
        time.sleep(SECONDS / 5)
        connection.sendall(b"y")
        assert _problem(_read(connection)) == (431, "headers_too_large")


def test_connection_is_closed_when_a_refused_client_stays(server: LiveServer) -> None:
    with _connect(server) as connection:
        connection.sendall(b"GET /healthz HTTP/1.1\r\nX: ")
        assert _problem(_read(connection)) == (408, "request_timeout")
        began = time.monotonic()
        with suppress(OSError):
            while time.monotonic() < began + PATIENCE:
                connection.sendall(b"y")
                time.sleep(0.05)
        assert time.monotonic() < began + LINGER_SECONDS + PATIENCE / 4


def test_requests_are_answered_when_they_come_in_a_row_or_at_once(server: LiveServer) -> None:
    with Client(server.port) as client:
        assert [client.ask(HEALTH).status for _ in range(3)] == [200] * 3
        client.send(3 * HEALTH + HEALTH[:10])
        assert [client.answer().status for _ in range(3)] == [200] * 3
        time.sleep(SECONDS / 2)
        assert client.ask(HEALTH[10:]).status == 200


def test_connection_is_closed_when_its_answers_are_not_read(server: LiveServer) -> None:
    ask = b"GET /openapi.json HTTP/1.1\r\nHost: ledger\r\n\r\n"
    asked = 100
    with _connect(server, window=4096) as connection:
        connection.sendall(ask * asked)
        await_true(lambda: _connections(server) == 0)
        with suppress(ConnectionResetError):
            assert _read(connection).count(b"HTTP/1.1 200 ") < asked


def _connections(server: LiveServer) -> int:
    """How many connections to the port stand on the service's side (state 01: proc(5))."""
    rows = [line.split() for line in Path("/proc/net/tcp").read_text().splitlines()[1:]]
    here = f":{server.port:04X}"
    return sum(row[1].endswith(here) and row[3] == "01" for row in rows)


def test_connection_is_refused_when_there_are_too_many_and_others_go_on(server: LiveServer) -> None:
    with ExitStack() as stack:
        kept = [stack.enter_context(Client(server.port)) for _ in range(MOST)]
        assert {client.ask(HEALTH).status for client in kept} == {200}
        refused = httpx2.get(f"{server.url}/healthz", trust_env=False)
        assert (refused.status_code, refused.json()["code"]) == (503, "too_many_connections")
        assert refused.headers["retry-after"] == "1"
        assert kept[0].ask(HEALTH).status == 200
        kept[0].socket.shutdown(socket.SHUT_RDWR)
        await_true(lambda: status_of(f"{server.url}/healthz") == 200, server.log)


def test_service_goes_on_when_more_connections_come_than_files_may_be_open(tmp_path: Path) -> None:
    """The process may open few files: it says how many connections it takes, and serves on."""
    room = 100
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    flood = 2 * (OTHER_FILES + room)
    if before[1] < flood + 100:
        pytest.skip("this process may not open as many files")
    few = {"FEW_FILES": str(OTHER_FILES + room), "EPSILON_LEDGER_REQUEST_HEAD_SECONDS": str(SECONDS)}
    live = LiveServer(tmp_path, module=BROKEN, environment=few)
    with live:
        with ExitStack() as stack:
            for _ in range(flood):
                connection = stack.enter_context(socket.socket())
                connection.settimeout(0)
                connection.connect_ex(("127.0.0.1", live.port))
                with suppress(OSError):
                    connection.send(b"GET /healthz HTTP/1.1\r\n")
            opened = len(list(Path(f"/proc/{live.process.pid}/fd").iterdir()))
            assert opened <= OTHER_FILES + room
            await_true(lambda: status_of(f"{live.url}/healthz") == 200, live.log)
        with live.client("admin") as http:
            assert http.get("/v1/runs").status_code == 200
    assert f"it takes {room} connections at a time" in live.log()
    assert "Traceback" not in live.log()
    assert "Too many open files" not in live.log()


def test_steps_are_answered_on_the_connection_as_by_the_framework(server: LiveServer) -> None:
    """A repeated header makes a request unusual; pipelined steps are answered in their order."""
    with server.client("admin") as http:
        event = {"type": "gaussian", "noise_multiplier": 90.0}
        body = {"name": "m", "budget": open_budget(http, "steps", 5.0), "event": event}
        path = f"/v1/runs/{http.post('/v1/runs', json=body).raise_for_status().json()['id']}/steps"
    usual = (b"authorization", f"Bearer {server.key('trainer')}".encode()), JSON, NAMED
    unusual = (*usual, (b"x-twice", b"1"), (b"x-twice", b"2"))

    def ask(content: bytes, *headers: tuple[bytes, bytes]) -> tuple[int, bytes]:
        with Client(server.port) as client:
            answer = client.ask(request(path, content, *headers))
        return answer.status, re.sub(rb"date: [^\r]+", b"", answer.head) + answer.body

    for content, status in ((b'{"first_step": 0}', 200), (b'{"first_step": 9}', 409), (b"{", 422)):
        ask(content, *usual)  # a step is replayed from here on
        answers = {ask(content, *usual), ask(content, *unusual)}
        assert [answer[0] for answer in answers] == [status], answers
    with Client(server.port) as client:
        many = [request(path, b"{}", *(unusual if place % 3 == 1 else usual)) for place in range(10)]
        client.send(b"".join(many))
        assert [json.loads(client.answer().body)["first_step"] for _ in many] == list(range(1, 11))
