"""Requests to others' servers: whatever these answer, it is left early, and disturbs no one else."""

import asyncio
import base64
import json
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from app.service.alerts import http_sender, mail_sender
from app.service.alerts.alert_factory import make_test_alert
from app.service.alerts.http_sender import DeliveryResult, HttpSender
from app.service.alerts.mail_sender import MailSender, SmtpServer
from app.service.alerts.messages import message_of
from app.service.auth.oidc import http_json
from app.service.egress.thread import EGRESS
from tests.certificates import server_context
from tests.hostile_servers import (
    BOMB,
    CHUNKED,
    CONTINUE,
    ENDLESS_BODIES,
    ENDLESS_HEADS,
    GREETINGS,
    OK,
    SLOW,
    TLS_FLOODS,
    Answer,
    hostile,
)
from tests.polling import await_true
from tests.servers import QuietHandler, background_thread

PATIENCE = 20.0
"""Seconds that an endless answer may never take: it is left before a timeout."""

TAKEN = 16 << 20
"""Bytes that a server can send at most: what is read, and what the kernel holds of a connection on one machine."""


def posted(port: int, scheme: str = "http") -> DeliveryResult:
    sender = HttpSender(allow_private=True)
    return EGRESS.submit(sender.post(f"{scheme}://127.0.0.1:{port}/", {}, b"{}")).result(60)


def fetched(port: int) -> object:
    return http_json.fetched_from(f"http://127.0.0.1:{port}/")


def set_timeouts(monkeypatch: pytest.MonkeyPatch, seconds: float) -> None:
    monkeypatch.setattr(http_sender, "TIMEOUT_SECONDS", seconds)
    monkeypatch.setattr(mail_sender, "TIMEOUT_SECONDS", seconds)
    monkeypatch.setattr(http_json, "FETCH_SECONDS", seconds)


def error_of(port: int) -> str | None:
    return posted(port).error


def fetch_error_of(port: int) -> str:
    with pytest.raises((OSError, ValueError)) as raised:
        fetched(port)
    return str(raised.value)


def mail_error_of(port: int) -> str | None:
    sender = MailSender(SmtpServer("127.0.0.1", port, "none", "ledger@hospital.example"))
    alert = make_test_alert("rcv_1", datetime.now(UTC))
    return EGRESS.submit(sender.send(alert, message_of(alert), ("office@hospital.example",), None)).result(60).error


def left_early(answers: dict[str, Answer], ask: Callable[[int], str | None]) -> dict[str, str]:
    """What is said of servers whose answers have no end; each is left long before a timeout."""
    said = {}
    for name, answer in answers.items():
        with hostile(answer) as server:
            began = time.monotonic()
            said[name] = ask(server.port) or ""
            assert time.monotonic() - began < PATIENCE / 4, name
            await_true(lambda: server.left == server.met, pause=0.01)
            assert server.sent < TAKEN, name
    return said


def test_endless_answer_is_left_early(monkeypatch: pytest.MonkeyPatch) -> None:
    set_timeouts(monkeypatch, PATIENCE)
    said = left_early(ENDLESS_HEADS, error_of)
    assert said["interim answers"] == "The server sent more than 8 interim answers."
    assert said["headers"] == "The server's answer has more than 200 headers."
    assert said["one header"] == "The head of the server's answer is longer than 65536 bytes."
    assert all(said.values()), said
    assert left_early(ENDLESS_HEADS, fetch_error_of) == said
    assert left_early(ENDLESS_BODIES, error_of) == dict.fromkeys(ENDLESS_BODIES, ""), "a 2xx status acknowledges"
    assert all(left_early(ENDLESS_BODIES, fetch_error_of).values())
    assert all(left_early(GREETINGS, mail_error_of).values())
    assert all(left_early(TLS_FLOODS, lambda port: posted(port, "https").error).values())


def test_slow_answer_is_left_after_the_timeout(monkeypatch: pytest.MonkeyPatch) -> None:
    set_timeouts(monkeypatch, 0.2)
    for name, answer in SLOW.items():
        with hostile(answer) as server:
            assert error_of(server.port) == "There was no answer within 0.2 seconds.", name
            assert fetch_error_of(server.port) == "its answer took longer than 0.2 seconds", name
            await_true(lambda: server.left == server.met, pause=0.01)
    with hostile(Answer()) as server:
        assert posted(server.port, "https").error == "There was no answer within 0.2 seconds."
    for answer in (Answer(listens=False), Answer(b"220-", b"w", 0.01, listens=False)):
        with hostile(answer) as server:
            assert mail_error_of(server.port) == "The SMTP server did not answer within 0.2 seconds."


def test_compressed_answer_is_not_expanded() -> None:
    answer = Answer(OK + b"Content-Encoding: gzip\r\nContent-Length: %d\r\n\r\n" % len(BOMB) + BOMB)
    with hostile(answer) as server:
        assert "utf-8" in fetch_error_of(server.port)
        assert posted(server.port) == DeliveryResult(200, None)


def test_answer_in_any_framing_is_read_whole() -> None:
    content = json.dumps({"text": "x" * 100_000}).encode()
    chunks = b"".join(b"%x\r\n%s\r\n" % (len(part), part) for part in (content[:7], content[7:]))
    for begin in (
        OK + b"Content-Length: %d\r\n\r\n" % len(content) + content,
        CONTINUE * 8 + CHUNKED + chunks + b"0\r\nTrailer: x\r\n\r\n",
        OK + b"Content-Length: %d\r\n\r\n" % len(content) + content + b"HTTP/1.1 200 a second one",
    ):
        with hostile(Answer(begin)) as server:
            assert fetched(server.port) == json.loads(content)


