"""A trainer that takes steps slowly for as long as the sample ledger is served, through its real API."""

import http.client
import json
import threading
import time
from http import HTTPStatus
from typing import Any, Final

from app.sample.hospital import live_run

PAUSE_SECONDS: Final = 2.0
"""Between two requests; the pages poll every four seconds."""

STEPS_AT_ONCE: Final = 10

_READY_WITHIN: Final = 60.0
_TIMEOUT: Final = 30.0


class LiveTrainer(threading.Thread):
    """Trains runs one after the other on a server of this machine, until it is stopped.

    Args:
        port: of the server.
        key: of a trainer.
        first_run: id of the first of the live runs, which is registered already.
        host: address at which the server is reached from this machine.
    """

    def __init__(self, port: int, key: str, first_run: str, host: str = "127.0.0.1") -> None:
        super().__init__(name="sample-trainer", daemon=True)
        self._address = (host, port)
        self._key = key
        self._first_run = first_run
        self._stop_asked = threading.Event()

    def stop(self) -> None:
        """End after the current request."""
        self._stop_asked.set()

    def run(self) -> None:
        """Train until stopped, or until the budget is used up."""
        try:
            if self._is_ready():
                run_id, number = self._first_run, 1
                while run_id and self._train(run_id):
                    number += 1
                    run_id = self._register(number)
        except (OSError, http.client.HTTPException):  # the server has stopped
            return

    def _is_ready(self) -> bool:
        deadline = time.monotonic() + _READY_WITHIN
        while time.monotonic() < deadline and not self._stop_asked.wait(0.1):
            try:
                if self._call("GET", "/readyz")[0] == HTTPStatus.OK:
                    return True
            except OSError:  # it does not listen yet
                continue
        return False

    def _register(self, number: int) -> str:
        """Register a run; return its id, or nothing if it is refused."""
        status, run = self._call("POST", "/v1/runs", live_run(number))
        return str(run["id"]) if status == HTTPStatus.CREATED else ""

    def _train(self, run_id: str) -> bool:
        """Train one run until it is refused; return whether another one makes sense."""
        requests = 0
        while not self._stop_asked.is_set():
            status, _ = self._call("POST", f"/v1/runs/{run_id}/steps", {"count": STEPS_AT_ONCE})
            if status != HTTPStatus.OK:
                self._call("POST", f"/v1/runs/{run_id}/complete", {})
                return status == HTTPStatus.FORBIDDEN and requests > 0
            requests += 1
            self._stop_asked.wait(PAUSE_SECONDS)
        return False

    def _call(self, method: str, path: str, body: object = None) -> tuple[int, dict[str, Any]]:
        connection = http.client.HTTPConnection(*self._address, timeout=_TIMEOUT)
        headers = {"Authorization": f"Bearer {self._key}", "Content-Type": "application/json"}
        try:
            connection.request(method, path, None if body is None else json.dumps(body), headers)
            reply = connection.getresponse()
            return reply.status, json.loads(reply.read() or b"{}")
        finally:
            connection.close()
