"""The clients' own connections for steps: when they are used again, by whom, and what an interrupt leaves of them."""

import asyncio
import json
import math
import signal
import socket
import threading
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from time import monotonic
from typing import Any

import httpx2
import pytest

from epsilon_ledger import LedgerClient, LedgerUnavailableError, Run
from epsilon_ledger._net import plain_http, step_connections, step_pool
from epsilon_ledger._wire.requests import Request, post
from epsilon_ledger._wire.responses import HttpAnswer
from tests.polling import await_true
from tests.sdk.both_clients import Driven, OpenClient, blocking_only
from tests.sdk.fake_ledger import RUN_ID
from tests.sdk.hostile_server import HostileServer, Sent, ports, take
from tests.sdk.test_interrupts import insisting, interrupted
from tests.sdk.test_one_process import in_a_fork
from tests.sdk.wire import KEY

pytestmark = pytest.mark.usefixtures("no_proxies")


def connections(client: LedgerClient) -> step_connections.StepConnections:
    steps = client._transport._steps
    assert steps is not None
    return steps


def exchange(client: LedgerClient, request: Request) -> HttpAnswer:
    answer: Any = connections(client).exchange(request)
    received: HttpAnswer = client.wait(answer) if isinstance(client, Driven) else answer
    return received


def test_steps_have_one_connection_and_the_headers_of_other_requests(
    server: HostileServer, socket_client: LedgerClient, socket_run: Run
) -> None:
    for _ in range(3):
        take(socket_run, server)
    assert len(set(ports(server.asked))) == 1
    assert {each.line for each in server.asked} == {f"POST /v1/runs/{RUN_ID}/steps HTTP/1.1"}
    connections(socket_client)._carries_from = math.inf
    take(socket_run, server)
    *_, own, other = server.asked
    assert (own.is_by_httpx2, other.is_by_httpx2) == (False, True)
    assert own.headers.keys() == other.headers.keys()
    different = {name for name in own.headers if own.headers[name] != other.headers[name]}
    assert different == {"accept-encoding", "idempotency-key"}


def test_path_of_the_address_comes_before_that_of_the_steps(server: HostileServer, open_client: OpenClient) -> None:
    with open_client(f"{server.url}/a%20prefix/", KEY) as client:
        take(client.get_run(RUN_ID), server)
    assert [each.line for each in server.asked] == [f"POST /a%20prefix/v1/runs/{RUN_ID}/steps HTTP/1.1"]


def test_server_that_closed_an_idle_connection_is_not_asked_over_it(
    server: HostileServer, socket_client: LedgerClient, socket_run: Run
) -> None:
    take(socket_run, server)
    server.hang_up()
    (idle,) = connections(socket_client)._idle
    await_true(idle._is_readable, pause=0.001)
    take(socket_run, server)
    assert len(set(ports(server.asked))) == len(server.asked) == 2


def test_words_of_a_server_between_two_steps_are_no_answer(
    server: HostileServer, socket_client: LedgerClient, socket_run: Run
) -> None:
    said = threading.Event()
    server.spoil(lambda whole: Sent([whole, whole], between=said.wait))
    take(socket_run, server)
    (idle,) = connections(socket_client)._idle
    assert not idle._is_readable()
    said.set()
    await_true(idle._is_readable, pause=0.001)
    take(socket_run, server)
    assert len(set(ports(server.asked))) == 2


