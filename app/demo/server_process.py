"""The demo's ledger: a separate process with its own database file."""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from http import HTTPStatus
from pathlib import Path
from types import FrameType
from typing import NoReturn

import httpx2

from app.demo import DemoError
from app.http.server import check_port

_READY_WITHIN = 30.0
_STOPPED_WITHIN = 10.0
_COMMAND_WITHIN = 60.0
_LOG_TAIL = 20


@dataclass(frozen=True, slots=True)
class DemoFolder:
    """The demo's folder, with the database and the service's log."""

    folder: Path

    @property
    def database_url(self) -> str:
        """Value of EPSILON_LEDGER_DATABASE_URL."""
        return f"sqlite:///{self.folder / 'epsilon-ledger.db'}"

    @property
    def log(self) -> Path:
        """The service's log file."""
        return self.folder / "service.log"

    @property
    def log_tail(self) -> str:
        """The last lines of the log, for an error message."""
        tail = self.log.read_text(errors="replace").splitlines()[-_LOG_TAIL:]
        return "\n".join([f"The end of {self.log}:", *(tail or ["(empty)"])])

    @property
    def environment(self) -> Mapping[str, str]:
        """The caller's environment with the demo's settings only."""
        inherited = {name: value for name, value in os.environ.items() if not name.startswith("EPSILON_LEDGER_")}
        return inherited | {"EPSILON_LEDGER_DATABASE_URL": self.database_url}


@contextmanager
def running_service(demo: DemoFolder) -> Iterator[str]:
    """Run the service for the block, and yield its address. DemoError: the service does not start."""
    port = check_port("127.0.0.1", 0)
    url = f"http://127.0.0.1:{port}"
    with demo.log.open("wb") as log:
        process = subprocess.Popen(  # noqa: S603 - this program itself, no shell
            _command("serve", "--host", "127.0.0.1", "--port", str(port)),
            # A package `app` in the caller's folder would be imported first.
            cwd=demo.folder,
            env=demo.environment,
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=subprocess.STDOUT,
        )
    # By default SIGTERM skips `finally` blocks, and the service would outlive the demo.
    before = signal.signal(signal.SIGTERM, _leave)
    try:
        _wait_until_ready(process, url, demo)
        yield url
    finally:
        _stop(process)
        signal.signal(signal.SIGTERM, before)


def run_command(demo: DemoFolder, *arguments: str) -> dict[str, object]:
    """Run an `epsilon-ledger` command with `--json` on the demo's database, and return its output."""
    done = subprocess.run(  # noqa: S603 - as above
        _command(*arguments, "--json"),
        cwd=demo.folder,
        env=demo.environment,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=False,
        timeout=_COMMAND_WITHIN,
    )
    said = f"`epsilon-ledger {' '.join(arguments)}` exited with {done.returncode}"
    if done.returncode != 0:
        raise DemoError(f"{said}:\n{done.stdout}{done.stderr}")
    answer = json.loads(done.stdout)
    if not isinstance(answer, dict):
        raise DemoError(f"{said}, but its answer is no JSON object:\n{done.stdout}")
    return answer


def _command(*arguments: str) -> list[str]:
    return [sys.executable, "-m", "app", *arguments]


def _wait_until_ready(process: subprocess.Popen[bytes], url: str, demo: DemoFolder) -> None:
    deadline = time.monotonic() + _READY_WITHIN
    why = f"is not ready after {_READY_WITHIN:.0f} s"
    # Ignore proxies of the environment.
    with httpx2.Client(trust_env=False) as http:
        while time.monotonic() < deadline:
            if process.poll() is not None:
                why = f"exited with {process.returncode}"
                break
            try:
                if http.get(f"{url}/readyz").status_code == HTTPStatus.OK:
                    return
            except httpx2.RequestError:
                pass  # It is not listening yet.
            time.sleep(0.05)
    raise DemoError(f"The service {why}. {demo.log_tail}")


def _stop(process: subprocess.Popen[bytes]) -> None:
    process.terminate()
    try:
        process.wait(_STOPPED_WITHIN)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


def _leave(number: int, _frame: FrameType | None) -> NoReturn:
    sys.exit(128 + number)
