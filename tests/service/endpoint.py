"""An endpoint of receivers: a real HTTP server with everything that it was sent."""

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

from app.service.alerts.receivers import ReceiverRules
from tests.conftest import Ledger

Answer = Callable[[BaseHTTPRequestHandler], None]


@dataclass(frozen=True)
class Message:
    path: str
    headers: dict[str, str]
    body: bytes


@dataclass
class Endpoint:
    """Answers with 204 unless it is told otherwise."""

    port: int = 0
    answer: Answer | None = None
    messages: list[Message] = field(default_factory=list)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}/alerts?from=ledger"

    @property
    def ids(self) -> list[str]:
        return [message.headers["webhook-id"] for message in self.messages]

    def await_messages(self, count: int, seconds: float = 30.0) -> None:
        until = time.monotonic() + seconds
        while len(self.messages) < count:
            assert time.monotonic() < until, f"{len(self.messages)} of {count} came"
            time.sleep(0.01)


def status(code: int, **headers: str) -> Answer:
    def answer(handler: BaseHTTPRequestHandler) -> None:
        handler.send_response(code)
        for name, value in headers.items():
            handler.send_header(name, value)
        handler.send_header("Content-Length", "0")
        handler.end_headers()

    return answer


@contextmanager
def receiving(port: int = 0) -> Iterator[Endpoint]:
    """An endpoint on a port of its own."""
    endpoint = Endpoint()

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["Content-Length"]))
            headers = {name.lower(): value for name, value in self.headers.items()}
            endpoint.messages.append(Message(self.path, headers, body))
            (endpoint.answer or status(204))(self)

        def log_message(self, *_: object) -> None:
            """Say nothing."""

    server = ThreadingHTTPServer(("127.0.0.1", port), Handler)
    server.daemon_threads = True
    endpoint.port = server.server_address[1]
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05})
    thread.start()
    try:
        yield endpoint
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


def allow_private(ledger: Ledger) -> None:
    """Let receivers be made that lead to this machine."""
    ledger.http.app.state.receiver_rules = ReceiverRules(allow_private=True, sends_mail=True)


def subscribed(ledger: Ledger, url: str | None, **response: object) -> dict[str, str]:
    """A receiver, with its secret."""
    allow_private(ledger)
    reply = ledger.post("/v1/receivers", {"url": url} | response)
    assert reply.status_code == 201, reply.text
    return dict(reply.json())
