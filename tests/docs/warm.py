"""`epsilon-ledger` without the second that it takes to start: a process that has done so forks for each command.

Pages have some forty commands. Each still has an environment, a folder, streams and an exit status of its own.
"""

import json
import os
import socket
import subprocess
import sys
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.docs.markdown import ROOT

MOST_BYTES = 1 << 20
CLIENT = """#!{python} -IS
import json, os, socket, sys
with socket.socket(socket.AF_UNIX) as there:
    there.connect({path!r})
    asked = json.dumps([sys.argv, dict(os.environ), os.getcwd()]).encode()
    socket.send_fds(there, [asked], [0, 1, 2])
    there.shutdown(socket.SHUT_WR)
    sys.exit(int(there.recv(16)))
"""


@contextmanager
def warm_commands(folder: Path) -> Iterator[Path]:
    """A folder for the PATH, with an `epsilon-ledger` in it."""
    path = folder / "warm.socket"
    command = folder / "warm" / "epsilon-ledger"
    command.parent.mkdir()
    command.write_text(CLIENT.format(python=sys.executable, path=str(path)))
    command.chmod(0o755)
    with socket.socket(socket.AF_UNIX) as listening:
        listening.bind(str(path))
        listening.listen()
        process = subprocess.Popen(
            [sys.executable, "-m", "tests.docs.warm", str(listening.fileno())], cwd=ROOT, pass_fds=[listening.fileno()]
        )
        try:
            yield command.parent
        finally:
            process.kill()
            process.wait()


def _serve(listening: socket.socket) -> None:
    from app.cli import main  # noqa: PLC0415 - what takes the time, in this process only

    while True:
        there, _ = listening.accept()
        with there:
            first, streams, _, _ = socket.recv_fds(there, MOST_BYTES, 3)
            while more := there.recv(MOST_BYTES):
                first += more
            argv, environment, folder = json.loads(first)
            child = os.fork()
            if child == 0:
                for number, stream in enumerate(streams):
                    os.dup2(stream, number)
                os.chdir(folder)
                os.environ.clear()
                os.environ.update(environment)
                sys.argv = argv
                os._exit(_status_of(main))
            for stream in streams:
                os.close(stream)
            _, ended = os.waitpid(child, 0)
            there.sendall(str(os.waitstatus_to_exitcode(ended)).encode())


def _status_of(main: Callable[[], None]) -> int:
    try:
        main()
        status = 0
    except SystemExit as left:
        status = int(left.code or 0)
    except BaseException:  # noqa: BLE001 - the child must not go on as its parent
        traceback.print_exc()
        status = 70
    sys.stdout.flush()
    sys.stderr.flush()
    return status


if __name__ == "__main__":
    _serve(socket.socket(fileno=int(sys.argv[1])))
