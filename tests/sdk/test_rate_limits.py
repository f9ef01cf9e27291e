"""The client against a real service that holds it up."""

import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from epsilon_ledger import LedgerClient, Limit, gaussian
from tests.conftest import LiveServer

STEPS = 8


def test_a_trainer_rides_out_a_rate_limit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("EPSILON_LEDGER_RATE_LIMIT_PER_SECOND", "4")
    monkeypatch.setenv("EPSILON_LEDGER_RATE_LIMIT_BURST", "2")
    server = LiveServer(tmp_path)
    server.start()
    try:
        with LedgerClient(server.url, server.key("admin")) as client:
            limit = Limit(100.0, 1e-5)
            client.create_population("p", privacy_unit="user", neighboring_relation="add_or_remove_one", limit=limit)
            client.create_budget("b", parent="p", limit=limit)
            run = client.create_run("r", budget="p/b", event=gaussian(100.0))
            began = time.monotonic()
            for number in range(STEPS):
                assert run.authorize().next_step == number + 1
            assert time.monotonic() - began > (STEPS - 2) / 4
    finally:
        server.stop()


RANKS = 8
STEPS_OF_A_RANK = 3


def test_ranks_that_share_a_key_are_slowed_down_and_none_fails(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Far over the limit, each is held up many times in a row."""
    monkeypatch.setenv("EPSILON_LEDGER_RATE_LIMIT_PER_SECOND", "10")
    monkeypatch.setenv("EPSILON_LEDGER_RATE_LIMIT_BURST", "4")
    server = LiveServer(tmp_path)
    server.start()
    try:
        with LedgerClient(server.url, server.key("admin"), max_attempts=2) as client:
            limit = Limit(100.0, 1e-5)
            client.create_population("p", privacy_unit="user", neighboring_relation="add_or_remove_one", limit=limit)
            client.create_budget("b", parent="p", limit=limit)
            runs = [client.create_run(f"rank-{rank}", budget="p/b", event=gaussian(100.0)) for rank in range(RANKS)]
            with ThreadPoolExecutor(RANKS) as ranks:
                ends = list(
                    ranks.map(lambda run: [run.authorize().next_step for _ in range(STEPS_OF_A_RANK)][-1], runs)
                )
            assert ends == [STEPS_OF_A_RANK] * RANKS
            assert {client.get_run(run.id).state.next_step for run in runs} == {STEPS_OF_A_RANK}
    finally:
        server.stop()


def test_a_loop_at_the_default_limit_is_never_held_up(tmp_path: Path) -> None:
    """One process that asks for each step, as fast as it can."""
    server = LiveServer(tmp_path)
    server.start()
    try:
        with LedgerClient(server.url, server.key("admin"), max_attempts=1) as client:  # which repeats nothing
            limit = Limit(1000.0, 1e-5)
            client.create_population("p", privacy_unit="user", neighboring_relation="add_or_remove_one", limit=limit)
            client.create_budget("b", parent="p", limit=limit)
            run = client.create_run("r", budget="p/b", event=gaussian(1000.0))
            for _ in range(500):
                run.authorize()
            assert run.next_step == 500
    finally:
        server.stop()
