"""Listening on a port."""

import errno
import socket

import uvicorn


class PortError(Exception):
    """The service cannot listen where it should; the message is a sentence."""


def port_to_take(host: str, port: int) -> int:
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


def listen(host: str, port: int, workers: int) -> None:
    """Serve until the process is told to stop.

    Args:
        host: the address to listen on.
        port: the port.
        workers: how many processes share it; each makes its own application.
    """
    # uvloop and httptools are named, not left to chance: without uvloop every kept-alive request to one of
    # several workers takes 44 ms longer, and a missing one is an error at start.
    uvicorn.run(
        "app.main:application",
        factory=True,
        workers=workers,
        host=host,
        port=port,
        loop="uvloop",
        http="httptools",
        log_level="warning",
        server_header=False,  # nobody need know what to look for
        access_log=False,  # at this level it says nothing, yet each line of it would be put together
    )
