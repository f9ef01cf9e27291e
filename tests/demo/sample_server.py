"""`epsilon-ledger serve --demo` as a process, for tests and pictures."""

import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from http import HTTPStatus
from pathlib import Path
from typing import Any

import httpx2


@dataclass(frozen=True)
class SampleServer:
    """A demo that is being served; `facts` is what the command printed."""

    process: subprocess.Popen[bytes]
    folder: Path
    facts: dict[str, Any]

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.facts['port']}"

    def items(self, path: str, role: str = "viewer") -> list[dict[str, Any]]:
        """All items of a list of the API."""
        headers = {"Authorization": f"Bearer {self.facts['keys'][role]}"}
        found, after = [], ""
        while True:
            reply = httpx2.get(f"{self.url}{path}{after}", headers=headers, trust_env=False, timeout=60, verify=False)
            assert reply.status_code == HTTPStatus.OK, reply.text
            found += reply.json()["items"]
            if reply.json().get("next") is None:
                return found
            after = f"{'&' if '?' in path else '?'}after={reply.json()['next']}"

    def is_ready(self) -> bool:
        """Whether it answers."""
        try:
            return httpx2.get(f"{self.url}/readyz", trust_env=False, verify=False).status_code == HTTPStatus.OK
        except httpx2.TransportError:
            return False


@contextmanager
def sample_server(folder: Path) -> Iterator[SampleServer]:
    """Serve the demo, with its temporary files and its log in a folder, until the block ends."""
    # Settings of a real ledger must not reach the demo.
    foreign = {"EPSILON_LEDGER_DATABASE_URL": "postgresql://nobody@nowhere.invalid/real", "TMPDIR": str(folder)}
    with (
        (folder / "demo.log").open("wb") as log,
        subprocess.Popen(
            [sys.executable, "-m", "app", "serve", "--demo", "--port", "0", "--json"],
            env=os.environ | foreign,
            stdout=subprocess.PIPE,
            stderr=log,
            start_new_session=True,
        ) as process,
    ):
        try:
            assert process.stdout is not None
            served = SampleServer(process, folder, json.loads(process.stdout.readline()))
            until = time.monotonic() + 60
            while not served.is_ready():
                assert time.monotonic() < until
                time.sleep(0.1)
            yield served
        finally:
            process.kill()
