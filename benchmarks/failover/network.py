"""Hosts of their own on one machine: network namespaces on a bridge, which can be cut off."""

import os
import shutil
import signal
import subprocess
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import IO, Final

BRIDGE: Final = "elha"
NETWORK: Final = "10.231.77.0/24"
GATEWAY: Final = "10.231.77.1"
"""Address of the machine itself, where the trainers are."""

_PEERS: Final = "isolated"
"""Chain of packet filter rules that cut a host off from others."""


class NamespacesMissingError(Exception):
    """Network namespaces cannot be made here."""


@dataclass(frozen=True)
class Host:
    """A network namespace with one address.

    Args:
        name: of the host.
        address: in the trial's network.
    """

    name: str
    address: str

    @property
    def namespace(self) -> str:
        """Name of its namespace."""
        return f"{BRIDGE}-{self.name}"

    @property
    def port(self) -> str:
        """The bridge's end of its cable."""
        return f"{BRIDGE}{self.address.rpartition('.')[2]}"

    def command(self, arguments: Sequence[str], user: str | None = None) -> list[str]:
        """Build a command line that runs here, as root or as an ordinary user."""
        other = [] if user is None else ["setpriv", f"--reuid={user}", f"--regid={user}", "--init-groups"]
        return ["ip", "netns", "exec", self.namespace, *other, *arguments]

    def start(
        self, *arguments: str, log: IO[bytes], user: str | None = None, environment: dict[str, str] | None = None
    ) -> "subprocess.Popen[bytes]":
        """Start a process here."""
        return subprocess.Popen(
            self.command(arguments, user),
            stdout=log,
            stderr=log,
            stdin=subprocess.DEVNULL,
            cwd="/",
            env={name: value for name, value in os.environ.items() if not name.startswith("PG")} | (environment or {}),
            start_new_session=True,
        )

    def processes(self) -> list[int]:
        """List the processes that run here."""
        return [int(each) for each in _run("ip", "netns", "pids", self.namespace).split()]

    def kill(self) -> None:
        """End every process here at once, as a power cut would."""
        while running := self.processes():
            for process in running:
                with suppress(ProcessLookupError):
                    os.kill(process, signal.SIGKILL)

    def unplug(self) -> None:
        """Cut it off from everything."""
        _run("ip", "link", "set", self.port, "down")

    def cut_off(self, others: Sequence["Host"]) -> None:
        """Cut it off from some hosts; the others still reach it."""
        for other in others:
            self._filter("-A", _PEERS, "-s", other.address, "-j", "DROP")
            self._filter("-A", _PEERS, "-d", other.address, "-j", "DROP")

    def reconnect(self) -> None:
        """Undo `unplug` and `cut_off`."""
        _run("ip", "link", "set", self.port, "up")
        self._filter("-F", _PEERS)

    def _filter(self, *rule: str) -> None:
        _run(*self.command(["iptables", "--wait", *rule]))

    def create(self) -> None:
        """Make the namespace, and connect it to the bridge."""
        _run("ip", "netns", "add", self.namespace)
        _run("ip", "link", "add", self.port, "type", "veth", "peer", "name", "eth0", "netns", self.namespace)
        _run("ip", "link", "set", self.port, "master", BRIDGE, "up")
        _run("ip", "-n", self.namespace, "addr", "add", f"{self.address}/24", "dev", "eth0")
        for device in ("eth0", "lo"):
            _run("ip", "-n", self.namespace, "link", "set", device, "up")
        self._filter("-N", _PEERS)
        self._filter("-A", "INPUT", "-j", _PEERS)
        self._filter("-A", "OUTPUT", "-j", _PEERS)

    def remove(self) -> None:
        """End its processes and delete the namespace."""
        with suppress(subprocess.CalledProcessError):
            self.kill()
        _tried("ip", "netns", "del", self.namespace)
        _tried("ip", "link", "del", self.port)


@contextmanager
def network(hosts: Sequence[Host]) -> Iterator[None]:
    """Connect hosts by a bridge for the block.

    Raises:
        NamespacesMissingError: this needs Linux, root and the tools of iproute2 and iptables.
    """
    missing = [tool for tool in ("ip", "iptables", "setpriv") if shutil.which(tool) is None]
    if missing or os.geteuid() != 0:
        raise NamespacesMissingError(f"network namespaces need root; missing: {', '.join(missing) or 'root'}")
    _clean(hosts)
    try:
        try:
            _run("ip", "link", "add", BRIDGE, "type", "bridge")
            _run("ip", "addr", "add", f"{GATEWAY}/24", "dev", BRIDGE)
            _run("ip", "link", "set", BRIDGE, "up")
            for host in hosts:
                host.create()
        except subprocess.CalledProcessError as error:
            raise NamespacesMissingError(f"{' '.join(error.cmd)}: {error.stderr.strip()}") from error
        yield
    finally:
        _clean(hosts)


def _clean(hosts: Sequence[Host]) -> None:
    for host in hosts:
        host.remove()
    _tried("ip", "link", "del", BRIDGE)


def _run(*command: str) -> str:
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout


def _tried(*command: str) -> None:
    subprocess.run(command, check=False, capture_output=True)
