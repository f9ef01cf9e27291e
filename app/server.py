"""Listening on a port, and leaving it without leaving anybody waiting."""

import asyncio
import errno
import logging
import os
import socket
import sys
import threading
from collections.abc import Sequence
from contextlib import ExitStack
from signal import SIGINT, SIGTERM, signal
from tempfile import TemporaryDirectory
from time import monotonic
from typing import Final

import uvicorn
from prometheus_client.multiprocess import mark_process_dead
from uvicorn.config import STARTUP_FAILURE
from uvicorn.supervisors import multiprocess

from app.connections import BoundedConfig, BoundedConnection, Limits, connections_within, sweep
from app.gc_control import gc_frozen
from app.logging_config import log_config
from app.service.background import STOPPING
from app.service.monitoring.exposition import SHARED_FOLDER
from app.settings import Settings

QUIET_SECONDS: Final = 1.0
"""Who keeps a connection and has asked nothing for so long is not about to ask."""

LAST_SECONDS: Final = 5.0
"""What a process that gave up waiting may still take to end; then it is ended."""

STARTING_SECONDS: Final = 30
"""A worker that does not answer for so long is hung: less, and a busy machine would never see one start."""

_logger = logging.getLogger(__name__)


class PortError(Exception):
    """The service cannot listen where it should; the message is a sentence."""


def check_port(host: str, port: int) -> int:
    """Look whether a port can be listened on, before anybody is told that it is.

    Args:
        host: the address.
        port: 0 for any that is free.

    Returns:
        The port, which is free at this moment.

    Raises:
        PortError: it is in use, or not ours to take.
    """
    with socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # as the server will
        try:
            probe.bind((host, port))
        except OSError as error:
            if error.errno == errno.EADDRINUSE:
                raise PortError(
                    f"{host} port {port} is in use already; stop what listens there, or name another --port."
                ) from None
            raise PortError(f"Cannot listen on {host} port {port}: {error.strerror}.") from None
        free: int = probe.getsockname()[1]
        return free


def serve(host: str, port: int, workers: int) -> None:
    """Serve until the process is told to stop, and whoever has asked is answered.

    Args:
        host: the address to listen on.
        port: the port.
        workers: how many processes share it; each makes its own application.
    """
    # uvloop and httptools are named, not left to chance: without uvloop every kept-alive request to one of
    # several workers takes 44 ms longer, and a missing one is an error at start.
    settings = Settings()
    config = BoundedConfig(
        "app.main:application",
        factory=True,
        workers=workers,
        host=host,
        port=port,
        loop="uvloop",
        http=BoundedConnection,  # of httptools
        ws="none",  # a connection that is upgraded would be bounded by nothing
        log_config=log_config(settings.log_format, settings.log_level, requests=settings.log_requests),
        log_level=settings.log_level,
        server_header=False,  # nobody need know what to look for
        access_log=False,  # it names paths, and what stands in them; app/api/request_metrics.py has lines of requests
        timeout_worker_healthcheck=STARTING_SECONDS,
    )
    config.limits = Limits(
        settings.request_head_seconds, settings.request_body_seconds, connections_within(settings.max_connections)
    )
    if workers == 1:
        server = _Server(config)
        server.run()
        if not server.started and not server.should_exit:  # it has said why
            sys.exit(STARTUP_FAILURE)
        return
    with ExitStack() as stack:
        if SHARED_FOLDER not in os.environ:
            folder = stack.enter_context(TemporaryDirectory(prefix="epsilon-ledger-metrics-"))
            os.environ[SHARED_FOLDER] = folder  # before any worker begins to count
            stack.callback(os.environ.pop, SHARED_FOLDER)
        multiprocess.Process = _WorkerProcess  # type: ignore[misc] # the supervisor makes them by this name alone
        _WorkerSupervisor(config, [config.bind_socket()]).run()