def test_answer_that_breaks_off_is_refused() -> None:
    for begin in (b"", b"HTTP/1.1 200", OK, OK + b"Content-Length: 9\r\n\r\n{}", CHUNKED + b"2\r\n{}\r\n"):
        with cut_off(begin) as port:
            assert "ended the connection" in fetch_error_of(port), begin
    with cut_off(OK + b"\r\n{}") as port:
        assert fetched(port) == {}, "without a length, the body ends with the connection"


@contextmanager
def cut_off(begin: bytes) -> Iterator[int]:
    """A server that closes the connection after some bytes."""

    class Handler(QuietHandler, BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.wfile.write(begin)
            self.close_connection = True

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    with background_thread(server):
        yield server.server_port


def test_request_with_another_line_in_a_header_is_not_sent(tmp_path: Path) -> None:
    (tmp_path / "token").write_text("a\r\nHost: elsewhere")
    with hostile(Answer()) as server, pytest.raises(ValueError, match="Authorization has a character"):
        http_json.fetched_from(
            f"http://127.0.0.1:{server.port}/", http_json.FetchAccess(token_file=str(tmp_path / "token"))
        )
    assert server.met == 0


def test_requests_run_in_a_thread_of_their_own_and_end_with_their_future() -> None:
    names = []

    async def note(*_: object) -> list[str]:
        names.append(threading.current_thread().name)
        return []

    async def main() -> None:
        sender = HttpSender(allow_private=True, resolver=note)
        await asyncio.wrap_future(EGRESS.submit(sender.post("http://a.example/", {}, b"")))
        with hostile(Answer()) as server:
            waits = asyncio.wrap_future(EGRESS.submit(HttpSender(allow_private=True).post(url(server.port), {}, b"")))
            await asyncio.to_thread(await_true, lambda: server.met == 1, str, 0.01)
            waits.cancel()
            await asyncio.to_thread(await_true, lambda: server.left == 1, str, 0.01)

    asyncio.run(main())
    assert names == ["egress"]


def url(port: int) -> str:
    return f"http://127.0.0.1:{port}/"


def test_silent_name_servers_delay_no_other_host(monkeypatch: pytest.MonkeyPatch) -> None:
    known, answered = socket.getaddrinfo, threading.Event()

    def look_up(host: str, *arguments: object, **more: object) -> object:
        if host.startswith("silent"):
            answered.wait(30)
            raise socket.gaierror
        return known(host, *arguments, **more)  # type: ignore[arg-type]

    monkeypatch.setattr(socket, "getaddrinfo", look_up)
    monkeypatch.setattr(http_sender, "TIMEOUT_SECONDS", PATIENCE)
    sender = HttpSender(allow_private=True)
    slow = [EGRESS.submit(sender.post(f"http://silent{number}.example/", {}, b"")) for number in range(50)]
    with hostile(Answer(OK + b"\r\n")) as server:
        began = time.monotonic()
        assert posted(server.port) == DeliveryResult(200, None)
        assert time.monotonic() - began < PATIENCE / 4
    answered.set()
    assert {each.result(30).error for each in slow} == {
        f"The host silent{n}.example has no address." for n in range(50)
    }


def test_provider_is_asked_through_the_proxy_of_the_environment(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tls, root = server_context(tmp_path)
    access = http_json.FetchAccess(ca_file=str(root))
    with hostile(Answer(OK + b"Content-Length: 2\r\n\r\n{}"), tls) as provider, proxying() as proxy:
        for variable in ("HTTPS_PROXY", "https_proxy"):
            monkeypatch.setenv(variable, f"http://ledger:s%40fe@127.0.0.1:{proxy.server_port}")
        target = f"https://127.0.0.1:{provider.port}/keys"
        assert http_json.fetched_from(target, access) == {}
        credentials = base64.b64encode(b"ledger:s@fe").decode()
        assert proxy.asked == [(f"127.0.0.1:{provider.port}", f"Basic {credentials}")]
        proxy.refuses = True
        with pytest.raises(OSError, match=r"The proxy 127\.0\.0\.1 answered 407"):
            http_json.fetched_from(target, access)
        for variable in ("NO_PROXY", "no_proxy"):
            monkeypatch.setenv(variable, "127.0.0.1")
        assert http_json.fetched_from(target, access) == {}
        assert len(proxy.asked) == 2


class ForwardProxy(ThreadingHTTPServer):
    """A proxy that takes CONNECT, and what it was asked for."""

    daemon_threads = True
    refuses = False

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _ProxyHandler)
        self.asked: list[tuple[str, str]] = []


class _ProxyHandler(QuietHandler, BaseHTTPRequestHandler):
    server: ForwardProxy

    def do_CONNECT(self) -> None:
        self.server.asked.append((self.path, self.headers["Proxy-Authorization"]))
        if self.server.refuses:
            self.send_error(407)
            return
        self.send_response(200)
        self.end_headers()
        host, _, port = self.path.partition(":")
        with socket.create_connection((host, int(port))) as there:
            back = threading.Thread(target=pump, args=(there, self.connection))
            back.start()
            pump(self.connection, there)
            back.join()


def pump(source: socket.socket, target: socket.socket) -> None:
    try:
        while piece := source.recv(1 << 16):
            target.sendall(piece)
        target.shutdown(socket.SHUT_WR)
    except OSError:
        pass


@contextmanager
def proxying() -> Iterator[ForwardProxy]:
    proxy = ForwardProxy()
    with background_thread(proxy):
        yield proxy
