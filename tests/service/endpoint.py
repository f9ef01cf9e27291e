"""An endpoint of receivers: a real HTTP server with everything that it was sent."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

from app.service.alerts.receivers import ReceiverRules
from tests.conftest import Ledger
from tests.polling import await_true
from tests.servers import QuietHandler, background_thread

Answer = Callable[[BaseHTTPRequestHandler], None]


@dataclass(frozen=True)
class Message:
    path: str
    headers: dict[str, str]
    body: bytes


class Endpoint(ThreadingHTTPServer):
    """Answers with 204 unless it is told otherwise."""

    daemon_threads = True
    answer: Answer | None = None

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.messages: list[Message] = []
        self.url = f"http://127.0.0.1:{self.server_port}/alerts?from=ledger"

    @property
    def ids(self) -> list[str]:
        return [message.headers["webhook-id"] for message in self.messages]

    def await_messages(self, count: int) -> None:
        await_true(lambda: len(self.messages) >= count, lambda: f"{len(self.messages)} of {count} came", 0.01, 30)


class _Handler(QuietHandler, BaseHTTPRequestHandler):
    server: Endpoint

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["Content-Length"]))
        headers = {name.lower(): value for name, value in self.headers.items()}
        self.server.messages.append(Message(self.path, headers, body))
        (self.server.answer or status(204))(self)


def status(code: int, **headers: str) -> Answer:
    def answer(handler: BaseHTTPRequestHandler) -> None:
        handler.send_response(code)
        for name, value in ({"Content-Length": "0"} | headers).items():
            handler.send_header(name, value)
        handler.end_headers()

    return answer


@contextmanager
def receiving() -> Iterator[Endpoint]:
    """An endpoint on a port of its own."""
    endpoint = Endpoint()
    with background_thread(endpoint):
        yield endpoint


def allow_private(ledger: Ledger) -> None:
    """Let receivers be made that lead to this machine."""
    ledger.http.app.state.receiver_rules = ReceiverRules(allow_private=True, sends_mail=True)


def subscribed(ledger: Ledger, url: str | None, **response: object) -> dict[str, str]:
    """A receiver, with its secret."""
    allow_private(ledger)
    reply = ledger.post("/v1/receivers", {"url": url} | response)
    assert reply.status_code == 201, reply.text
    return dict(reply.json())
