"""Serving: worker processes on one port, and what is said when the database or a setting is invalid."""

import os
import signal
import time
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import httpx2
import pytest

from app.persistence.database import Database
from app.persistence.schema import upgrade
from app.service.verification import verify
from tests.api.test_metrics import Samples, samples_of
from tests.conftest import SAMPLED, LiveServer, command_line, need_postgresql, new_database
from tests.soak import thinned

WRITERS = 8
ASKED = 60
WORKERS = ("epsilon_ledger_workers", frozenset[tuple[str, str]]())
REQUESTS = "epsilon_ledger_http_request_duration_seconds_count"
HEALTH = (REQUESTS, frozenset({("method", "GET"), ("route", "/healthz"), ("status", "2xx")}))


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LiveServer]:
    """A server with two workers."""
    made = LiveServer(tmp_path_factory.mktemp("server"), workers=2)
    made.start()
    yield made
    made.stop()


def test_workers_admit_exactly_what_fits(server: LiveServer) -> None:
    """Each writer has connections and a run of its own; whichever worker takes them, all share one budget."""
    limit = {"epsilon": 1.0, "delta": 1e-5}
    terms = {"name": "mimic", "privacy_unit": "patient", "neighboring_relation": "add_or_remove_one"}

    def post(path: str, **body: object) -> httpx2.Response:
        with server.client("admin") as http:
            return http.post(f"/v1/{path}", json=body)

    post("populations", limit=limit, **terms).raise_for_status()
    post("budgets", name="team", parent="mimic", limit=limit).raise_for_status()
    runs = [
        post("runs", name=f"run {number}", budget="mimic/team", event=SAMPLED).raise_for_status().json()
        for number in range(WRITERS + 1)
    ]
    spare, room = runs.pop()["id"], runs[0]["steps_remaining"]
    post(f"runs/{spare}/steps", first_step=0, count=room - WRITERS // 2).raise_for_status()
    with ThreadPoolExecutor(WRITERS) as pool:
        answers = Counter(pool.map(lambda run: post(f"runs/{run['id']}/steps", first_step=0).status_code, runs))
    assert answers == {200: WRITERS // 2, 403: WRITERS - WRITERS // 2}
    database = Database(server.database_url)
    assert verify(database).sound
    database.dispose()


def scraped(server: LiveServer) -> Samples:
    """A scrape, or nothing if the worker that was to answer has just died."""
    try:
        reply = httpx2.get(f"{server.url}/metrics", timeout=30, trust_env=False)
    except httpx2.TransportError:
        return {}
    assert reply.status_code == 200, reply.text
    return samples_of(reply.text)


def pids(found: Samples) -> set[int]:
    return {int(dict(labels)["pid"]) for name, labels in found if name == "process_resident_memory_bytes"}


def scraped_until(server: LiveServer, holds: Callable[[Samples], bool]) -> Samples:
    until = time.monotonic() + 60
    while not holds(found := scraped(server)):
        assert time.monotonic() < until, server.log()
        time.sleep(0.05)
    return found


def test_scrape_of_one_worker_has_the_metrics_of_all_also_of_a_dead_one(server: LiveServer) -> None:
    scraped_until(server, lambda found: found.get(WORKERS) == 2)
    before = scraped(server).get(HEALTH, 0)
    with ThreadPoolExecutor(8) as pool:  # each on a connection of its own: both workers get some
        list(pool.map(lambda _: httpx2.get(f"{server.url}/healthz", trust_env=False), range(ASKED)))
    # A request is counted once its answer is sent: the client may have it a moment before.
    scraped_until(server, lambda found: found.get(HEALTH, 0) >= before + ASKED)
    found = [scraped(server) for _ in range(4)]
    assert {(each[HEALTH], each[WORKERS], len(pids(each))) for each in found} == {(before + ASKED, 2, 2)}
    lost = min(pids(found[0]))
    os.kill(lost, signal.SIGKILL)
    now = scraped_until(server, lambda found: found.get(WORKERS) == 2 and lost not in pids(found))
    assert now[HEALTH] == before + ASKED


@pytest.mark.parametrize("workers", thinned([2, 1], 2))
def test_server_stopped_while_it_starts_stops(tmp_path: Path, workers: int) -> None:
    early = LiveServer(tmp_path, module="tests.service.early_stop_server", workers=workers, interpreted=True)
    upgrade(database := Database(early.database_url))
    database.dispose()
    try:
        with pytest.raises(AssertionError):  # it is never ready
            early.start()
        assert early.process is not None
        assert early.process.wait(timeout=60) == 0, early.log()
    finally:
        early.kill()


@pytest.mark.postgresql
def test_serving_never_migrates_postgresql_but_says_what_is_needed(tmp_path: Path) -> None:
    need_postgresql()
    with new_database("postgresql", tmp_path, migrated=False) as url:
        for command in (("serve", "--port", "0"), ("verify",)):
            refused = command_line(*command, database=url)
            assert (refused.returncode, refused.stdout, refused.stderr.count("\n")) == (2, "", 1)
            assert "epsilon-ledger migrate" in refused.stderr
        assert command_line("migrate", database=url).returncode == 0
        assert command_line("org", "create", "hospital", database=url).returncode == 0


@pytest.mark.postgresql
def test_unreachable_postgresql_is_one_sentence_without_the_password(tmp_path: Path) -> None:
    need_postgresql()
    with new_database("postgresql", tmp_path) as url:
        for wrong in (
            f"{url.rpartition('/')[0]}/nowhere",
            f"postgresql://ledger:mistaken@{url.rpartition('@')[2]}",
            f"{url.rpartition(':')[0]}:1/ledger",
        ):
            refused = command_line("serve", "--port", "0", database=wrong)
            assert (refused.returncode, refused.stdout, refused.stderr.count("\n")) == (2, "", 1)
            assert "mistaken" not in refused.stderr
            assert url.split(":")[2].split("@")[0] not in refused.stderr
