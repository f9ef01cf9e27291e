"""Run modules as `python -m` does, without the seconds of their imports.

A process that has imported the service forks for each of them. Each is still a process of its own, with arguments,
environment, folder, streams, signals and an exit status.
"""

import atexit
import gc
import json
import os
import runpy
import select
import signal
import socket
import subprocess
import sys
import tempfile
from contextlib import suppress
from functools import cache
from importlib import import_module
from pathlib import Path
from typing import IO, Final, NamedTuple

ROOT: Final = Path(__file__).parents[1]
MOST_BYTES: Final = 1 << 20
NUMBER_BYTES: Final = 4

COMMAND = """#!{python} -IS
import json, os, signal, socket, sys
with socket.socket(socket.AF_UNIX) as there:
    there.connect({path!r})
    asked = ['app', sys.argv[1:], dict(os.environ), os.getcwd(), False]
    socket.send_fds(there, [json.dumps(asked).encode()], [0, 1, 2])
    there.shutdown(socket.SHUT_WR)
    forked = int.from_bytes(there.recv(4), "big")
    for each in (signal.SIGINT, signal.SIGTERM):
        signal.signal(each, lambda number, _: os.kill(forked, number))
    status = int.from_bytes(there.recv(4), "big", signed=True)
    sys.exit(status if status >= 0 else 128 - status)
"""
"""A program that stands for `epsilon-ledger`: it hands its arguments, environment, folder and streams on."""


class ForkServer:
    """The process that forks, which ends with this one.

    Args:
        imported: modules that it imports before.
        environment: of the imports, beside this process's own.
    """

    def __init__(self, *imported: str, environment: dict[str, str] | None = None) -> None:
        self._folder = tempfile.TemporaryDirectory(prefix="fork-")
        self.path = str(Path(self._folder.name) / "socket")
        with socket.socket(socket.AF_UNIX) as listening:
            listening.bind(self.path)
            listening.listen()
            self._process = subprocess.Popen(
                [sys.executable, "-m", "tests.fork_server", str(listening.fileno()), *imported],
                cwd=ROOT,
                env=os.environ | {"OMP_NUM_THREADS": "1"} | (environment or {}),
                stdin=subprocess.PIPE,
                pass_fds=[listening.fileno()],
            )
        atexit.register(self.close)

    def close(self) -> None:
        """End it; what it forked goes on."""
        self._process.kill()
        self._process.communicate()
        self._folder.cleanup()

    def write_environment(self, folder: Path) -> Path:
        """Write an environment like the one that Python runs in, where `epsilon-ledger` is forked.

        Returns:
            The folder of its programs.
        """
        programs = folder / "bin"
        programs.mkdir(parents=True)
        for there in (Path(sys.prefix), Path(sys.prefix) / "bin"):
            for each in there.iterdir():
                if each.name not in {"bin", "epsilon-ledger"}:
                    (folder / each.relative_to(sys.prefix)).symlink_to(each)
        command = programs / "epsilon-ledger"
        command.write_text(COMMAND.format(python=sys.executable, path=self.path))
        command.chmod(0o755)
        return programs


@cache
def service_server() -> ForkServer:
    """The one that has imported the service and its client."""
    return ForkServer("app.cli", "app.main", "epsilon_ledger")


class ForkedProcess:
    """What `subprocess.Popen` would be for `python -m module`.

    Args:
        server: forks it.
        module: to run.
        arguments: of the module.
        environment: all of it.
        output: a file for the standard output, and for errors if `errors` is None.
        errors: a file for errors.
        new_session: whether the process leads a session of its own.
    """

    def __init__(
        self,
        server: ForkServer,
        module: str,
        *arguments: str,
        environment: dict[str, str],
        output: IO[bytes],
        errors: IO[bytes] | None = None,
        new_session: bool = False,
    ) -> None:
        self.args = [module, *arguments]
        self.returncode: int | None = None
        self._told = socket.socket(socket.AF_UNIX)
        self._told.connect(server.path)
        asked = json.dumps([module, arguments, environment, os.getcwd(), new_session])  # noqa: PTH109 - as a child does
        with Path(os.devnull).open("rb") as nothing:
            streams = [nothing.fileno(), output.fileno(), (errors or output).fileno()]
            socket.send_fds(self._told, [asked.encode()], streams)
        self._told.shutdown(socket.SHUT_WR)
        self.pid = _number(self._told.recv(NUMBER_BYTES))

    def poll(self) -> int | None:
        """The exit status, if the process has ended; negative: of the signal that ended it."""
        if self.returncode is None and select.select([self._told], [], [], 0)[0]:
            self._end()
        return self.returncode

    def wait(self, timeout: float | None = None) -> int:
        """Wait for the end of the process, and return its status.

        Raises:
            subprocess.TimeoutExpired: it takes longer.
        """
        if self.returncode is None:
            if not select.select([self._told], [], [], timeout)[0]:
                raise subprocess.TimeoutExpired(self.args, timeout or 0.0)
            self._end()
        assert self.returncode is not None
        return self.returncode

    def send_signal(self, number: int) -> None:
        """Send a signal, unless the process has ended."""
        if self.poll() is None:
            os.kill(self.pid, number)

    def terminate(self) -> None:
        """Ask the process to end."""
        self.send_signal(signal.SIGTERM)

    def kill(self) -> None:
        """End the process."""
        self.send_signal(signal.SIGKILL)

    def _end(self) -> None:
        self.returncode = _number(self._told.recv(NUMBER_BYTES))
        self._told.close()


