"""Answers to steps that a server cuts, splits, delays or writes otherwise: each step is charged once."""

import gzip
import threading
from time import monotonic

import httpx2
import pytest

from epsilon_ledger import LedgerUnavailableError, Run
from epsilon_ledger._net import step_pool
from tests.sdk.both_clients import OpenClient
from tests.sdk.fake_ledger import RUN_ID
from tests.sdk.hostile_server import HostileServer, Sent, Spoiler, ports, take
from tests.sdk.wire import KEY

pytestmark = pytest.mark.usefixtures("no_proxies")


def test_answer_cut_at_any_byte_is_asked_for_again(server: HostileServer, socket_run: Run) -> None:
    for at in range(400):
        server.asked.clear()
        server.spoil(lambda whole, at=at: Sent([whole[: at % len(whole)]], closes=True))  # type: ignore[misc]
        take(socket_run, server)
        first, second = server.asked
        assert first.headers["idempotency-key"] == second.headers["idempotency-key"]
        assert first.port != second.port
        assert not second.is_by_httpx2


def test_answer_that_arrives_byte_by_byte_is_read(server: HostileServer, socket_run: Run) -> None:
    server.spoil(lambda whole: Sent([whole[at : at + 1] for at in range(len(whole))]))
    take(socket_run, server)
    take(socket_run, server)
    assert len(set(ports(server.asked))) == 1


SPOILED: dict[str, Spoiler] = {
    "another answer after it": lambda whole: Sent([whole + whole]),
    "an error after it": lambda whole: Sent([whole + b"HTTP/1.1 408 Request Timeout\r\nconnection: close\r\n\r\n"]),
    "a byte after it": lambda whole: Sent([whole + b"\0"]),
    "an announced end": lambda whole: Sent([whole.replace(b"\r\n", b"\r\nConnection: close\r\n", 1)], closes=True),
}


@pytest.mark.parametrize("name", SPOILED)
def test_connection_is_not_used_again_after_an_answer_with(server: HostileServer, socket_run: Run, name: str) -> None:
    server.spoil(SPOILED[name])
    take(socket_run, server)
    take(socket_run, server)
    assert len(set(ports(server.asked))) == len(server.asked) == 2


def parts(whole: bytes) -> tuple[bytes, bytes]:
    """The head and the body of an answer; the head without its length and its last line."""
    head, _, body = whole.partition(b"\r\n\r\n")
    return b"\r\n".join(line for line in head.split(b"\r\n") if not line.startswith(b"content-length")), body


def chunked(whole: bytes) -> Sent:
    head, body = parts(whole)
    pieces = [b"%x\r\n%b\r\n" % (len(part), part) for part in (body[:10], body[10:])]
    return Sent([head + b"\r\ntransfer-encoding: chunked\r\n\r\n", *pieces, b"0\r\n\r\n"])


def compressed(whole: bytes) -> Sent:
    head, body = parts(whole)
    packed = gzip.compress(body)
    return Sent([head + b"\r\ncontent-encoding: gzip\r\ncontent-length: %d\r\n\r\n%b" % (len(packed), packed)])


def until_the_end(whole: bytes) -> Sent:
    head, body = parts(whole)
    return Sent([head.replace(b"HTTP/1.1", b"HTTP/1.0") + b"\r\n\r\n" + body], closes=True)


def long_head(whole: bytes) -> Sent:
    return Sent([whole.replace(b"\r\n", b"\r\nx-long: %b\r\n" % (b"x" * 20_000), 1)])


ODD: dict[str, Spoiler] = {
    "chunks": chunked,
    "gzip": compressed,
    "HTTP/1.0": until_the_end,
    "a long head": long_head,
    "100-continue": lambda whole: Sent([b"HTTP/1.1 100 Continue\r\n\r\n", whole]),
}


@pytest.mark.parametrize("name", ODD)
def test_odd_answer_is_read_by_httpx2_which_sends_the_next_steps(
    name: str, server: HostileServer, open_client: OpenClient
) -> None:
    """Even by a client that tries once: the repetition belongs to the same try."""
    with open_client(server.url, KEY, max_attempts=1) as client:
        run = client.get_run(RUN_ID)
        server.spoil(*[ODD[name]] * 4)
        for _ in range(3):
            take(run, server)
    assert [each.is_by_httpx2 for each in server.asked] == [False, True, True, True]
    assert len({each.headers["idempotency-key"] for each in server.asked}) == 3


def test_steps_leave_httpx2_again_some_time_after_an_odd_answer(
    server: HostileServer, socket_run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A proxy's page about an outage may have been odd."""
    server.spoil(chunked)
    take(socket_run, server)
    take(socket_run, server)
    monkeypatch.setattr(step_pool, "monotonic", lambda: monotonic() + 600.0)
    take(socket_run, server)
    assert [each.is_by_httpx2 for each in server.asked] == [False, True, True, False]


def test_step_is_in_doubt_if_httpx2_cannot_connect_after_an_odd_answer(
    server: HostileServer, open_client: OpenClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    with open_client(server.url, KEY, max_attempts=1) as client:
        run = client.get_run(RUN_ID)

        def refuse(request: httpx2.Request) -> httpx2.Response:
            raise httpx2.ConnectError("refused", request=request)

        server.spoil(chunked)
        with monkeypatch.context() as patch:
            patch.setattr(client._transport, "_http", httpx2.MockTransport(refuse))
            with pytest.raises(LedgerUnavailableError, match="ConnectError: refused") as failed:
                run.authorize()
        assert failed.value.in_doubt


def test_answer_that_drips_ends_with_the_time(server: HostileServer, open_client: OpenClient) -> None:
    gone = threading.Event()
    with open_client(server.url, KEY, timeout=0.1, max_attempts=1) as client:
        run = client.get_run(RUN_ID)
        server.spoil(lambda whole: Sent([whole[:20], *[b"x"] * 10_000], between=lambda: gone.wait(0.01)))
        began = monotonic()
        with pytest.raises(LedgerUnavailableError, match="ReadTimeout: timed out") as failed:
            run.authorize()
        assert failed.value.in_doubt
        assert 0.1 <= monotonic() - began < 2
        take_again = run.authorize()
        assert (take_again.first_step, server.ledger.next_step) == (0, 1)
