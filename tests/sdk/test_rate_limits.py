"""The client against a real service that holds it up."""

import time
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
