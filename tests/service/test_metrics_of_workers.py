"""Several workers share a port, and a scrape reaches one of them: it tells what all of them did."""

import os
import signal
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import httpx2

from tests.api.test_metrics import Samples, samples_of
from tests.servers import LiveServer

ASKED = 60
WORKERS = ("epsilon_ledger_workers", frozenset[tuple[str, str]]())


def _scrape(server: LiveServer) -> Samples:
    reply = httpx2.get(f"{server.url}/metrics", timeout=30, trust_env=False)
    assert reply.status_code == 200, reply.text
    return samples_of(reply.text)


def _pids(found: Samples) -> set[int]:
    return {int(dict(labels)["pid"]) for name, labels in found if name == "process_resident_memory_bytes"}


def test_any_worker_tells_what_all_of_them_did_and_none_that_died_is_forgotten(tmp_path: Path) -> None:
    server = LiveServer(tmp_path, workers=2)
    server.start()
    try:
        asked = frozenset({("method", "GET"), ("route", "/healthz"), ("status", "2xx")})
        until = time.monotonic() + 60
        while _scrape(server).get(WORKERS) != 2:
            assert time.monotonic() < until, server.log()
        with ThreadPoolExecutor(8) as pool:  # each on a connection of its own: both workers get some
            list(pool.map(lambda _: httpx2.get(f"{server.url}/healthz", trust_env=False), range(ASKED)))
        # A request is counted once its answer is sent: the client may have it a moment before.
        while _scrape(server)["epsilon_ledger_http_request_duration_seconds_count", asked] < ASKED:
            assert time.monotonic() < until, server.log()
        answer = [_scrape(server) for _ in range(8)]
        assert {found["epsilon_ledger_http_request_duration_seconds_count", asked] for found in answer} == {ASKED}
        assert {found[WORKERS] for found in answer} == {2}
        assert Counter(name for name, _ in answer[0])["process_resident_memory_bytes"] == 2
        lost = min(_pids(answer[0]))
        os.kill(lost, signal.SIGKILL)
        while (now := _scrape_somehow(server)).get(WORKERS) != 2 or lost in _pids(now):
            assert time.monotonic() < until, server.log()
            time.sleep(0.1)
        assert _scrape(server)["epsilon_ledger_http_request_duration_seconds_count", asked] == ASKED
    finally:
        server.stop()


def _scrape_somehow(server: LiveServer) -> Samples:
    """A scrape, or nothing if the worker that was to answer has just died."""
    try:
        return _scrape(server)
    except httpx2.TransportError:
        return {}