def test_connection_that_was_idle_for_long_is_not_used(
    server: HostileServer, socket_run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    take(socket_run, server)
    monkeypatch.setattr(step_pool, "monotonic", lambda: monotonic() + 5.0)
    take(socket_run, server)
    assert len(set(ports(server.asked))) == 2


def step(number: int) -> Request:
    """The request for a step, which may be sent again."""
    return post(f"v1/runs/{RUN_ID}/steps", {"first_step": number, "count": 1, "attempt": 1})


def first_step(answer: HttpAnswer) -> object:
    return json.loads(answer.content)["first_step"]


def exchange_together(client: LedgerClient, asked: Sequence[Request]) -> list[list[object]]:
    """Send each request three times, in a thread or task of its own."""
    steps: Any = connections(client)

    async def in_task(each: Request) -> list[object]:
        return [first_step(await steps.exchange(each)) for _ in range(3)]

    async def in_tasks() -> list[list[object]]:
        return await asyncio.gather(*map(in_task, asked))

    if isinstance(client, Driven):
        answers: list[list[object]] = client.wait(in_tasks())
        return answers
    with ThreadPoolExecutor() as pool:
        return list(pool.map(lambda each: [first_step(steps.exchange(each)) for _ in range(3)], asked))


def test_threads_and_tasks_have_connections_of_their_own(server: HostileServer, socket_client: LedgerClient) -> None:
    asked, together = [step(0), step(1)], threading.Barrier(2)
    assert [first_step(exchange(socket_client, each)) for each in asked] == [0, 1]

    def wait(whole: bytes) -> Sent:
        together.wait(timeout=30)
        return Sent([whole])

    server.asked.clear()
    server.spoil(*[wait] * 6)
    assert exchange_together(socket_client, asked) == [[0] * 3, [1] * 3]
    assert len(set(ports(server.asked))) == 2


@pytest.mark.filterwarnings("ignore:This process.*is multi-threaded:DeprecationWarning")
def test_forked_process_has_connections_of_its_own(
    server: HostileServer, socket_client: LedgerClient, socket_run: Run
) -> None:
    take(socket_run, server)
    asked = step(1)
    steps: Any = connections(socket_client)
    is_async = isinstance(socket_client, Driven)
    assert in_a_fork(lambda: asyncio.run(steps.exchange(asked)) if is_async else steps.exchange(asked)) == "nothing"
    assert server.ledger.next_step == 2
    assert first_step(exchange(socket_client, asked)) == 1
    first, forked, second = ports(server.asked)
    assert first == second != forked


def test_closed_client_closes_its_connections_and_sends_no_steps(
    server: HostileServer, socket_client: LedgerClient, socket_run: Run
) -> None:
    take(socket_run, server)
    (idle,) = connections(socket_client)._idle

    def close_first(whole: bytes) -> Sent:
        socket_client.close()
        return Sent([whole])

    server.spoil(close_first)
    take(socket_run, server)  # it was on its way
    with pytest.raises(RuntimeError, match="closed"):
        socket_run.authorize()
    sockets: Any = idle
    is_closed = sockets._transport.is_closing() if isinstance(socket_client, Driven) else sockets._socket.fileno() == -1
    assert (connections(socket_client)._idle, is_closed, len(server.asked)) == ([], True, 2)


def test_never_sent_step_is_not_in_doubt(server: HostileServer, open_client: OpenClient) -> None:
    with open_client(server.url, KEY, max_attempts=1) as client:
        run = client.get_run(RUN_ID)
        server.__exit__()
        with pytest.raises(LedgerUnavailableError, match=r"ConnectError: .*(refused|Connect call failed)") as failed:
            run.authorize()
        assert not failed.value.in_doubt


FILES = (step_connections.__file__, step_pool.__file__, plain_http.__file__)
"""The connections, their pool and the reader, at whose lines Python may take an interrupt."""


@blocking_only
# Between two lines a new socket has no owner yet: Python closes it, and warns of that.
@pytest.mark.filterwarnings(
    "ignore:unclosed <socket:ResourceWarning", "ignore::pytest.PytestUnraisableExceptionWarning"
)
def test_ctrl_c_at_any_line_leaves_no_half_read_answer(server: HostileServer, socket_run: Run) -> None:
    at = lines = 0
    while lines >= at:
        at += 1
        number = server.ledger.next_step
        server.spoil(lambda whole: Sent([whole[:-5], whole[-5:]]))
        with interrupted(at, FILES) as tracing:
            insisting(socket_run.authorize)
        lines = tracing.lines
        assert socket_run.next_step == server.ledger.next_step == number + 1
        take(socket_run, server)
    assert at > 50


@blocking_only
def test_ctrl_c_while_waiting_for_the_rest_of_an_answer_drops_its_connection(
    server: HostileServer, socket_run: Run
) -> None:
    def handler(*_: object) -> None:
        raise KeyboardInterrupt

    main, before = threading.main_thread().ident, signal.signal(signal.SIGUSR1, handler)
    assert main is not None
    try:
        server.spoil(
            lambda whole: Sent([whole[:30], whole[30:]], between=lambda: signal.pthread_kill(main, signal.SIGUSR1))
        )
        with pytest.raises(KeyboardInterrupt):
            socket_run.authorize()
    finally:
        signal.signal(signal.SIGUSR1, before)
    take_again = socket_run.authorize()
    assert (take_again.first_step, server.ledger.next_step) == (0, 1)
    take(socket_run, server)
    first, second, third = ports(server.asked)
    assert first != second == third


def test_steps_over_tls_trust_certificates_of_ssl_cert_file_only(
    tmp_path: Path, open_client: OpenClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    with HostileServer(certificates=tmp_path) as server:
        refused = pytest.raises(httpx2.ConnectError, match="CERTIFICATE_VERIFY_FAILED")
        with open_client(server.url, KEY) as client, refused:
            exchange(client, step(0))
        monkeypatch.setenv("SSL_CERT_FILE", str(server.root))
        with open_client(server.url, KEY, max_attempts=1) as client:
            assert [first_step(exchange(client, step(number))) for number in (0, 1)] == [0, 1]
        with open_client(server.url.replace("127.0.0.1", "localhost"), KEY) as client, refused:
            exchange(client, step(2))
    assert len(set(ports(server.asked))) == 1


def test_refusal_of_a_request_that_was_not_sent_to_its_end_is_read() -> None:
    """A server may close the connection after it, before it has read the request."""
    ours, theirs = socket.socketpair()
    with theirs:
        theirs.sendall(b"HTTP/1.1 413 Content Too Large\r\ncontent-length: 0\r\n\r\n")
        ours.shutdown(socket.SHUT_WR)
        connection = step_connections._Connection(ours, 5.0)
        answer, keeps_alive = connection.exchange(b"POST", "")
        connection.close()
    assert (answer.status, keeps_alive) == (413, False)


def test_proxies_workloads_and_given_transports_have_no_connections_beside(
    server: HostileServer, open_client: OpenClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    with open_client(server.url, KEY) as client:
        network = httpx2.AsyncHTTPTransport if isinstance(client, Driven) else httpx2.HTTPTransport
    for given in ({"transport": network()}, {"api_key": None, "token_provider": lambda: "token"}):
        with open_client(server.url, **{"api_key": KEY} | given) as client:
            assert client._transport._steps is None
    for name in ("NO_PROXY", "FTP_PROXY"):  # neither makes a proxy of it
        monkeypatch.setenv(name, "127.0.0.2")
    with open_client(server.url, KEY) as client:
        assert client._transport._steps is not None
    monkeypatch.setenv("HTTP_PROXY", server.url)
    with open_client("http://ledger.test", KEY, max_attempts=1) as client:
        take(client.get_run(RUN_ID), server)
    assert [each.line for each in server.asked] == [f"POST http://ledger.test/v1/runs/{RUN_ID}/steps HTTP/1.1"]