def run(
    module: str, *arguments: str, environment: dict[str, str], timeout: float, server: ForkServer | None = None
) -> subprocess.CompletedProcess[str]:
    """Run a module to its end.

    Args:
        module: to run.
        arguments: of the module.
        environment: all of it.
        timeout: in seconds.
        server: forks it; by default the one that has imported the service.

    Raises:
        subprocess.TimeoutExpired: it takes longer.
    """
    with tempfile.TemporaryFile() as output, tempfile.TemporaryFile() as errors:
        process = ForkedProcess(
            server or service_server(), module, *arguments, environment=environment, output=output, errors=errors
        )
        try:
            status = process.wait(timeout)
        except subprocess.TimeoutExpired:
            process.kill()
            raise
        said = []
        for file in (output, errors):
            file.seek(0)
            said.append(file.read().decode())
    return subprocess.CompletedProcess(process.args, status, *said)


def _number(answer: bytes) -> int:
    return int.from_bytes(answer, "big", signed=True)


class _Asked(NamedTuple):
    """What runs in a fork."""

    module: str
    arguments: list[str]
    environment: dict[str, str]
    folder: str
    new_session: bool

    def prepare(self, streams: list[int]) -> None:
        """Make this process, just forked, like a new one."""
        if self.new_session:
            os.setsid()
        for number, stream in enumerate(streams):
            os.dup2(stream, number)
            os.close(stream)
        os.chdir(self.folder)
        os.environ.clear()
        os.environ.update(self.environment)
        sys.argv[1:] = self.arguments


def _await_and_fork(listening: socket.socket) -> _Asked | None:
    """Fork whenever a module is asked for, and tell the status of each fork that ended.

    Returns:
        In a fork, what to run; in this process None, once nobody holds its standard input any more.
    """
    woken, waking = os.pipe()
    os.set_blocking(waking, False)
    signal.set_wakeup_fd(waking)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    asking: dict[int, socket.socket] = {}
    while True:
        ready, _, _ = select.select([sys.stdin, listening, woken], [], [])
        if woken in ready:
            os.read(woken, MOST_BYTES)
            _tell_ends(asking)
        if sys.stdin in ready:
            return None
        if listening in ready:
            there, _ = listening.accept()
            first, streams, _, _ = socket.recv_fds(there, MOST_BYTES, 3)
            while more := there.recv(MOST_BYTES):
                first += more
            child = os.fork()
            if child == 0:
                signal.set_wakeup_fd(-1)
                signal.signal(signal.SIGCHLD, signal.SIG_DFL)
                for own in (listening, there, *asking.values()):
                    own.close()
                for pipe in (woken, waking):
                    os.close(pipe)
                asked = _Asked(*json.loads(first))
                asked.prepare(streams)
                return asked
            for stream in streams:
                os.close(stream)
            asking[child] = there
            there.sendall(child.to_bytes(NUMBER_BYTES, "big"))


def _tell_ends(asking: dict[int, socket.socket]) -> None:
    while asking:
        ended, status = os.waitpid(-1, os.WNOHANG)
        if not ended:
            return
        with asking.pop(ended) as there, suppress(OSError):  # who asked may have gone
            there.sendall(os.waitstatus_to_exitcode(status).to_bytes(NUMBER_BYTES, "big", signed=True))


def main() -> None:
    """Import, fork, and in a fork run what was asked for."""
    gc.disable()
    for name in sys.argv[2:]:
        import_module(name)
    gc.freeze()
    gc.enable()
    asked = _await_and_fork(socket.socket(fileno=int(sys.argv[1])))
    if asked is not None:
        runpy.run_module(asked.module, run_name="__main__", alter_sys=True)


if __name__ == "__main__":
    main()
