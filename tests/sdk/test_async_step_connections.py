"""The asynchronous client's own connections for steps: what a cancellation or an event loop leaves of them.

`test_step_connections` has what both clients do.
"""

import asyncio
import socket
import threading

import httpx2
import pytest
import uvloop

from epsilon_ledger import AsyncLedgerClient
from epsilon_ledger._net import async_step_connections, step_connections
from tests.polling import await_true
from tests.sdk.both_clients import Driven, async_only
from tests.sdk.fake_ledger import RUN_ID
from tests.sdk.hostile_server import HostileServer, Sent, ports, take
from tests.sdk.wire import KEY

pytestmark = pytest.mark.usefixtures("no_proxies")

REFUSAL = b"HTTP/1.1 413 Content Too Large\r\ncontent-length: 0\r\n\r\n"
LONG = b"x" * 2**24
"""More than the buffers of a socket hold."""


@async_only
@pytest.mark.parametrize("fresh", [True, False])
def test_task_that_is_cancelled_anywhere_leaves_no_half_read_answer(
    server: HostileServer, socket_client: Driven, socket_run: Driven, *, fresh: bool
) -> None:
    async def cancel_after(turns: int) -> None:
        task = asyncio.ensure_future(socket_run.inner.authorize())
        for _ in range(turns):
            await asyncio.sleep(0)
        task.cancel()
        await asyncio.wait([task])

    for turns in range(20):
        if fresh:
            socket_client._transport._steps._close_idle()
        number = server.ledger.next_step
        server.spoil(lambda whole: Sent([whole[:-5], whole[-5:]]))
        socket_client.wait(cancel_after(turns))
        if socket_run.next_step == number:
            socket_run.authorize()
        assert socket_run.next_step == server.ledger.next_step == number + 1
        take(socket_run, server)


@async_only
def test_cancellation_while_waiting_for_the_rest_of_an_answer_drops_its_connection(
    server: HostileServer, socket_client: Driven, socket_run: Driven
) -> None:
    async def cancelled() -> None:
        task = asyncio.ensure_future(socket_run.inner.authorize())
        loop = asyncio.get_running_loop()
        server.spoil(
            lambda whole: Sent([whole[:30], whole[30:]], between=lambda: loop.call_soon_threadsafe(task.cancel))
        )
        with pytest.raises(asyncio.CancelledError):
            await task

    socket_client.wait(cancelled())
    take_again = socket_run.authorize()
    assert (take_again.first_step, server.ledger.next_step) == (0, 1)
    take(socket_run, server)
    first, second, third = ports(server.asked)
    assert first != second == third


@async_only
@pytest.mark.parametrize("end", ["words", "a closed connection"])
def test_event_loop_that_runs_between_two_steps_hears_of_their_end(
    server: HostileServer, socket_client: Driven, socket_run: Driven, end: str
) -> None:
    said = threading.Event()
    server.spoil(lambda whole: Sent([whole, whole], between=said.wait))
    take(socket_run, server)
    (idle,) = socket_client._transport._steps._idle
    if end == "words":
        said.set()
    else:
        server.hang_up()
    socket_client.wait(asyncio.to_thread(await_true, idle._transport.is_closing, pause=0.001))
    said.set()
    take(socket_run, server)
    assert len(set(ports(server.asked))) == len(server.asked) == 2


@async_only
def test_connection_of_another_event_loop_is_not_used(
    server: HostileServer, socket_client: Driven, socket_run: Driven
) -> None:
    take(socket_run, server)

    async def take_another() -> None:
        assert (await socket_run.inner.authorize()).first_step == server.ledger.next_step - 1
        await socket_client.inner.close()

    asyncio.run(take_another())
    assert len(set(ports(server.asked))) == 2


def test_steps_have_one_connection_on_another_kind_of_event_loop(server: HostileServer) -> None:
    with (
        asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner,
        Driven(AsyncLedgerClient(server.url, KEY), runner) as client,
    ):
        run = client.get_run(RUN_ID)
        for _ in range(3):
            take(run, server)
    assert len(set(ports(server.asked))) == 1
    assert not any(each.is_by_httpx2 for each in server.asked)


async def open_connection(ours: socket.socket, seconds: float) -> async_step_connections._Connection:
    loop = asyncio.get_running_loop()
    _, opened = await loop.create_connection(lambda: async_step_connections._Connection(loop, seconds), sock=ours)
    return opened


def test_refusal_of_a_request_that_is_still_being_sent_is_read() -> None:
    async def send() -> None:
        ours, theirs = socket.socketpair()
        with theirs:
            connection = await open_connection(ours, 5.0)
            asyncio.get_running_loop().call_soon(theirs.sendall, REFUSAL)
            answer, keeps_alive = await connection.exchange(LONG, "")
            connection.close()
        assert (answer.status, keeps_alive) == (413, False)

    asyncio.run(send())


def test_connection_that_ends_before_or_during_a_request_is_an_error_of_httpx2() -> None:
    async def send() -> None:
        (first, closed), (second, closing) = socket.socketpair(), socket.socketpair()
        ended, ending = await open_connection(first, 30.0), await open_connection(second, 30.0)
        closed.close()
        await asyncio.to_thread(await_true, ended._transport.is_closing, pause=0.001)
        with pytest.raises(httpx2.RemoteProtocolError, match="without sending a response"):
            await ended.exchange(b"POST", "")
        asyncio.get_running_loop().call_soon(closing.close)
        with pytest.raises(httpx2.ReadError, match=r"reset|Broken pipe"):
            await ending.exchange(LONG, "")

    asyncio.run(send())


def test_time_of_the_answer_begins_when_a_long_request_is_sent() -> None:
    async def send() -> None:
        ours, theirs = socket.socketpair()
        with theirs, theirs.makefile("rb") as arriving:
            connection = await open_connection(ours, 30.0)
            exchange = asyncio.ensure_future(connection.exchange(LONG, ""))
            await asyncio.sleep(0)
            sending = connection._timer
            assert sending is not None
            assert await asyncio.to_thread(arriving.read, len(LONG)) == LONG
            await asyncio.to_thread(await_true, sending.cancelled, pause=0.001)
            assert connection._timer is not None
            assert not connection._timer.cancelled()
            theirs.sendall(REFUSAL)
            answer, keeps_alive = await exchange
            connection.close()
        assert (answer.status, keeps_alive) == (413, True)

    asyncio.run(send())


def test_request_that_is_not_read_ends_with_the_time() -> None:
    async def send() -> None:
        (ours, theirs), (async_ours, async_theirs) = socket.socketpair(), socket.socketpair()
        with theirs, async_theirs:
            connection, other = step_connections._Connection(ours, 0.05), await open_connection(async_ours, 0.05)
            with pytest.raises(httpx2.WriteTimeout, match="timed out"):
                connection.exchange(LONG, "")
            with pytest.raises(httpx2.WriteTimeout, match="timed out"):
                await other.exchange(LONG, "")
            connection.close()
            other.close()

    asyncio.run(send())
