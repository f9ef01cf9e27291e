"""Serving: several worker processes on one port, and what is said when the database or a setting is invalid."""

from collections import Counter
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from app.persistence.database import Database
from app.persistence.schema import upgrade
from app.service.verification import verify
from tests.conftest import SAMPLED, LiveServer, command_line, need_postgresql, new_database

WRITERS = 8


def test_several_workers_admit_exactly_what_fits(tmp_path: Path, database_url: str) -> None:
    """Each writer has connections and a run of its own; whichever worker takes them, all share one budget."""
    server = LiveServer(tmp_path, database_url, workers=2)
    server.start()
    try:
        limit = {"epsilon": 1.0, "delta": 1e-5}
        terms = {"name": "mimic", "privacy_unit": "patient", "neighboring_relation": "add_or_remove_one"}
        with server.client("admin") as http:
            http.post("/v1/populations", json=terms | {"limit": limit}).raise_for_status()
            http.post("/v1/budgets", json={"name": "team", "parent": "mimic", "limit": limit}).raise_for_status()

        def register(number: int) -> dict[str, object]:
            with server.client("admin") as http:
                body = {"name": f"run {number}", "budget": "mimic/team", "event": SAMPLED}
                reply = http.post("/v1/runs", json=body).raise_for_status()
                made: dict[str, object] = reply.json()
                return made

        def race(run: object) -> int:
            with server.client("admin") as http:
                return http.post(f"/v1/runs/{run}/steps", json={"first_step": 0}).status_code

        runs = [register(number) for number in range(WRITERS)]
        room = runs[0]["steps_remaining"]
        assert isinstance(room, int)
        spare = register(WRITERS)["id"]
        with server.client("admin") as http:
            body = {"first_step": 0, "count": room - WRITERS // 2}
            http.post(f"/v1/runs/{spare}/steps", json=body).raise_for_status()
        with ThreadPoolExecutor(WRITERS) as pool:
            answers = Counter(pool.map(race, (run["id"] for run in runs)))
        assert answers == {200: WRITERS // 2, 403: WRITERS - WRITERS // 2}
    finally:
        server.stop()
    database = Database(database_url)
    assert verify(database).sound
    database.dispose()


@pytest.mark.parametrize("workers", [1, 2])
def test_who_is_told_to_stop_while_it_starts_stops(tmp_path: Path, workers: int) -> None:
    server = LiveServer(tmp_path, module="tests.service.early_stop_server", workers=workers, interpreted=True)
    upgrade(database := Database(server.database_url))
    database.dispose()
    try:
        with pytest.raises(AssertionError):  # it is never ready
            server.start()
        assert server.process is not None
        assert server.process.wait(timeout=60) == 0, server.log()
    finally:
        server.kill()


@pytest.mark.postgresql
def test_serving_never_migrates_postgresql_but_says_what_is_needed(tmp_path: Path) -> None:
    need_postgresql()
    with new_database("postgresql", tmp_path, migrated=False) as url:
        for command in (("serve", "--port", "0"), ("org", "create", "hospital"), ("verify",)):
            refused = command_line(*command, database=url)
            assert (refused.returncode, refused.stdout) == (2, "")
            assert "epsilon-ledger migrate" in refused.stderr
            assert refused.stderr.count("\n") == 1
        assert command_line("migrate", database=url).returncode == 0
        assert command_line("org", "create", "hospital", database=url).returncode == 0


def _without_database(url: str) -> str:
    return f"{url.rpartition('/')[0]}/nowhere"


def _with_password(url: str) -> str:
    return f"postgresql://ledger:mistaken@{url.rpartition('@')[2]}"


def _with_port(url: str) -> str:
    return f"{url.rpartition(':')[0]}:1/ledger"


@pytest.mark.postgresql
@pytest.mark.parametrize("wrong", [_without_database, _with_password, _with_port])
def test_a_server_that_does_not_let_us_in_is_one_sentence_without_the_password(
    tmp_path: Path, wrong: Callable[[str], str]
) -> None:
    need_postgresql()
    with new_database("postgresql", tmp_path) as url:
        refused = command_line("serve", "--port", "0", database=wrong(url))
    assert (refused.returncode, refused.stdout) == (2, "")
    assert refused.stderr.count("\n") == 1
    assert "mistaken" not in refused.stderr
    assert url.split(":")[2].split("@")[0] not in refused.stderr


@pytest.mark.parametrize("size", ["0", "many", "-1", "1001"])
def test_a_setting_that_is_not_right_is_one_sentence(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, size: str
) -> None:
    monkeypatch.setenv("EPSILON_LEDGER_DATABASE_POOL_SIZE", size)
    refused = command_line("migrate", database=tmp_path / "ledger.db")
    assert (refused.returncode, refused.stdout) == (2, "")
    assert refused.stderr.startswith("EPSILON_LEDGER_DATABASE_POOL_SIZE is invalid: ")
    assert refused.stderr.count("\n") == 1
