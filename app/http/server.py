"""HTTP server: worker processes, listening sockets and graceful shutdown."""

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

from app import gc_frozen
from app.configuration.settings import Settings
from app.http.connections import BoundedConfig, BoundedConnection, Limits, connections_within, sweep
from app.logging_config import log_config
from app.service.background import STOPPING
from app.service.monitoring.exposition import SHARED_FOLDER

QUIET_SECONDS: Final = 1.0
"""Time without requests after which the remaining connections count as idle."""

LAST_SECONDS: Final = 5.0
"""Grace period after the shutdown deadline before the process is killed."""

STARTING_SECONDS: Final = 30
"""Time after which an unresponsive worker counts as hung; long enough to start on a busy machine."""

_logger = logging.getLogger(__name__)


class PortError(Exception):
    """The service cannot listen on the port; the message is a sentence."""


def check_port(host: str, port: int) -> int:
    """Check that a port can be bound; return it, or a free one for 0.

    Raises:
        PortError: the port is in use, or binding is not permitted.
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
    """Serve until a stop signal, and finish the requests in progress."""
    # uvloop and httptools are named explicitly: without uvloop every kept-alive request to one of
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
        ws="none",  # an upgraded connection would have no limits
        log_config=log_config(settings.log_format, settings.log_level, requests=settings.log_requests),
        log_level=settings.log_level,
        server_header=False,  # do not disclose the software
        access_log=False,  # it logs full paths; app/api/middleware.py logs requests instead
        timeout_worker_healthcheck=STARTING_SECONDS,
    )
    config.limits = Limits(
        settings.request_head_seconds, settings.request_body_seconds, connections_within(settings.max_connections)
    )
    if workers == 1:
        server = _Server(config)
        server.run()
        if not server.started and not server.should_exit:  # uvicorn has logged the reason
            sys.exit(STARTUP_FAILURE)
        return
    with ExitStack() as stack:
        if SHARED_FOLDER not in os.environ:
            folder = stack.enter_context(TemporaryDirectory(prefix="epsilon-ledger-metrics-"))
            os.environ[SHARED_FOLDER] = folder  # before any worker creates metrics
            stack.callback(os.environ.pop, SHARED_FOLDER)
        multiprocess.Process = _WorkerProcess  # type: ignore[misc] # uvicorn's supervisor looks the class up by this name
        _WorkerSupervisor(config, [config.bind_socket()]).run()


class _Server(uvicorn.Server):
    """Server that announces the shutdown before it closes connections.

    uvicorn closes idle connections at once, which loses requests in flight. Here every response after the signal has
    `Connection: close`, requests that still arrive are answered, and a connection closes once it is quiet.
    """

    def run(self, sockets: list[socket.socket] | None = None) -> None:
        """Serve; a stop signal is no failure."""
        for each in (SIGTERM, SIGINT):
            signal(each, self._leave)
        with gc_frozen():
            self.config.load()
        if not self.should_exit:
            super().run(sockets)

    def _leave(self, *_: object) -> None:
        """Stop on a signal during loading; uvicorn raises it again at its end."""
        self.should_exit = True

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Listen, and start closing connections past their deadlines."""
        await super().startup(sockets)
        self._sweeping = asyncio.create_task(sweep(self.server_state))

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Finish requests in progress, refuse connections, and end within the configured time."""
        settings = Settings()
        ends_at = monotonic() + settings.shutdown_delay_seconds + settings.shutdown_seconds
        _end_by(ends_at + LAST_SECONDS)
        self.lifespan.state[STOPPING] = True
        self.server_state.default_headers = [*self.server_state.default_headers, (b"connection", b"close")]
        for connection in list(self.server_state.connections):
            if _is_answering(connection):
                connection.shutdown()  # after its current response
        await asyncio.sleep(settings.shutdown_delay_seconds)
        await self._refuse(sockets or [])
        await self._hear_out(ends_at)
        self.config.timeout_graceful_shutdown = max(1, round(ends_at - monotonic()))
        await super().shutdown(sockets)

    async def _refuse(self, sockets: Sequence[socket.socket]) -> None:
        """Stop accepting; take over established connections, which may carry requests."""
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
        """Wait until no request arrives for `QUIET_SECONDS` or no connection is left."""
        answered, quiet_at = self.server_state.total_requests, monotonic()
        while self.server_state.connections and monotonic() < min(ends_at, quiet_at + QUIET_SECONDS):
            await asyncio.sleep(QUIET_SECONDS / 10)
            answering = self.server_state.tasks or any(map(_is_answering, self.server_state.connections))
            if answering or self.server_state.total_requests != answered:
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
    """Supervisor that starts and restarts the processes on a port."""

    def terminate_all(self) -> None:
        """Stop all processes; close the port first, so that no new connection waits in vain."""
        for each in self.sockets:
            each.close()
        super().terminate_all()

    def keep_subprocess_alive(self) -> None:
        """Restart processes that died, and drop their live gauges from the metrics."""
        before = {process.pid for process in self.processes}
        super().keep_subprocess_alive()
        for pid in before - {process.pid for process in self.processes}:
            mark_process_dead(pid)  # type: ignore[no-untyped-call]


def _is_answering(connection: asyncio.Protocol) -> bool:
    """Return whether a connection has an unanswered request."""
    assert isinstance(connection, BoundedConnection)
    return connection.cycle is not None and not connection.cycle.response_complete


def _waiting_at(listening: socket.socket) -> list[socket.socket]:
    """Accept the connections in a socket's backlog."""
    own = socket.socket(fileno=os.dup(listening.fileno()))  # the event loop's transport socket cannot accept
    own.settimeout(0)
    found = []
    with own:
        while True:
            try:
                found.append(own.accept()[0])
            except ConnectionAbortedError:  # the client has disconnected
                continue
            except OSError:
                return found


def _end_by(moment: float) -> None:
    """End the process at a time of the monotonic clock; committed data is safe."""

    def end() -> None:
        _logger.error("Background tasks did not stop in time; the process exits.")
        os._exit(1)

    timer = threading.Timer(moment - monotonic(), end)
    timer.daemon = True
    timer.start()
