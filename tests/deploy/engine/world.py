"""The world outside of the engine's machine: a public and a private address that listen."""

import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

from tests.deploy.engine.daemon import run

PUBLIC: Final = "203.0.113.2"
PRIVATE: Final = "10.231.78.2"
PORTS: Final = (80, 443, 5432, 6443)
PROBE: Final = "import socket, sys; socket.create_connection((sys.argv[1], int(sys.argv[2])), timeout=2)"
"""A program for `python -c` that fails unless it reaches an address and a port."""

_LISTEN: Final = f"""
import selectors, socket
waiting = selectors.DefaultSelector()
for port in {PORTS}:
    waiting.register(socket.create_server(("", port)), selectors.EVENT_READ)
print("listening", flush=True)
while True:
    for key, _ in waiting.select():
        key.fileobj.accept()[0].close()
"""


@contextmanager
def world() -> Iterator[None]:
    """Connect the outer world for the block."""
    listener = subprocess.Popen(["unshare", "--net", sys.executable, "-c", _LISTEN], stdout=subprocess.PIPE, text=True)
    assert listener.stdout is not None
    assert listener.stdout.readline() == "listening\n"
    there = ["nsenter", f"--target={listener.pid}", "--net", "ip"]
    try:
        run(["ip", "link", "add", "world", "type", "veth", "peer", "name", "machine", "netns", str(listener.pid)])
        for ip, device, own in ((["ip"], "world", "1"), (there, "machine", "2")):
            for address in (PUBLIC, PRIVATE):
                run([*ip, "address", "add", f"{address.rpartition('.')[0]}.{own}/24", "dev", device])
            run([*ip, "link", "set", device, "up"])
        run([*there, "route", "add", "default", "via", f"{PUBLIC.rpartition('.')[0]}.1"])
        yield
    finally:
        listener.kill()
        listener.wait()
