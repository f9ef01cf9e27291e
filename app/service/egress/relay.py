"""Bounded connections for libraries that need a socket."""

import asyncio
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, closing, suppress

from app.service.egress.connection import PIECE, Connection


@asynccontextmanager
async def relayed(connection: Connection) -> AsyncIterator[socket.socket]:
    """Yield a socket whose other end is a connection; the user closes the socket.

    Raises:
        OSError: the connection broke, or exceeded a bound, instead of what followed from it in the block.
    """
    ours, theirs = socket.socketpair()
    for end in (ours, theirs):
        end.setblocking(False)  # noqa: FBT003 - as the standard library names it
    with closing(ours):
        pulling = asyncio.create_task(_pull(connection, ours))
        pushing = asyncio.create_task(_push(connection, ours))
        try:
            yield theirs
        except Exception as error:
            broken = pulling.exception() if pulling.done() and not pulling.cancelled() else None
            if broken is not None:
                raise broken from error
            raise
        finally:
            for task in (pulling, pushing):
                task.cancel()
            await asyncio.gather(pulling, pushing, return_exceptions=True)


async def _pull(connection: Connection, end: socket.socket) -> None:
    """Pass on what the server sends."""
    try:
        while piece := await connection.receive():
            await asyncio.get_running_loop().sock_sendall(end, piece)
    finally:
        with suppress(OSError):  # the user has closed the other end
            end.shutdown(socket.SHUT_WR)


async def _push(connection: Connection, end: socket.socket) -> None:
    """Pass on what the user sends."""
    while piece := await asyncio.get_running_loop().sock_recv(end, PIECE):
        await connection.send(piece)
