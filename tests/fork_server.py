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
import threading
from contextlib import suppress
from functools import cache
from importlib import import_module
from pathlib import Path
from typing import IO, Final

ROOT: Final = Path(__file__).parents[1]
MOST_BYTES: Final = 1 << 20

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
    """The process that forks, and ends with this one; what it forked goes on.

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
        """End it."""
        self._process.kill()
        self._process.communicate()
        self._folder.cleanup()

    def write_environment(self, folder: Path) -> Path:
        """Write an environment like this one, where `epsilon-ledger` is forked; return the folder of its programs."""
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
    """What `subprocess.Popen` would be for `python -m module`; `output` has its errors, too, unless others do."""

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
        self.pid = _number(self._told)

    def poll(self) -> int | None:
        """The exit status, if the process has ended; negative: of the signal that ended it."""
        with suppress(subprocess.TimeoutExpired):
            self.wait(0)
        return self.returncode

    def wait(self, timeout: float | None = None) -> int:
        """Wait for the end of the process, and return its status.

        Raises:
            subprocess.TimeoutExpired: it takes longer.
        """
        if self.returncode is None:
            if not select.select([self._told], [], [], timeout)[0]:
                raise subprocess.TimeoutExpired(self.args, timeout or 0.0)
            self.returncode = _number(self._told)
            self._told.close()
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


def _number(told: socket.socket) -> int:
    return int.from_bytes(told.recv(4), "big", signed=True)


def _tell(there: socket.socket, number: int) -> None:
    with suppress(OSError):  # who asked may have gone
        there.sendall(number.to_bytes(4, "big", signed=True))


def _accept(listening: socket.socket) -> socket.socket | None:
    """Accept a connection in a fork; in this process None, once nobody holds its standard input any more."""
    while sys.stdin not in select.select([sys.stdin, listening], [], [])[0]:
        there, _ = listening.accept()
        with suppress(ChildProcessError):
            while os.waitpid(-1, os.WNOHANG)[0]:  # so that the processor time of the ended ones is known
                pass
        if os.fork() == 0:
            listening.close()
            return there
        there.close()
    return None


def _run_to_its_end(module: str) -> None:
    """Run a module, and end as the interpreter would, but for the tenth of a second in which it frees all modules."""
    status: str | int | None = None
    try:
        runpy.run_module(module, run_name="__main__", alter_sys=True)
    except SystemExit as ended:
        status = ended.code
    if threading.active_count() > 1 or not isinstance(status, int | None):
        sys.exit(status)
    atexit._run_exitfuncs()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(status or 0)


def main() -> None:
    """Import, fork for each connection, and in the fork fork again: one watches what the other one runs."""
    gc.disable()
    for name in sys.argv[2:]:
        import_module(name)
    gc.freeze()
    gc.enable()
    there = _accept(socket.socket(fileno=int(sys.argv[1])))
    if there is None:
        return
    first, streams, _, _ = socket.recv_fds(there, MOST_BYTES, 3)
    while more := there.recv(MOST_BYTES):
        first += more
    if forked := os.fork():
        _tell(there, forked)
        for stream in streams:
            os.close(stream)
        _tell(there, os.waitstatus_to_exitcode(os.waitpid(forked, 0)[1]))
        os._exit(0)
    there.close()
    module, sys.argv[1:], environment, folder, new_session = json.loads(first)
    if new_session:
        os.setsid()
    for number, stream in enumerate(streams):
        os.dup2(stream, number)
        os.close(stream)
    os.chdir(folder)
    os.environ.clear()
    os.environ.update(environment)
    _run_to_its_end(module)


if __name__ == "__main__":
    main()