class _Server(uvicorn.Server):
    """A server that says good-bye before it closes its connections.

    uvicorn's own closes those that are idle at once: a request that was on its way is lost, and nobody answers it. Here
    every answer says `Connection: close` from the signal on, who has asked meanwhile is answered, and a connection is
    closed once it is quiet.
    """

    def run(self, sockets: list[socket.socket] | None = None) -> None:
        """Serve; a signal to stop is an order that was carried out, and no failure."""
        for each in (SIGTERM, SIGINT):
            signal(each, self._leave)
        with gc_frozen():
            self.config.load()
        if not self.should_exit:
            super().run(sockets)

    def _leave(self, *_: object) -> None:
        """Heed a signal that comes while the application loads; uvicorn sends it once more when it has ended."""
        self.should_exit = True

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Listen, and close the connections that take too long."""
        await super().startup(sockets)
        self._sweeping = asyncio.create_task(sweep(self.server_state))

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Answer who has asked, refuse who comes, and end within the time that is set."""
        settings = Settings()
        ends_at = monotonic() + settings.shutdown_delay_seconds + settings.shutdown_seconds
        _end_by(ends_at + LAST_SECONDS)
        self.lifespan.state[STOPPING] = True
        self.server_state.default_headers = [*self.server_state.default_headers, (b"connection", b"close")]
        for connection in list(self.server_state.connections):
            if connection.cycle is not None and not connection.cycle.response_complete:  # type: ignore[union-attr]
                connection.shutdown()  # after the answer that is being made
        await asyncio.sleep(settings.shutdown_delay_seconds)
        await self._refuse(sockets or [])
        await self._hear_out(ends_at)
        self.config.timeout_graceful_shutdown = max(1, round(ends_at - monotonic()))
        await super().shutdown(sockets)

    async def _refuse(self, sockets: Sequence[socket.socket]) -> None:
        """Take no further connection; those that stand already are let in, as they may have asked."""
        connect = asyncio.get_running_loop().connect_accepted_socket
        listening = [each for server in self.servers for each in server.sockets]
        waiting = [one for each in listening for one in _waiting_at(each)]
        for server in self.servers:
            server.close()
        for each in sockets:
            each.close()
        for one in waiting:
            await connect(self._protocol, one)

    def _protocol(self) -> asyncio.Protocol:
        return self.config.http_protocol_class(  # type: ignore[call-arg]
            config=self.config, server_state=self.server_state, app_state=self.lifespan.state
        )

    async def _hear_out(self, ends_at: float) -> None:
        """Wait until nobody has asked for a while, or no connection is left."""
        answered, quiet_at = self.server_state.total_requests, monotonic()
        while self.server_state.connections and monotonic() < min(ends_at, quiet_at + QUIET_SECONDS):
            await asyncio.sleep(QUIET_SECONDS / 10)
            if self.server_state.tasks or self.server_state.total_requests != answered:
                answered, quiet_at = self.server_state.total_requests, monotonic()


class _WorkerProcess(multiprocess.Process):
    """One of several processes on a port."""

    @property
    def server(self) -> uvicorn.Server:
        """The server of this process."""
        if self._server is None:
            self._server = _Server(self.config)
        return self._server


class _WorkerSupervisor(multiprocess.Multiprocess):
    """The processes on a port, and who starts them anew."""

    def terminate_all(self) -> None:
        """Stop all of them; the port is left first, or who comes now would wait for an answer that nobody gives."""
        for each in self.sockets:
            each.close()
        super().terminate_all()

    def keep_subprocess_alive(self) -> None:
        """Start those anew that died; what they were doing is counted no longer, what they did still is."""
        before = {process.pid for process in self.processes}
        super().keep_subprocess_alive()
        for pid in before - {process.pid for process in self.processes}:
            mark_process_dead(pid)  # type: ignore[no-untyped-call]


def _waiting_at(listening: socket.socket) -> list[socket.socket]:
    """Connections that stand and that nobody has taken yet."""
    own = socket.socket(fileno=os.dup(listening.fileno()))  # what the event loop hands out cannot accept
    own.settimeout(0)
    found = []
    with own:
        while True:
            try:
                found.append(own.accept()[0])
            except ConnectionAbortedError:  # who came has left again
                continue
            except OSError:
                return found


def _end_by(moment: float) -> None:
    """End the process at a moment of the monotonic clock, whatever it waits for: what is committed is safe."""

    def end() -> None:
        _logger.error("What was begun did not end in time; the process is ended.")
        os._exit(1)

    timer = threading.Timer(moment - monotonic(), end)
    timer.daemon = True
    timer.start()
